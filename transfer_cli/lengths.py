"""Lengths of training as people say them: "500 steps", "1 epoch", "rest"."""

import math
import re
from dataclasses import dataclass

_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(steps?|epochs?)\s*")


@dataclass(frozen=True)
class Length:
    """A number of steps or epochs, or whatever is left of the run.

    Args:
        amount: How many units; None for the rest of the run.
        unit: "steps" or "epochs".
    """

    amount: float | None
    unit: str = "steps"

    @classmethod
    def parse(cls, text: str) -> "Length":
        """Read "500 steps", "1 epoch", "0.5 epochs" or "rest".

        Raises:
            ValueError: The text says something else, or an amount that is no positive number.
        """
        if text.strip() == "rest":
            return cls(None)
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no length: write it as '500 steps' or '1 epoch'")
        amount, unit = float(match[1]), match[2].rstrip("s") + "s"
        if amount <= 0 or (unit == "steps" and amount != int(amount)):
            raise ValueError(f"{text!r} is no length: steps are whole and above 0, epochs above 0")
        return cls(amount, unit)

    def steps(self, steps_per_epoch: int) -> int | None:
        """Return the length in optimizer steps, at least 1; None for the rest of the run."""
        if self.amount is None:
            return None
        if self.unit == "steps":
            return int(self.amount)
        return max(1, math.ceil(self.amount * steps_per_epoch - 1e-9))
