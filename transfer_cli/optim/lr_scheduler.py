"""The learning rate of every parameter group at every step."""

from dataclasses import dataclass

from torch.optim import Optimizer

from transfer_cli.optim.schedules import Schedule


@dataclass(frozen=True)
class LRScheduler:
    """Sets `lr` = base_lr x layer scale x stage's factor x schedule in every parameter group.

    Unlike torch's `LRScheduler` it has no state: the step number decides. The `lr` that torch's
    optimizer was built with is overwritten before each step.

    Args:
        base_lr: The optimizer's `lr` in the config.
        schedule: The multiplier over time.
        total: Steps of the run.
        per_stage: Whether the schedule restarts with each stage and spans only that stage.
    """

    base_lr: float
    schedule: Schedule
    total: int
    per_stage: bool = False

    def get_lr(
        self, step: int, *, begin: int, end: int, factor: float = 1.0, time_used: float = 0.0
    ) -> float:
        """Return the learning rate of a parameter group whose layer scale is 1.

        Steps count from 0; those of the current stage are `begin` to `end - 1`, with its factor.
        `time_used` is the share of the run's time that is used.
        """
        if not self.per_stage:
            begin, end = 0, self.total
        return self.base_lr * factor * self.schedule(step - begin, end - begin, time_used)

    def set_lr(
        self,
        optimizer: Optimizer,
        step: int,
        *,
        begin: int = 0,
        end: int | None = None,
        factor: float = 1.0,
        time_used: float = 0.0,
    ) -> None:
        """Set the learning rate of every parameter group, which has its layer scale as `scale`.

        The arguments are those of `get_lr`; by default there is one stage, the run.
        """
        end = end or self.total
        now = self.get_lr(step, begin=begin, end=end, factor=factor, time_used=time_used)
        for group in optimizer.param_groups:
            group["lr"] = now * group["scale"]
