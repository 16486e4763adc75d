"""How our tensors are made of those of a published model, and theirs of ours.

Every rule works both ways without rounding: a model that is read and written again is the same to
the last bit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class Conversion:
    """How a tensor of ours is stored there; by default it is the same, under each of its names."""

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return our tensor."""
        return theirs[0]

    def give(self, ours: Tensor, count: int) -> list[Tensor]:
        """Return their tensors, as many as there are names."""
        return [ours, *(ours.clone() for _ in range(count - 1))]


class Transposed(Conversion):
    """A matrix that is stored with its inputs as rows (GPT-2)."""

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return it transposed."""
        return theirs[0].T.contiguous()

    def give(self, ours: Tensor, count: int) -> list[Tensor]:
        """Return it transposed."""
        return [ours.T.contiguous()]


class Concatenated(Conversion):
    """Several tensors of one size there, concatenated here."""

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return them concatenated."""
        return torch.cat(list(theirs))

    def give(self, ours: Tensor, count: int) -> list[Tensor]:
        """Return them one by one."""
        return [part.contiguous() for part in ours.chunk(count)]


@dataclass(frozen=True)
class FromRow(Conversion):
    """A table of which no token uses the rows before `row` (RoBERTa's positions)."""

    row: int

    def take(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return the rows in use."""
        return theirs[0][self.row :].contiguous()

    def give(self, ours: Tensor, count: int) -> list[Tensor]:
        """Return them below rows of zeros."""
        unused = torch.zeros(self.row, ours.shape[1], dtype=ours.dtype, device=ours.device)
        return [torch.cat([unused, ours])]


SAME = Conversion()


@dataclass(frozen=True)
class Rule:
    """The name of a tensor of ours, the names of those that it is made of, and how."""

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
            Concatenated(),
        )
        for kind in ("weight", "bias")
    ]


def with_prefix(rules: Iterable[Rule], theirs: str, ours: str = "") -> list[Rule]:
    """Return the rules with a prefix before their names there, and here."""
    return [
        replace(r, ours=f"{ours}{r.ours}", theirs=tuple(f"{theirs}{n}" for n in r.theirs))
        for r in rules
    ]


def without_prefix(rules: Iterable[Rule], theirs: str) -> list[Rule]:
    """Return the rules with a prefix removed from their names there, where they have it."""
    return [replace(r, theirs=tuple(n.removeprefix(theirs) for n in r.theirs)) for r in rules]
