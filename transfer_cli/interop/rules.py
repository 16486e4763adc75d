"""How our tensors are made of the tensors of a published model, and the other way round.

Every rule works both ways without rounding, so that a model that was read and written again is the
same to the last bit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class Conversion(Protocol):
    """How numbers are arranged there, as seen from here."""

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return our tensor."""

    def give(self, ours: Tensor) -> list[Tensor]:
        """Return their tensors."""


class Same:
    """One tensor, the same in both models."""

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return it."""
        return theirs[0]

    def give(self, ours: Tensor) -> list[Tensor]:
        """Return it."""
        return [ours]


class Copied:
    """One tensor here that stands there under several names."""

    def __init__(self, names: int) -> None:
        self.names = names

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return the first, the one in use."""
        return theirs[0]

    def give(self, ours: Tensor) -> list[Tensor]:
        """Return it as often as it is there."""
        return [ours.clone() for _ in range(self.names)]


class Transposed:
    """A matrix that stands there with its inputs as rows (GPT-2)."""

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return it turned."""
        return theirs[0].T.contiguous()

    def give(self, ours: Tensor) -> list[Tensor]:
        """Return it turned."""
        return [ours.T.contiguous()]


@dataclass(frozen=True)
class Concatenated:
    """Several tensors of one size there that are one here, one below the other."""

    parts: int

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return all of them."""
        return torch.cat(list(theirs))

    def give(self, ours: Tensor) -> list[Tensor]:
        """Return its parts."""
        return [part.contiguous() for part in ours.chunk(self.parts)]


@dataclass(frozen=True)
class FromRow:
    """A table whose first rows there no token ever uses (RoBERTa's positions); `row` is in use."""

    row: int

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return the rows in use."""
        return theirs[0][self.row :].contiguous()

    def give(self, ours: Tensor) -> list[Tensor]:
        """Return them below rows of zeros."""
        unused = torch.zeros(self.row, ours.shape[1], dtype=ours.dtype, device=ours.device)
        return [torch.cat([unused, ours])]


SAME = Same()


@dataclass(frozen=True)
class Rule:
    """One tensor of ours, the names of what it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    conversion: Conversion = SAME


def same(ours: str, theirs: str, *kinds: str) -> list[Rule]:
    """Return the rules of a module whose tensors have the same names and values in both models."""
    return [Rule(f"{ours}.{kind}", (f"{theirs}.{kind}",)) for kind in kinds or ("weight", "bias")]


def packed_attention(query: str, key: str, value: str) -> list[Rule]:
    """Return the rules of a block's queries, keys and values: three layers there, one here."""
    return [
        Rule(
            f"attention.packed.{kind}",
            tuple(f"{part}.{kind}" for part in (query, key, value)),
            Concatenated(3),
        )
        for kind in ("weight", "bias")
    ]


def with_prefix(rules: Iterable[Rule], theirs: str, ours: str = "") -> list[Rule]:
    """Return the rules with something before their names."""
    return [
        replace(r, ours=f"{ours}{r.ours}", theirs=tuple(f"{theirs}{n}" for n in r.theirs))
        for r in rules
    ]


def without_prefix(rules: Iterable[Rule], theirs: str) -> list[Rule]:
    """Return the rules without what stands before their names there, where it does."""
    return [replace(r, theirs=tuple(n.removeprefix(theirs) for n in r.theirs)) for r in rules]
