"""The Ignite engine around the step.

One iteration is one optimizer step: rates, stages, evaluations, checkpoints and records all depend
on the iteration number.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ignite.engine import Engine, Events

from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.mixture import MAIN, Mixture
from transfer_cli.engine import distributed
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import StepReport, TrainStep


@dataclass
class Progress:
    """The progress of a run; part of every checkpoint.

    Args:
        flops: Floating-point operations of the steps, of all processes, as of the last save.
        flops_real: The same without padding (`engine.cost.Flops`).
        seconds: Spent training and evaluating, before and after every resume.
        best: The best value of the monitored measure; None before the first evaluation.
        waited: Evaluations since the best value was reached.
    """

    step: int = 0
    tokens: int = 0
    examples: int = 0
    flops: int = 0
    flops_real: int = 0
    seconds: float = 0.0
    skipped: int = 0
    best: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    waited: int = 0
    measures: dict[str, float] = field(default_factory=dict)

    def has_ended(
        self, total_steps: int, stages: Stages, patience: int | None, minutes: float | None
    ) -> bool:
        """Return whether training is over: all steps are taken, or time or patience ran out."""
        gave_up = patience is not None and self.waited >= patience
        time_is_up = minutes is not None and self.seconds >= 60 * minutes
        return gave_up or time_is_up or self.step >= total_steps or stages.is_exhausted

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        for name, value in state.items():
            now = getattr(self, name)
            if not isinstance(value, type(now)) and not (now is None and type(value) is float):
                raise TypeError(f"progress.{name} is {value!r}")
        vars(self).update(state)


def build_trainer(step: TrainStep, progress: Progress) -> Engine:
    """Return an engine whose every iteration takes one optimizer step and counts it."""
    trainer = Engine(lambda engine, micro_batches: step(micro_batches, engine.state.iteration - 1))
    trainer.logger.setLevel(logging.CRITICAL)  # an error is reported once, by the command

    @trainer.on(Events.ITERATION_COMPLETED)
    def count(engine: Engine) -> None:
        report = report_of(engine)
        progress.step = engine.state.iteration
        progress.tokens += report.tokens
        progress.examples += report.examples
        progress.skipped += report.skipped

    return trainer


def report_of(engine: Engine) -> StepReport:
    """Return the report of the engine's last step."""
    report: StepReport = engine.state.output  # type: ignore[assignment]
    return report


def run_trainer(
    trainer: Engine,
    streams: Mapping[str, Stream],
    *,
    micro_batch: int,
    total_steps: int,
    start_step: int,
    epoch_length: int | None = None,
    mixture: Mixture | None = None,
) -> None:
    """Train from `start_step` until `total_steps` steps are taken or the engine is terminated.

    By default an epoch has the steps of the main stream, and every step draws that stream.
    """
    if epoch_length is None:
        epoch_length = streams[MAIN].sampler.steps_per_epoch
    if start_step:
        trainer.load_state_dict(
            {"iteration": start_step, "max_iters": total_steps, "epoch_length": epoch_length}
        )
    if start_step >= total_steps:
        # It ended after its last step and before its final evaluation; Ignite would begin again.
        trainer.fire_event(Events.COMPLETED)
        return
    loader = StepDataLoader(
        streams,
        micro_batch,
        lambda: trainer.state.iteration,
        mixture,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
    )
    trainer.run(loader, max_iters=total_steps, epoch_length=epoch_length)
