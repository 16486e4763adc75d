"""Learning-rate multipliers by depth: discriminative fine-tuning (Howard and Ruder 2018, 3.2).

Each is computed once, when the parameter groups are built. Dividing the current learning rate at
every step, as the tutorial's code did, compounds to nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from transfer_cli.errors import above_zero, did_you_mean


class LayerScale(Protocol):
    """The learning-rate multiplier of each layer group.

    A scale that depends on names may also have a method `check(names)`. It is called once with the
    names of all groups, and raises ValueError where they do not fit.
    """

    def __call__(self, name: str, depth: int, top: int) -> float:
        """Return the multiplier of the layer group `name`.

        Args:
            name: "embeddings", "block.0", ..., "head.class".
            depth: 0 for the embeddings, `top` for the heads and added modules.
            top: The largest depth.
        """


@dataclass(frozen=True)
class Uniform:
    """The same learning rate everywhere."""

    def __call__(self, name: str, depth: int, top: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Geometric:
    """Each group learns `factor` times slower than the one above it.

    Args:
        factor: Ratio of neighbouring groups' learning rates. The paper has 2.6 for five groups;
            with 12 to 16 blocks that freezes the bottom in practice, and 1.1 to 1.25 is common.
    """

    factor: float = 1.2

    def __post_init__(self) -> None:
        above_zero("factor", self.factor)

    def __call__(self, name: str, depth: int, top: int) -> float:
        """Return factor^-(top - depth)."""
        return self.factor ** (depth - top)


@dataclass(frozen=True)
class PerGroup:
    """One multiplier for each pattern of group names, 1 for all other groups.

    Args:
        rates: Multipliers by pattern of group names, for example `block.1*`; the first pattern that
            matches counts.
    """

    rates: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError("rates must give at least one, for example {embeddings: 0.1}")
        for pattern, rate in self.rates.items():
            if not 0 < rate < float("inf"):
                raise ValueError(
                    f"rates.{pattern} must be above 0, got {rate}; a plan says what is frozen"
                )

    def __call__(self, name: str, depth: int, top: int) -> float:
        """Return the multiplier of the first pattern that matches the name."""
        rates = (rate for pattern, rate in self.rates.items() if fnmatchcase(name, pattern))
        return next(rates, 1.0)

    def check(self, names: Sequence[str]) -> None:
        """Raise ValueError if a pattern matches no group name."""
        for pattern in self.rates:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"rates.{pattern} matches no layer group.{did_you_mean(pattern, names)} "
                    f"The groups are {', '.join(names)}"
                )
