"""The states of two models for the same things: for tokens that both read alike, or for texts.

Legend: L states (layer 0 is that of the embeddings), N things, S sequences, T positions, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Subject, spread
from transfer_cli.batch import Batch, real_sequences
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.model.heads import Pooling, pool
from transfer_cli.objectives.base import Encoding

Over = Literal["auto", "tokens", "texts"]

_TOKENS_READ = 4
"""Of so many tokens that are read one is compared, since neighbours say much the same."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ComparedTokens:
    """Tokens drawn from what two models read alike.

    Args:
        rows: The rows of the split that are read.
        places: Of these, which tokens are compared, counted through all in the order of reading.
    """

    rows: Numbers
    places: Numbers

    def states(self, subject: Subject) -> Tensor:
        """Return `[L, N, D]` in float32, on the CPU."""
        found, begun = list[Tensor](), 0
        for _, batch, states in _read(subject, self.rows):
            real_N = batch["mask"].flatten().nonzero().squeeze(1)
            first, last = np.searchsorted(self.places, (begun, begun + len(real_N)))
            chosen = torch.from_numpy(self.places[first:last] - begun).to(real_N.device)
            at_N = real_N[chosen]
            found.append(torch.stack([each.flatten(0, 1)[at_N].float().cpu() for each in states]))
            begun += len(real_N)
        return torch.cat(found, dim=1)


@dataclass(frozen=True)
class ComparedTexts:
    """Texts, by one vector each; of an example with several sequences each is a text.

    Args:
        examples: Their numbers in the split; of a long one its first window is read.
        pooling: How a vector is made of a text's states.
    """

    examples: Numbers
    pooling: Pooling

    def states(self, subject: Subject) -> Tensor:
        """Return `[L, N, D]` in float32, on the CPU."""
        found, numbers = list[Tensor](), list[Tensor]()
        for rows, batch, states in _read(subject, _first_rows(subject)[self.examples]):
            mask_ST = batch["mask"].flatten(0, -2)
            there_S = real_sequences(batch) if batch["mask"].dim() > 2 else slice(None)
            vectors = [pool(each, mask_ST, self.pooling)[there_S].float().cpu() for each in states]
            found.append(torch.stack(vectors))
            of_S = torch.from_numpy(rows).repeat_interleave(len(mask_ST) // len(rows))
            numbers.append(of_S[there_S.cpu() if isinstance(there_S, Tensor) else there_S])
        # Each model reads them from short to long, by its own tokens.
        return torch.cat(found, dim=1)[:, torch.cat(numbers).argsort(stable=True)]


def choose_compared(
    subject: Subject, other: Subject, over: Over, pooling: Pooling, most: int
) -> ComparedTokens | ComparedTexts:
    """Return what two models are compared by: at most so many tokens, or texts."""
    rows = subject.rows_of(subject.split, _TOKENS_READ * most)
    are_alike = _read_alike(subject, other, rows)
    if over == "tokens" and not are_alike:
        raise ConfigError(
            "analysis.similarity.over: the two models do not read these texts as the same tokens; "
            "compare texts (analysis.similarity.over=texts)"
        )
    if are_alike and over != "texts":
        batches = subject.batches_of(subject.split, rows)
        total = sum(int(batch["mask"].sum()) for _, batch in batches)
        drawn = np.random.default_rng(subject.seed).permutation(total)[:most]
        return ComparedTokens(rows, np.sort(drawn))
    if subject.material.task is None and not are_alike:
        raise DataError(
            "data: this is running text, which each of the two models cuts by its own tokens; name "
            "labelled data (data=), or a file of texts (input=)"
        )
    return ComparedTexts(spread(len(_first_rows(subject)), most), pooling)


def _read(subject: Subject, rows: Numbers) -> Iterator[tuple[Numbers, Batch, list[Tensor]]]:
    """Yield numbers, batch and states `[S, T, D]` of some rows."""
    for numbers, batch in subject.read(subject.split, rows):
        yield numbers, batch, list(Encoding(subject.model, batch).states)


def _read_alike(subject: Subject, other: Subject, rows: Numbers) -> bool:
    """Return whether two models read rows as the same tokens."""
    if len(subject.split.data) != len(other.split.data):
        return False
    pairs = zip(
        subject.batches_of(subject.split, rows), other.batches_of(other.split, rows), strict=True
    )
    return all(
        np.array_equal(one, two) and torch.equal(own["tokens"], its["tokens"])
        for (one, own), (two, its) in pairs
    )


def _first_rows(subject: Subject) -> Numbers:
    """Return the first row of each example."""
    data = subject.split.data
    example_of: Numbers = getattr(data, "example_of", np.arange(len(data)))
    return np.unique(example_of, return_index=True)[1]
