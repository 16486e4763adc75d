"""Masked language modelling (Devlin et al. 2019, section 3.1).

Legend: B batch, T positions, W words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from transfer_cli.batch import IGNORE, Batch, Counts, Sums
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, at_least, check_share
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.language_model import LanguageModel, exp_or_inf
from transfer_cli.seeds import ExampleNoise

Masks = Literal["dynamic", "static"]

MAX_SPAN_WORDS, SPAN_DECAY = 10, 0.8
"""Words of a span: of n with a probability proportional to 0.8^n, so 3.8 on average (SpanBERT)."""


@dataclass(eq=False, repr=False)
class MaskedLM(LanguageModel):
    """Hide some tokens, predict them from both sides.

    A position is eligible unless it is padding, special or the unknown token. Each eligible one is
    selected with probability `rate`; when none is, one at random. Of the selected, 80 % become the
    mask token, 10 % a token drawn from those that are not special, 10 % stay.

    Args:
        rate: Share of eligible tokens to select, in (0, 1).
        whole_word: Select words, all their pieces together, until `rate` of the tokens is reached.
        spans: Select spans of words so (Joshi et al. 2020, section 3.1). Other than words, a span
            has one fate: all of it is masked, or replaced, or stays.
        masks: dynamic: other tokens are hidden at each visit (Liu et al. 2019); static: in each
            epoch those of another copy of the text, as BERT had them.
        copies: How many copies that are. After so many epochs the first comes again.
    """

    direction = "bidirectional"
    keeps_tokens = False
    metrics: ClassVar[tuple[Metric, ...]] = (perplexity("masked_token_perplexity"), LOSS)
    MASKED, RANDOM = 0.8, 0.1

    rate: float = 0.15
    whole_word: bool = False
    spans: bool = field(default=False, kw_only=True)
    masks: Masks = field(default="dynamic", kw_only=True)
    copies: int = field(default=10, kw_only=True)

    def __post_init__(self) -> None:
        check_share("rate", self.rate)
        at_least("copies", self.copies, 1)

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        vocabulary = info.vocabulary
        if not vocabulary.has_mask:
            raise ConfigError(
                "objective: this tokenizer has no mask token of its own, so nothing can be hidden; "
                "take objective=clm, or another tokenizer"
            )
        eligible = torch.ones(vocabulary.size, dtype=torch.bool)
        eligible[sorted(vocabulary.special | {vocabulary.unk})] = False
        self._eligible = eligible
        self._ordinary = eligible.nonzero().squeeze(1)
        self._starts_word = torch.from_numpy(np.asarray(vocabulary.starts_word, dtype=bool))

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with masked `tokens`; `target` holds the original ones."""
        tokens_BT = batch["tokens"]
        selected_BT, action_BT, token_BT = self.select(batch, noise)
        # A draw of 1 - 2^-24 times a large count may round up to the count itself.
        drawn = (token_BT * len(self._ordinary)).long().clamp(max=len(self._ordinary) - 1)
        hidden_BT = torch.where(
            action_BT < self.MASKED,
            self.info.vocabulary.mask,
            torch.where(action_BT < self.MASKED + self.RANDOM, self._ordinary[drawn], tokens_BT),
        )
        return {
            **batch,
            "tokens": torch.where(selected_BT, hidden_BT, tokens_BT),
            "target": torch.where(selected_BT, tokens_BT, IGNORE),
        }

    def select(self, batch: Batch, noise: ExampleNoise) -> tuple[Tensor, Tensor, Tensor]:
        """Return which positions are selected, and of each two numbers in [0, 1), `[B, T]` all.

        The first is for what becomes of its token, the second for what replaces it.
        """
        tokens_BT = batch["tokens"]
        eligible_BT = self._eligible[tokens_BT] & batch["mask"]
        if self.masks == "static" and "epoch" in batch:
            noise = noise.for_copy(int(batch["epoch"][0]) % self.copies)
        # Three draws a position: whether to select, what to do, which token to put there; and of
        # spans how long they are.
        draws = noise.uniform(batch["index"], tokens_BT.shape[1], 4 if self.spans else 3)
        select_BT, action_BT, token_BT, *length = draws.unbind(-1)
        if self.spans:
            selected_BT, begin_BT = self._select_spans(tokens_BT, eligible_BT, select_BT, *length)
            action_BT = action_BT.gather(1, begin_BT)
        elif self.whole_word:
            selected_BT = self._select_words(tokens_BT, eligible_BT, select_BT)
        else:
            selected_BT = self._select_tokens(eligible_BT, select_BT)
        return selected_BT, action_BT, token_BT

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        """Return loss and masked-token perplexity, which is not a likelihood of the text."""
        mean = float(totals["loss"]) / counts["loss"]
        return {"loss": mean, "masked_token_perplexity": exp_or_inf(mean)}

    def _select_tokens(self, eligible_BT: Tensor, draw_BT: Tensor) -> Tensor:
        selected_BT = (draw_BT < self.rate) & eligible_BT
        # At least one a sample: the eligible position with the lowest draw.
        lowest = torch.where(eligible_BT, draw_BT, 2.0).argmin(1, keepdim=True)
        none = ~selected_BT.any(1, keepdim=True) & eligible_BT.any(1, keepdim=True)
        return selected_BT | torch.zeros_like(selected_BT).scatter(1, lowest, none)

    def _select_words(self, tokens_BT: Tensor, eligible_BT: Tensor, draw_BT: Tensor) -> Tensor:
        selected_BT = torch.zeros_like(eligible_BT)
        for row, place_N, starts_W, sizes_W in self._words(tokens_BT, eligible_BT):
            order_W = draw_BT[row, starts_W].argsort()
            before_W = sizes_W[order_W].cumsum(0) - sizes_W[order_W]
            is_chosen_W = torch.zeros_like(sizes_W, dtype=torch.bool)
            is_chosen_W[order_W] = before_W < self.rate * len(place_N)
            selected_BT[row, place_N] = is_chosen_W.repeat_interleave(sizes_W)
        return selected_BT

    def _select_spans(
        self, tokens_BT: Tensor, eligible_BT: Tensor, draw_BT: Tensor, length_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return which positions are selected, and where the span of each begins."""
        begin_BT = torch.full_like(tokens_BT, -1)
        for row, _, starts_W, sizes_W in self._words(tokens_BT, eligible_BT):
            draws = draw_BT[row, starts_W], length_BT[row, starts_W]
            for start, stop in self._row_spans(starts_W, sizes_W, *draws):
                begin_BT[row, start:stop] = start
        return begin_BT >= 0, begin_BT.clamp(min=0)

    def _words(
        self, tokens_BT: Tensor, eligible_BT: Tensor
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield the row of each text with eligible positions, these, and its words' starts, sizes.

        A token that is not eligible ends a word.
        """
        breaks_BT = self._starts_word[tokens_BT] | ~eligible_BT
        word_BT = breaks_BT.long().cumsum(1)
        for row, eligible_T in enumerate(eligible_BT):
            place_N = eligible_T.nonzero().squeeze(1)
            if len(place_N):
                _, sizes_W = word_BT[row, place_N].unique_consecutive(return_counts=True)
                yield row, place_N, place_N[sizes_W.cumsum(0) - sizes_W], sizes_W

    def _row_spans(
        self, starts_W: Tensor, sizes_W: Tensor, draw_W: Tensor, length_W: Tensor
    ) -> Iterator[tuple[int, int]]:
        """Yield the first position of each span and the one after its last.

        Spans begin at words in the order of their draws. One ends early before a special token,
        before another span, and where the rate is reached.
        """
        lengths = (length_W * (1 - SPAN_DECAY**MAX_SPAN_WORDS)).neg().log1p() / math.log(SPAN_DECAY)
        starts, sizes = starts_W.tolist(), sizes_W.tolist()
        left, is_free = self.rate * sum(sizes), [True] * len(starts)
        for first in draw_W.argsort().tolist():
            stop = starts[first]
            for word in range(first, min(first + 1 + int(lengths[first]), len(starts))):
                if left <= 0 or not is_free[word] or starts[word] != stop:
                    break
                is_free[word] = False
                left -= sizes[word]
                stop += sizes[word]
            if stop > starts[first]:
                yield starts[first], stop
