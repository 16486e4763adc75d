"""Learning-rate multipliers by depth: discriminative rates (Howard and Ruder 2018, section 3.1).

Each is computed once, when the optimizer's groups are built. Dividing the current rate at every
step, as the tutorial's code did, compounds to nothing.
"""

from dataclasses import dataclass
from typing import Protocol


class LayerScale(Protocol):
    """What the multiplier of a layer group is."""

    def __call__(self, depth: int, top: int) -> float:
        """Return the multiplier at `depth`: 0 for the embeddings, `top` for the heads."""


@dataclass(frozen=True)
class Uniform:
    """The same rate everywhere."""

    def __call__(self, depth: int, top: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Geometric:
    """Each group learns `factor` times slower than the one above it.

    Args:
        factor: Ratio of neighbouring groups' rates. The paper has 2.6 for five groups; with 12 to
        16
            blocks that freezes the bottom in practice, and 1.1 to 1.25 is common.
    """

    factor: float = 1.2

    def __post_init__(self) -> None:
        """Raise ValueError where the factor is not positive."""
        if self.factor <= 0:
            raise ValueError(f"factor must be above 0, got {self.factor}")

    def __call__(self, depth: int, top: int) -> float:
        """Return factor^-(top - depth)."""
        return self.factor ** (depth - top)
