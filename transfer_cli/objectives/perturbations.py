"""Perturbed copies of texts, for consistency; the random numbers are those of each example.

Legend: B batch, T positions, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.split import Dataset
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.seeds import ExampleNoise

_BATCH_SIZE = 512


class Perturbation(ABC):
    """A change of a share of a text's tokens, never of special ones.

    Args:
        rate: The share, in (0, 1).
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def setup(self, info: TaskInfo) -> None:
        """Learn which tokens there are."""
        self._ordinary_V = torch.ones(info.vocabulary.size, dtype=torch.bool)
        self._ordinary_V[sorted(info.vocabulary.special)] = False

    def on_data(self, data: Dataset) -> None:  # noqa: B027 - most need none
        """Look at the training examples."""

    def __call__(self, batch: Batch, noise: ExampleNoise) -> tuple[Tensor, Tensor]:
        """Return the tokens and the mask of the perturbed texts, shaped as the batch's."""
        tokens, mask = batch["tokens"], batch["mask"]
        parts, length = tokens[0, ..., 0].numel(), tokens.shape[-1]
        drawn = torch.stack(
            [noise.uniform(batch["index"], length, 2, part=part) for part in range(parts)], 1
        ).view(*tokens.shape, 2)
        changed = self.choose_positions(tokens, mask, drawn[..., 0])
        changed = changed & mask & self._ordinary_V[tokens]
        new = self.new_tokens(drawn[..., 1])
        if new is None:
            return tokens, mask & ~changed
        return torch.where(changed, new, tokens), mask

    def choose_positions(self, tokens: Tensor, mask: Tensor, draw: Tensor) -> Tensor:
        """Return which positions are changed, if their tokens are not special."""
        return draw < self.rate

    @abstractmethod
    def new_tokens(self, draw: Tensor) -> Tensor | None:
        """Return what tokens become, by a number in [0, 1) for each; None: they are left out."""


class Mask(Perturbation):
    """Tokens become the mask token."""

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        if not info.vocabulary.has_mask:
            raise ConfigError(
                f"losses.{info.name}.perturb: this tokenizer has no mask token of its own; take "
                "unigram, tfidf, delete or dropout"
            )
        self._mask = torch.tensor(info.vocabulary.mask)

    def new_tokens(self, draw: Tensor) -> Tensor:
        return self._mask


class Delete(Perturbation):
    """Tokens are left out: later ones move up, since positions count what is there."""

    def new_tokens(self, draw: Tensor) -> None:
        return None


class Unigram(Perturbation):
    """Tokens become others, as often as these occur in the training examples."""

    def on_data(self, data: Dataset) -> None:
        count_V, texts_V = torch.zeros(2, len(self._ordinary_V), dtype=torch.float64)
        for first in range(0, len(data), _BATCH_SIZE):
            batch = data.batch(np.arange(first, min(first + _BATCH_SIZE, len(data))))
            for tokens, mask in zip(batch["tokens"], batch["mask"], strict=True):
                found_V = torch.bincount(tokens[mask], minlength=len(count_V))
                count_V += found_V
                texts_V += found_V > 0
        self._learn(count_V * self._ordinary_V, texts_V * self._ordinary_V, len(data))

    def _learn(self, count_V: Tensor, texts_V: Tensor, texts: int) -> None:
        self._cumulative_V = _cumulative_shares(count_V)

    def new_tokens(self, draw: Tensor) -> Tensor:
        drawn = torch.searchsorted(self._cumulative_V, draw.double(), right=True)
        return drawn.clamp(max=len(self._cumulative_V) - 1)


class TfIdf(Unigram):
    """Tokens that say little become others that say little (UDA; Xie et al. 2019, appendix B).

    A token of a text is replaced with a probability that falls with its TF-IDF, `rate` on average;
    what replaces it is drawn by how far its count times its IDF is below the highest one.
    """

    def _learn(self, count_V: Tensor, texts_V: Tensor, texts: int) -> None:
        self._idf_V = torch.where(texts_V > 0, (texts / texts_V.clamp(min=1)).log(), 0.0).float()
        weight_V = count_V * self._idf_V
        below_V = (weight_V.max() - weight_V) * (count_V > 0)
        # Where all say equally much, as often as they occur.
        self._cumulative_V = _cumulative_shares(below_V if below_V.any() else count_V)

    def choose_positions(self, tokens: Tensor, mask: Tensor, draw: Tensor) -> Tensor:
        real = mask & self._ordinary_V[tokens]
        same = (tokens[..., :, None] == tokens[..., None, :]) & real[..., None, :]
        count = real.sum(-1, keepdim=True).clamp(min=1)
        tfidf = same.sum(-1) / count * self._idf_V[tokens]
        below = torch.where(real, torch.where(real, tfidf, 0).amax(-1, keepdim=True) - tfidf, 0)
        mean = below.sum(-1, keepdim=True) / count
        # Where all say equally much, all are as likely.
        share = torch.where(mean > 0, below / mean.clamp(min=1e-9), 1.0)
        return draw < (self.rate * share).clamp(max=1.0)


def _cumulative_shares(weight_V: Tensor) -> Tensor:
    """Return the upper end, in [0, 1], of each token's part of what is drawn from."""
    total = weight_V.sum()
    if not total:  # all texts are empty
        weight_V, total = torch.ones_like(weight_V), torch.tensor(float(len(weight_V)))
    return weight_V.double().cumsum(0) / total


PERTURBATIONS: dict[str, Callable[[float], Perturbation]] = {
    "mask": Mask, "delete": Delete, "unigram": Unigram, "tfidf": TfIdf,
}  # fmt: skip
