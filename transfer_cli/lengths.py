"""Lengths of training as text: "500 steps", "1 epoch", "20%", "auto", "rest"."""

import math
import re
from dataclasses import dataclass
from typing import Literal

Unit = Literal["steps", "epochs", "share", "auto"]

_COUNTED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(steps?|epochs?)\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")

MAX_COUNT = 2**31
"""Bound of what is counted: steps, examples of a batch, evaluations."""

_SLACK = 1e-9
"""29 % of 100 steps is 28.999999999999996 in floating point, and must give 29."""


@dataclass(frozen=True)
class Length:
    """A number of steps or epochs, a share of a run, or its remainder.

    Args:
        amount: Number of steps or epochs, or a share in (0, 1]; None for the remainder of the run
            and for "auto".
        unit: "steps", "epochs", "share" (of the run's steps), or "auto": the same length for all
            stages of the run.
    """

    amount: float | None
    unit: Unit = "steps"

    @classmethod
    def parse(cls, text: str) -> "Length":
        """Read "500 steps", "1 epoch", "0.5 epochs", "20%", "auto" or "rest".

        Raises:
            ValueError: The text has another form, or its amount is not positive.
        """
        word = text.strip()
        if word in ("rest", "auto"):
            return cls(None, "steps" if word == "rest" else "auto")
        share = _SHARE.fullmatch(text)
        if share is not None:
            percent = float(share[1])
            if not 0 < percent <= 100:
                raise ValueError(f"{text!r} is no length: a share is above 0% and at most 100%")
            return cls(percent / 100, "share")
        match = _COUNTED.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no length: write it as '500 steps', '1 epoch', '20%' or 'auto'"
            )
        amount, unit = float(match[1]), match[2].rstrip("s")
        if amount > MAX_COUNT:
            raise ValueError(f"{text[:40]!r} is longer than any run: at most {MAX_COUNT:,} {unit}s")
        if amount <= 0 or (unit == "step" and amount != int(amount)):
            raise ValueError(f"{text!r} is no length: steps are whole and above 0, epochs above 0")
        return cls(amount, "steps" if unit == "step" else "epochs")

    @classmethod
    def parse_interval(cls, text: str) -> "Length":
        """Read an interval: "500 steps" or "1 epoch"."""
        if _COUNTED.fullmatch(text) is None:
            raise ValueError(f"{text!r} is no length: write it as '500 steps' or '1 epoch'")
        return cls.parse(text)

    def steps(self, steps_per_epoch: int) -> int | None:
        """Return optimizer steps, at least 1, of a length that is no share; None for the rest."""
        if self.unit in ("share", "auto"):
            raise ValueError("a share needs the length of the run; use resolve")
        if self.amount is None:
            return None
        if self.unit == "steps":
            return int(self.amount)
        return max(1, math.ceil(self.amount * steps_per_epoch - _SLACK))

    def resolve(self, steps_per_epoch: int, total: int, stages: int) -> int | None:
        """Return a stage's length in optimizer steps, at least 1; None for the rest of the run.

        Shares are rounded down, so that their sum never exceeds the run.
        """
        if self.unit == "auto":
            return max(1, total // stages)
        if self.unit == "share" and self.amount is not None:
            return max(1, math.floor(self.amount * total + _SLACK))
        return self.steps(steps_per_epoch)
