"""How much a loss counts at each step, as a pure function of the step."""

from typing import Protocol

from transfer_cli.errors import above_zero
from transfer_cli.lengths import Length


class LossWeight(Protocol):
    """The weight of a loss as a function of the step."""

    def __call__(self, step: int, total: int, steps_per_epoch: int) -> float:
        """Return the weight at a step.

        Args:
            step: Counted from 0.
            total: Steps of the run.
            steps_per_epoch: Steps of one epoch of the main stream.
        """


class Annealed:
    """A geometric fall from one weight to another, then constant.

    start * (end / start)^(e / (E - 1)), which reaches `end` in the last of E epochs, e being the
    number of the epoch from 0 (Chronopoulou et al. 2019; their released values are 0.2 to 0.1).
    With a length in steps, or a share of the run, e and E count steps instead of epochs.

    Args:
        start: The first weight, above 0.
        end: The last weight, above 0; it may exceed `start`.
        over: Duration of the change: "15 epochs", "500 steps", or "rest" for the whole run.
    """

    def __init__(self, start: float, end: float, over: str) -> None:
        for name, value in (("start", start), ("end", end)):
            above_zero(name, value)
        self.start = start
        self.end = end
        self.over = Length.parse(over)
        if self.over.unit == "epochs" and self.over.amount is not None and self.over.amount < 2:
            raise ValueError(
                f"over must be 2 epochs or more, got {over!r}: the weight changes between epochs; "
                "for a change within one write a number of steps"
            )

    def __call__(self, step: int, total: int, steps_per_epoch: int) -> float:
        """Return the weight at a step, from `start` to `end`."""
        if self.over.unit == "epochs" and self.over.amount is not None:
            done, last = step // steps_per_epoch, self.over.amount - 1
        else:
            steps = self.over.resolve(steps_per_epoch, total, 1)
            done, last = step, max(1, (total if steps is None else steps) - 1)
        # Exactly `end`: the power misses it in the last digit.
        if done >= last:
            return self.end
        return float(self.start * (self.end / self.start) ** (done / last))
