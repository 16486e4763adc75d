"""Learning-rate multipliers as pure functions of the step.

A schedule has no state: the same step always gives the same multiplier, so a resumed run needs no
scheduler state. Steps are optimizer steps, counted from 0; `total` is the number of steps of the
run. `LRScheduler` multiplies it with the other factors (depth, stage).

A run that is bounded by time has its whole course in that time: where more of its time is used than
of its steps, it is as far as its time is. Only a warm-up that is given in steps counts those taken.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch.optim import Optimizer

from transfer_cli.errors import at_least, check_share


class Schedule(ABC):
    """A linear warm-up, then a decay.

    The first step has the multiplier 1 / warm-up steps, the last step of the warm-up has 1.

    Args:
        warmup: Number of warm-up steps if 1 or more, else a share of the run.
    """

    def __init__(self, warmup: float = 0.0) -> None:
        at_least("warmup", warmup, 0)
        self.warmup = warmup

    def __call__(self, step: int, total: int, time_used: float = 0.0) -> float:
        """Return the multiplier of the step about to be taken, in [0, 1].

        Args:
            time_used: The share of the run's time that is used; 0 for a run without a limit.
        """
        warmup, position = self.warmup_steps(total), schedule_position(step, total, time_used)
        warmed = step if self.warmup >= 1 else position
        if warmed < warmup:
            return min(1.0, (warmed + 1) / warmup)
        return self.decay(position, warmup, total)

    def warmup_steps(self, total: int) -> int:
        """Return the number of warm-up steps."""
        return int(self.warmup) if self.warmup >= 1 else int(self.warmup * total)

    @abstractmethod
    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return the multiplier of a step after the warm-up; 0 or the floor from `total` on.

        Where time decides how far the run is, the step is a fraction.
        """


def schedule_position(step: int, total: int, time_used: float) -> float:
    """Return how far a run is in steps: at `step`, or as far as its time where that is farther."""
    return max(step, time_used * total)


class Constant(Schedule):
    """1 after the warm-up."""

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return 1."""
        return 1.0


class Linear(Schedule):
    """A linear decay to 0 at the end of the run."""

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return (S - s) / (S - w)."""
        return max(0.0, (total - step) / max(1, total - warmup))


class Trapezoid(Schedule):
    """1 after the warm-up, then a linear decay to 0 in the last part of the run.

    Also known as warmup-stable-decay (WSD; Hu et al. 2024, arXiv 2404.06395): a checkpoint from
    before the fall can be trained for longer.

    Args:
        fall: The share of the run in which the multiplier decays, in (0, 1].
    """

    def __init__(self, warmup: float = 0.0, fall: float = 0.4) -> None:
        super().__init__(warmup)
        if not 0 < fall <= 1:
            raise ValueError(f"fall must be in (0, 1], got {fall}")
        self.fall = fall

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return (S - s) / (fall S), at most 1."""
        return min(1.0, max(0.0, (total - step) / (self.fall * total)))


class Cosine(Schedule):
    """Half a cosine from 1 to a floor (Loshchilov and Hutter 2017), after the warm-up."""

    def __init__(self, warmup: float = 0.0, floor: float = 0.0) -> None:
        super().__init__(warmup)
        if not 0 <= floor <= 1:
            raise ValueError(f"floor must be between 0 and 1, got {floor}")
        self.floor = floor

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return r + (1 - r) (1 + cos(pi p)) / 2 at progress p."""
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class InverseSqrt(Schedule):
    """Decay with the inverse square root of the step (Vaswani et al. 2017, section 5.3)."""

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return sqrt(w / (s + 1)); no warm-up counts as one step."""
        return math.sqrt(max(1, warmup) / (step + 1))


class Slanted(Schedule):
    """Short linear increase, long linear decay (Howard and Ruder 2018, section 3.2, equation 3).

    Args:
        cut: The share of the run in which the multiplier increases, in (0, 1).
        ratio: The highest multiplier, 1, divided by the lowest.
    """

    def __init__(self, cut: float = 0.1, ratio: float = 32.0) -> None:
        super().__init__()
        check_share("cut", cut)
        at_least("ratio", ratio, 1)
        self.cut = cut
        self.ratio = ratio

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return (1 + p (ratio - 1)) / ratio, p rising to 1 at the cut, then falling to 0."""
        peak = max(1, int(total * self.cut))
        # The paper divides by peak * (1 / cut - 1); with a rounded peak that misses the end.
        height = step / peak if step < peak else 1 - (step - peak) / max(1, total - peak)
        return (1 + max(0.0, height) * (self.ratio - 1)) / self.ratio


@dataclass(frozen=True)
class StagePlan:
    """The steps from `begin`, counted from 0, up to `end`, and the parameters that train then.

    Args:
        rate: Multiplies every learning rate.
        patience: See `adaptation.plans.Stage`.
    """

    begin: int
    end: int
    trains: frozenset[str]
    rate: float = 1.0
    patience: int | None = None


@dataclass(frozen=True)
class LRScheduler:
    """Sets `lr` = base_lr x layer scale x stage's factor x schedule in every parameter group.

    Unlike torch's `LRScheduler` it has no state: the step number decides. The `lr` that torch's
    optimizer was built with is overwritten before each step.

    Args:
        base_lr: The optimizer's `lr` in the config.
        per_stage: Whether the schedule restarts with each stage and spans only that stage.
    """

    base_lr: float
    schedule: Schedule
    total: int
    per_stage: bool = False

    def get_lr(self, step: int, stage: StagePlan, time_used: float = 0.0) -> float:
        """Return the learning rate of a parameter group whose layer scale is 1.

        `time_used` is the share of the run's time that is used.
        """
        begin, end = (stage.begin, stage.end) if self.per_stage else (0, self.total)
        return self.base_lr * stage.rate * self.schedule(step - begin, end - begin, time_used)

    def set_lr(
        self, optimizer: Optimizer, step: int, stage: StagePlan, time_used: float = 0.0
    ) -> None:
        """Set the learning rate of every parameter group, which has its layer scale as `scale`."""
        now = self.get_lr(step, stage, time_used)
        for group in optimizer.param_groups:
            group["lr"] = now * group["scale"]
