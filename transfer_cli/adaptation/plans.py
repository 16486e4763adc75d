"""Which weights train, and until when: plans are pure functions from layer groups to stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transfer_cli.lengths import Length
from transfer_cli.model.transfer_model import LayerGroup


@dataclass(frozen=True)
class Stage:
    """A stretch of a run in which the same weights train.

    Args:
        train: Patterns of what trains (see `selection`).
        length: How long; the last stage takes the rest of the run.
    """

    train: tuple[str, ...]
    length: Length


class Plan(Protocol):
    """What a preset's `plan` is."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return the stages in order; at least one."""


@dataclass(frozen=True)
class AllAtOnce:
    """Everything trains from the first step on."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage of all groups."""
        return [Stage(("*",), Length(None))]


@dataclass(frozen=True)
class Only:
    """What the patterns select trains; the rest keeps its loaded value, bit for bit.

    Args:
        train: Patterns, for example `head.*` or `block.11` or `block.*/*norm*`.
    """

    train: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ValueError where nothing is named."""
        if not self.train:
            raise ValueError("train must name at least one pattern, for example 'head.*'")

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage."""
        return [Stage(tuple(self.train), Length(None))]
