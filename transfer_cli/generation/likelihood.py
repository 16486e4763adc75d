"""Log-probabilities of tokens under a language model.

Legend: B rows, T positions, N scored tokens, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from transfer_cli.errors import NotFiniteError
from transfer_cli.fitting import halve_if_out_of_memory
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.vocabulary_loss import CHUNK_ELEMENTS
from transfer_cli.objectives.language_model import token_logits
from transfer_cli.progress import progress


@dataclass(frozen=True)
class Ending:
    """A text whose end, from token `first` on (1 or more), is scored given what is before it."""

    tokens: Sequence[int]
    first: int

    @property
    def inputs(self) -> Sequence[int]:
        """The tokens that the model reads."""
        return self.tokens[:-1]

    @property
    def positions(self) -> Sequence[int]:
        """Where it says the tokens of the end."""
        return range(self.first - 1, len(self.tokens) - 1)

    @property
    def targets(self) -> Sequence[int]:
        """The tokens of the end."""
        return self.tokens[self.first :]


@dataclass(frozen=True)
class Gap:
    """A text with mask tokens, and what may stand at one of them.

    Args:
        place: The position of the mask token.
        targets: The tokens that are scored there.
    """

    tokens: Sequence[int]
    place: int
    targets: Sequence[int]

    @property
    def inputs(self) -> Sequence[int]:
        """The tokens that the model reads."""
        return self.tokens

    @property
    def positions(self) -> Sequence[int]:
        """Where it says each target."""
        return [self.place] * len(self.targets)


Row = TypeVar("Row", bound=Ending | Gap)


class ScoredTokens(NamedTuple):
    """The log-probabilities of targets, and the best token at each of their positions."""

    scores: list[float]
    best: list[int]


def score_rows(
    model: TransferModel,
    rows: Sequence[Ending | Gap],
    padding: int,
    batch: int,
    allowed_V: Tensor | None = None,
) -> list[Tensor]:
    """Return the log-probability of each target of each row, `[N]` in float32.

    With `allowed_V` it is `[N, 2]`: the second number is the best token of those.
    """
    order = sorted(range(len(rows)), key=lambda number: len(rows[number].tokens))
    results: dict[int, Tensor] = {}
    with progress("scoring", len(rows), "texts") as more:
        for first in range(0, len(order), batch):
            numbers = np.array(order[first : first + batch])
            for part, readings in halve_if_out_of_memory(
                numbers,
                lambda some: _score_rows(model, [rows[n] for n in some], padding, allowed_V),
            ):
                results |= zip(part.tolist(), readings, strict=True)
            more(len(numbers))
    return [results[number] for number in range(len(rows))]


def score_and_predict(
    model: TransferModel, rows: Sequence[Ending | Gap], allowed_V: Tensor, padding: int, batch: int
) -> list[ScoredTokens]:
    """Return what a causal model says at each end, or a masked one at each gap; see `ScoredTokens`.

    The right tokens before are given. The best token is one of those where `allowed_V` is True.
    """
    numbers = score_rows(model, rows, padding, batch, allowed_V)
    return [ScoredTokens(row[:, 0].tolist(), row[:, 1].long().tolist()) for row in numbers]


def encode_scored(layout: PromptLayout, text: str) -> list[int]:
    """Return the tokens of a text behind what stands before it, if only the end of another."""
    tokens, tokenizer = layout.encode(text), layout.tokenizer
    is_first = layout.line_end is None and layout.before_text is None
    return [tokenizer.sep, *tokens] if is_first else tokens


class PrefixScorer:
    """What several texts begin with, read once by a causal model."""

    def __init__(self, model: TransferModel, tokens: Sequence[int]) -> None:
        self._model, self._tokens = model, list(tokens)
        self._cache = _extend_cache(model, KVCache(model.backbone.shape.depth, len(tokens)), tokens)

    def score(self, rows: Sequence[Ending]) -> list[Tensor]:
        """Return the same as `score_rows`, of texts that differ near their ends.

        What they have in common is read once, and of that what is read already is not read again.
        """
        shared = _common_prefix([row.tokens for row in rows])[: min(row.first - 1 for row in rows)]
        common, known = len(shared), len(_common_prefix([self._tokens, shared]))
        cache = self._cache.fork(1, common, known)
        cache = _extend_cache(self._model, cache, shared[known:])
        longest = max(len(row.tokens) for row in rows)
        return _score_rows(self._model, rows, cache=cache.fork(len(rows), longest))


def _extend_cache(model: TransferModel, cache: KVCache, tokens: Sequence[int]) -> KVCache:
    """Return the cache of one text, to which the model has added these tokens."""
    if tokens:
        tokens_1T = _on_device(model, [tokens])
        mask_1T = torch.ones_like(tokens_1T, dtype=torch.bool)
        model(lambda whole: whole.backbone(tokens_1T, mask_1T, padded=False, kv_cache=cache))
    return cache


def _score_rows(
    model: TransferModel,
    rows: Sequence[Ending | Gap],
    padding: int = 0,
    allowed_V: Tensor | None = None,
    *,
    cache: KVCache | None = None,
) -> list[Tensor]:
    """Return what `score_rows` does, of rows that pass at once."""
    known = 0 if cache is None else cache.length
    inputs = [list(row.inputs[known:]) for row in rows]
    lengths = [len(tokens) for tokens in inputs]
    width = max(lengths)
    tokens_BT = _on_device(model, [row + [padding] * (width - len(row)) for row in inputs])
    lengths_B1 = _on_device(model, lengths)[:, None]
    mask_BT = torch.arange(width, device=tokens_BT.device) < lengths_B1
    # What a causal model sees of the padding behind a text is nothing.
    padded = not model.backbone.causal and min(lengths) < width
    positions = [n * width + at - known for n, row in enumerate(rows) for at in row.positions]
    flat_N = _on_device(model, positions)
    target_N = _on_device(model, [token for row in rows for token in row.targets])
    never_V = None if allowed_V is None else ~allowed_V.to(tokens_BT.device)

    def score(logits_RV: Tensor, target_R: Tensor) -> Tensor:
        scores_RV = logits_RV.float().log_softmax(-1)
        target_R1 = scores_RV.gather(1, target_R[:, None])
        if never_V is None:
            return target_R1.squeeze(1)
        best_R = scores_RV.masked_fill(never_V, -torch.inf).argmax(1)
        return torch.cat([target_R1, best_R[:, None]], dim=1)

    def read(whole: TransferModel) -> Tensor:
        states = whole.backbone(tokens_BT, mask_BT, padded=padded, kv_cache=cache)
        top_ND = whole.readout(states).flatten(0, 1).index_select(0, flat_N)
        rows = max(1, CHUNK_ELEMENTS["cpu"] // len(whole.backbone.token_embedding.weight))
        parts = zip(top_ND.split(rows), target_N.split(rows), strict=True)
        return torch.cat([score(token_logits(whole, top_RD), target) for top_RD, target in parts])

    found_N: Tensor = model(read).cpu()
    if found_N.isnan().any():
        raise NotFiniteError("run: its prediction")
    return list(found_N.split([len(row.targets) for row in rows]))


def _common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens that all rows begin with."""
    columns = zip(*rows, strict=False)
    return [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, columns)]


def _on_device(model: TransferModel, values: Sequence[object]) -> Tensor:
    return torch.tensor(values, device=model.backbone.token_embedding.weight.device)
