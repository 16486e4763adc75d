"""Which of several streams each optimizer step draws: a pure function of (seed, step).

A step takes a batch of one stream, drawn with probability proportional to size^power, so that a
large data set does not drown a small one. There is no state: every process, resumed or not, draws
the same.
"""

from collections.abc import Mapping

import numpy as np

from transfer_cli.errors import at_least
from transfer_cli.seeds import derive

MAIN = "main"
"""The stream of the task that the run is for."""

FIRST_POWER, POWER_FALL = 1.0, 0.8
"""Annealed sampling starts proportional and ends at 0.2 (Stickland and Murray 2019)."""


class Mixture:
    """Draws a stream for each step of a run.

    With a constant power, a longer run begins with the draws of a shorter one, except for the last
    `target_only` steps of the shorter one.

    Args:
        sizes: Examples of each stream, by name; "main" is among them.
        steps_per_epoch: Steps of an epoch of the mixture, for annealing.
        power: 1 draws in proportion to the sizes, 0 all streams equally often, 0.5 in between.
        anneal: Ignore `power`; it falls from 1 in the first epoch to 0.2 in the last:
            1 - 0.8 (e - 1) / (E - 1) in epoch e of E (Stickland and Murray 2019).
        target_only: Number of steps at the end that draw "main" alone.

    Raises:
        ValueError: There is no main stream, a stream is empty, or a number is out of range.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        total: int,
        steps_per_epoch: int,
        seed: int,
        power: float = 0.5,
        anneal: bool = False,
        target_only: int = 0,
    ) -> None:
        if total < 1 or steps_per_epoch < 1:
            raise ValueError(f"a mixture needs steps, got {total} and {steps_per_epoch} an epoch")
        if not 0 <= target_only <= total:
            raise ValueError(
                f"target_only must be from 0 to the run's {total} steps; got {target_only}"
            )
        self.total = total
        # Sorted, so that the order of streams in a config does not matter.
        self._names = tuple(sorted(sizes))
        epochs = -(-total // steps_per_epoch)
        powers = annealed_powers(epochs) if anneal else np.full(epochs, power)
        # The upper end in [0, 1) of the part of each stream but the last, in each epoch.
        shares = [probabilities(sizes, exponent) for exponent in powers]
        limits_ES = np.cumsum([[share[n] for n in self._names] for share in shares], axis=1)[:, :-1]
        generator = np.random.Generator(np.random.Philox(derive(seed, "mixture")))
        draws_N = generator.random(total)
        limits_NS = limits_ES[np.arange(total) // steps_per_epoch]
        self._streams = (draws_N[:, None] >= limits_NS).sum(1).astype(np.int32)
        self._streams[total - target_only :] = self._names.index(MAIN)
        self._visits = np.zeros(total, np.int64)
        for number in range(len(self._names)):
            drawn = self._streams == number
            self._visits[drawn] = np.arange(drawn.sum())

    def draw(self, step: int) -> tuple[str, int]:
        """Return a step's stream and how many earlier steps drew it; steps are counted from 0."""
        if not 0 <= step < self.total:
            raise IndexError(f"step {step} of a mixture for {self.total} steps")
        return self._names[int(self._streams[step])], int(self._visits[step])


def probabilities(sizes: Mapping[str, int], power: float) -> dict[str, float]:
    """Return the probability of each stream: size^power, divided by the sum over streams.

    Raises:
        ValueError: There is no main stream, a stream is empty, or the power is out of range.
    """
    at_least("power", power, 0)
    if MAIN not in sizes:
        raise ValueError(f"a mixture needs the stream {MAIN!r}, got {', '.join(sizes) or 'none'}")
    empty = [name for name, size in sizes.items() if size < 1]
    if empty:
        raise ValueError(f"nothing to draw from in {', '.join(empty)}")
    largest = max(sizes.values())
    # Relative to the largest, or a high power would overflow.
    heights = {name: (size / largest) ** power for name, size in sizes.items()}
    return {name: height / sum(heights.values()) for name, height in heights.items()}


def annealed_powers(epochs: int) -> np.ndarray:
    """Return the power in each epoch; a single epoch has the first power."""
    return FIRST_POWER - POWER_FALL * np.arange(epochs) / max(1, epochs - 1)


def mixture_epoch_steps(
    sizes: Mapping[str, int], main_steps: int, *, power: float = 0.5, anneal: bool = False
) -> int:
    """Return the steps in an epoch of a mixture: as many as pass once over the main data.

    `main_steps` are those of an epoch of the main stream alone. Annealing is counted with the mean
    power, so the result is then approximate. For other arguments and errors see `Mixture`.
    """
    share = probabilities(sizes, FIRST_POWER - POWER_FALL / 2 if anneal else power)[MAIN]
    return max(1, round(main_steps / share))
