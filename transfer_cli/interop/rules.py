"""How our tensors are made of those of a published model, and theirs of ours.

Every rule works both ways without rounding: a model that is read and written again is the same to
the last bit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


class Conversion(NamedTuple):
    """How a tensor of ours is stored there.

    Args:
        to_ours: Returns our tensor, made of theirs.
        to_theirs: Returns their tensors, as many as there are names.
    """

    to_ours: Callable[[Sequence[Tensor]], Tensor]
    to_theirs: Callable[[Tensor, int], list[Tensor]]


SAME = Conversion(
    lambda theirs: theirs[0], lambda ours, count: [ours, *(ours.clone() for _ in range(count - 1))]
)
"""The same tensor, under each of its names."""

TRANSPOSED = Conversion(
    lambda theirs: theirs[0].T.contiguous(), lambda ours, _: [ours.T.contiguous()]
)
"""A matrix that is stored with its inputs as rows (GPT-2)."""

CONCATENATED = Conversion(
    lambda theirs: torch.cat(list(theirs)),
    lambda ours, count: [part.contiguous() for part in ours.chunk(count)],
)
"""Several tensors of one size there, concatenated here."""


def stacked(rows: Sequence[int]) -> Conversion:
    """Return the conversion of tensors with so many rows each there, one above the other here."""
    return Conversion(
        CONCATENATED.to_ours, lambda ours, _: [part.contiguous() for part in ours.split(list(rows))]
    )


def by_head(heads: int) -> Conversion:
    """Return the conversion of queries, keys and values that are stored head by head (GPT-NeoX)."""

    def swapped(rows: Tensor, first: int, second: int) -> Tensor:
        parts: Tensor = rows.unflatten(0, (first, second, -1))
        return parts.transpose(0, 1).flatten(0, 2).contiguous()

    return Conversion(
        lambda theirs: swapped(theirs[0], heads, 3), lambda ours, _: [swapped(ours, 3, heads)]
    )


def skip_rows(row: int) -> Conversion:
    """Return the conversion of a table whose rows before `row` no token uses (RoBERTa's positions).

    There they are zeros.
    """
    return Conversion(
        lambda theirs: theirs[0][row:].contiguous(),
        lambda ours, _: [torch.cat([ours.new_zeros(row, ours.shape[1]), ours])],
    )


@dataclass(frozen=True)
class Rule:
    """The name of a tensor of ours, the names of those that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    conversion: Conversion = SAME


def copy_rules(ours: str, theirs: str, *kinds: str) -> list[Rule]:
    """Return the rules of a module whose tensors have the same names and values in both models."""
    return [Rule(f"{ours}.{kind}", (f"{theirs}.{kind}",)) for kind in kinds or ("weight", "bias")]


def with_prefix(rules: Iterable[Rule], theirs: str, ours: str = "") -> list[Rule]:
    """Return the rules with a prefix before their names there, and here."""
    return [
        replace(r, ours=f"{ours}{r.ours}", theirs=tuple(f"{theirs}{n}" for n in r.theirs))
        for r in rules
    ]


def without_prefix(rules: Iterable[Rule], theirs: str) -> list[Rule]:
    """Return the rules with a prefix removed from their names there, where they have it."""
    return [replace(r, theirs=tuple(n.removeprefix(theirs) for n in r.theirs)) for r in rules]
