"""Beam search: the likeliest texts, found by keeping several beginnings of each.

It knows no model: whoever calls it reads a token after each beginning that is kept, and says what
may follow.

Legend: B texts, N beginnings of all texts that are kept, K candidates of a beginning, V vocabulary.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, at_least

NextLogits = Callable[[Tensor, Tensor], Tensor]
"""Returns logits `[N, V]` of what follows tokens, `[N]`, that go on after some rows, `[N]`.

Rows are numbers of beginnings of the call before, at first of texts. One may go on several ways, or
not at all.
"""


@dataclass(frozen=True)
class BeamSearch:
    """How texts are looked for, as in transformers' `generate`.

    Args:
        beams: Beginnings of a text that are kept: those with the highest sums of log-probabilities.
            Texts that have ended are as many; 1: there is no search.
        length_penalty: The score of a text that has ended is its sum divided by its number of
            tokens to this power: above 0, longer texts gain; 0: the sum itself.
        early_stopping: When a search ends that has found `beams` texts. true: at once; false: when
            none of them scores less than the best beginning would if it ended now; never: than it
            would if it got so far with its longest text.
        no_repeat_ngram_size: Of so many tokens no text has the same twice; 0: it may.
        first_token: The name of the token that all texts begin with, such as a language of mBART;
            None: any.
    """

    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    first_token: str | None = None

    def __post_init__(self) -> None:
        at_least("beams", self.beams, 1)
        at_least("no_repeat_ngram_size", self.no_repeat_ngram_size, 0)
        if not abs(self.length_penalty) <= 100:  # beyond, a float does not hold every power
            raise ValueError(f"length_penalty is {self.length_penalty}, expected -100 to 100")

    def check(self, vocabulary: Tokenizer) -> None:
        """Raise `ConfigError` unless a vocabulary has tokens to begin as many texts as are kept."""
        if self.beams > vocabulary.size:
            raise ConfigError(
                f"beams: {self.beams:,} texts cannot all begin differently, with a vocabulary of "
                f"{vocabulary.size:,} tokens; take fewer"
            )
        if self.first_token is not None and vocabulary.token(self.first_token) is None:
            raise ConfigError(
                f"first_token: {self.first_token!r} is no token of this model's vocabulary"
            )

    @torch.no_grad()
    def __call__(
        self,
        logits_BV: Tensor,
        next_logits: NextLogits,
        *,
        max_tokens: int,
        end_tokens: Collection[int],
        allowed_V: Tensor | None = None,
        contexts: Sequence[Sequence[int]] | None = None,
        first: int | None = None,
    ) -> list[list[int]]:
        """Return the best text that is found for each row, with the token that ends it.

        Each text is looked for by itself; when its search has ended, its beginnings are not read.

        Args:
            logits_BV: Of the first tokens.
            next_logits: Reads the next ones.
            max_tokens: Of a text.
            end_tokens: The tokens that end a text.
            allowed_V: True at the tokens that may be said; None: all. What the others take of the
                probability is not shared out.
            contexts: For each text what counts with `no_repeat_ngram_size`, such as a prompt.
            first: The token that all texts begin with; None: any.
        """
        contexts = [[]] * len(logits_BV) if contexts is None else contexts
        texts = [_TextSearch(self, max_tokens, end_tokens, list(tokens)) for tokens in contexts]
        while True:
            values_NK, tokens_NK = self._candidates(logits_BV, texts, allowed_V, first)
            rows, tokens, first_row = list[int](), list[int](), 0
            for text in texts:
                span = slice(first_row, first_row + len(text.open))
                kept = text.grow(values_NK[span], tokens_NK[span])
                rows += [first_row + row for row, _ in kept]
                tokens += [token for _, token in kept]
                first_row = span.stop
            if not rows:
                return [text.ended[0][1] for text in texts]
            logits_BV = next_logits(*torch.tensor([tokens, rows], device=logits_BV.device))
            first = None

    def _candidates(
        self,
        logits_NV: Tensor,
        texts: Sequence["_TextSearch"],
        allowed_V: Tensor | None,
        first: int | None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Return log-probabilities and tokens of what may follow each beginning, best first."""
        if first is not None:
            return [[0.0]] * len(logits_NV), [[first]] * len(logits_NV)
        log_NV = logits_NV.float().log_softmax(-1)
        if allowed_V is not None:
            log_NV.masked_fill_(~allowed_V.to(log_NV.device), -math.inf)
        if self.no_repeat_ngram_size:
            beginnings = (text.context + tokens for text in texts for _, tokens in text.open)
            for row, tokens in enumerate(beginnings):
                log_NV[row, sorted(repeating_tokens(tokens, self.no_repeat_ngram_size))] = -math.inf
        count = max((text.num_candidates for text in texts), default=1)
        best = log_NV.topk(min(count, log_NV.shape[1]))
        return best.values.tolist(), best.indices.tolist()


def repeating_tokens(tokens: Sequence[int], size: int) -> set[int]:
    """Return the tokens with which a text would have the same `size` tokens twice."""
    begun = list(tokens[max(0, len(tokens) - size + 1) :])
    starts = range(len(tokens) - size + 1)
    return {tokens[i + size - 1] for i in starts if list(tokens[i : i + size - 1]) == begun}


@dataclass
class _TextSearch:
    """The search for one text.

    Attributes:
        open: The beginnings that are kept, with their sums of log-probabilities, best first.
        ended: The texts that have ended, with their scores, best first.
    """

    search: BeamSearch
    max_tokens: int
    end_tokens: Collection[int]
    context: list[int]
    open: list[tuple[float, list[int]]] = field(default_factory=lambda: [(0.0, [])])
    ended: list[tuple[float, list[int]]] = field(default_factory=list)

    @property
    def num_candidates(self) -> int:
        """How many are looked at: beginnings are left when as many as can be have ended."""
        return max(2, 1 + len(self.end_tokens)) * self.search.beams

    def grow(
        self, values: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]
    ) -> list[tuple[int, int]]:
        """Take one token more, and return which of the open beginnings goes on with which.

        Args:
            values: Log-probabilities of the candidates of each open beginning, best first.
        """
        if not self.open:
            return []
        candidates = [
            (score + value, row, token)
            for row, (score, _) in enumerate(self.open)
            for value, token in zip(values[row], tokens[row], strict=True)
            if score + value > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        length = len(self.open[0][1]) + 1
        kept: list[tuple[float, int, int]] = []
        for rank, (score, row, token) in enumerate(candidates[: self.num_candidates]):
            if length < self.max_tokens and token not in self.end_tokens:
                kept.append((score, row, token))
            elif rank < self.search.beams:
                self._finish(score, [*self.open[row][1], token])
        kept = kept[: self.search.beams]
        if not (kept or self.ended):  # nothing may follow
            for score, begun in self.open:
                self._finish(score, begun)
        is_over = not kept or self._is_over(kept[0][0], length)
        earlier = self.open
        self.open = [] if is_over else [(s, [*earlier[row][1], token]) for s, row, token in kept]
        return [] if is_over else [(row, token) for _, row, token in kept]

    def _finish(self, score: float, tokens: list[int]) -> None:
        self.ended.append((score / max(1, len(tokens)) ** self.search.length_penalty, tokens))
        self.ended.sort(key=lambda text: -text[0])
        del self.ended[self.search.beams :]

    def _is_over(self, best_open: float, length: int) -> bool:
        """Return whether no beginning is expected to become one of the best texts."""
        search = self.search
        if len(self.ended) < search.beams:
            return False
        gains = search.early_stopping == "never" and search.length_penalty > 0
        hoped = best_open / (self.max_tokens if gains else length) ** search.length_penalty
        return search.early_stopping is True or hoped <= self.ended[-1][0]
