"""Lengths of training as people say them: "500 steps", "1 epoch", "20%", "auto", "rest"."""

import math
import re
from dataclasses import dataclass
from typing import Literal

Unit = Literal["steps", "epochs", "share", "auto"]

_COUNTED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(steps?|epochs?)\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")

_SLACK = 1e-9
"""So that 29 % of 100 steps, 28.999999999999996 in floating point, are 29."""


@dataclass(frozen=True)
class Length:
    """A number of steps or epochs, a part of a run, or whatever is left of it.

    Args:
        amount: How many units, and how much of the run for a share, in (0, 1]; None for the rest of
            the run and for an equal share.
        unit: "steps", "epochs", "share" (of the run's steps), or "auto": an equal share for each of
            the run's stages.
    """

    amount: float | None
    unit: Unit = "steps"

    @classmethod
    def parse(cls, text: str) -> "Length":
        """Read "500 steps", "1 epoch", "0.5 epochs", "20%", "auto" or "rest".

        Raises:
            ValueError: The text says something else, or an amount that is no positive number.
        """
        word = text.strip()
        if word in ("rest", "auto"):
            return cls(None, "steps" if word == "rest" else "auto")
        share = _SHARE.fullmatch(text)
        if share is not None:
            return cls._share(float(share[1]), text)
        match = _COUNTED.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no length: write it as '500 steps', '1 epoch', '20%' or 'auto'"
            )
        amount, unit = float(match[1]), match[2].rstrip("s")
        if amount <= 0 or (unit == "step" and amount != int(amount)):
            raise ValueError(f"{text!r} is no length: steps are whole and above 0, epochs above 0")
        return cls(amount, "steps" if unit == "step" else "epochs")

    @classmethod
    def parse_rhythm(cls, text: str) -> "Length":
        """Read how often something happens: "500 steps" or "1 epoch", and nothing else.

        Raises:
            ValueError: The text says something else.
        """
        if _COUNTED.fullmatch(text) is None:
            raise ValueError(f"{text!r} is no length: write it as '500 steps' or '1 epoch'")
        return cls.parse(text)

    @classmethod
    def _share(cls, percent: float, text: str) -> "Length":
        if not 0 < percent <= 100:
            raise ValueError(f"{text!r} is no length: a share is above 0% and at most 100%")
        return cls(percent / 100, "share")

    def steps(self, steps_per_epoch: int) -> int | None:
        """Return the length in optimizer steps, at least 1; None for the rest of the run.

        Raises:
            ValueError: It is a share, which only a run of known length has (see `resolve`).
        """
        if self.unit in ("share", "auto"):
            raise ValueError("a share of a run has no length of its own; use resolve")
        if self.amount is None:
            return None
        if self.unit == "steps":
            return int(self.amount)
        return max(1, math.ceil(self.amount * steps_per_epoch - _SLACK))

    def resolve(self, steps_per_epoch: int, total: int, stages: int) -> int | None:
        """Return a stage's length in optimizer steps, at least 1; None for the rest of the run.

        Shares are rounded down, so that together they never exceed the run.

        Args:
            steps_per_epoch: Of the run's data.
            total: Steps of the run.
            stages: Stages that the run is divided into.
        """
        if self.unit == "auto":
            return max(1, total // stages)
        if self.unit == "share" and self.amount is not None:
            return max(1, math.floor(self.amount * total + _SLACK))
        return self.steps(steps_per_epoch)
