"""A range test of the learning rate (Smith 2017, section 3.3), with Ignite's finder.

The rate grows by a constant factor each step until the loss explodes. The suggested rate is the one
at which the loss fell fastest. All layer groups grow together, each at its own scale.
"""

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ignite.engine import Engine, Events
from ignite.handlers import FastaiLRFinder

from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.mixture import Mixture
from transfer_cli.engine.loop import Progress, build_trainer, report_of
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import TrainStep
from transfer_cli.errors import DivergedError, RunError
from transfer_cli.optim.schedules import LRScheduler, Schedule, StagePlan

log = logging.getLogger(__name__)

FEWEST_STEPS = 10
"""With fewer, the rate grows too much in a step for a slope."""


class ExponentialGrowth(Schedule):
    """A rate, not a multiplier, that grows by a constant factor each step."""

    def __init__(self, start: float, end: float) -> None:
        super().__init__()
        self.start = start
        self.end = end

    def decay(self, step: float, warmup: int, total: int) -> float:
        """Return start x (end / start)^((s + 1) / S), the rate of Ignite's finder."""
        return self.start * math.pow(self.end / self.start, (step + 1) / total)


@dataclass(frozen=True)
class RangeTest:
    """The results of a range test: rates of a layer group of scale 1, losses in nats a target."""

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    exploded: bool


def run_range_test(
    step: TrainStep,
    streams: Mapping[str, Stream],
    growth: ExponentialGrowth,
    steps: int,
    *,
    frozen_eval: bool,
    micro_batch: int,
    mixture: Mixture | None = None,
    attach: Callable[[Engine], None] = lambda trainer: None,
) -> RangeTest:
    """Let the rate grow until the loss explodes; then restore the model and the optimizer.

    Every parameter that trains in any stage of the run trains from the first step on. The run's
    step keeps the stages and rates of the test; short streams are repeated. `attach` adds handlers
    to the engine, such as a progress bar.
    """
    step.stages = Stages(
        step.model, [StagePlan(0, steps, step.stages.ever_trains)], frozen_eval=frozen_eval
    )
    # The step sets its rates, as in any run; those of the finder are the same.
    step.lr_scheduler = LRScheduler(1.0, growth, steps)
    scales = [group["scale"] for group in step.optimizer.param_groups]
    trainer = build_trainer(step, Progress())
    losses: list[float] = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine: Engine) -> None:
        loss = float(report_of(engine).total)
        if math.isfinite(loss):
            losses.append(loss)
        else:
            engine.terminate()

    attach(trainer)
    finder = FastaiLRFinder()
    with warnings.catch_warnings():
        # It warns if the loss does not explode, which is reported elsewhere.
        warnings.simplefilter("ignore", UserWarning)
        # The loss has exploded at this multiple of its best value (fast.ai's figure).
        exploded = 4.0
        # Weight of the newest loss in the running average that is tested for an explosion.
        weight_of_newest = 0.3
        with finder.attach(
            trainer,
            {"model": step.model, "optimizer": step.optimizer},
            output_transform=lambda report: float(report.total),
            start_lr=[growth.start * scale for scale in scales],
            end_lr=[growth.end * scale for scale in scales],
            smooth_f=weight_of_newest,
            diverge_th=exploded,
        ):
            try:
                # Streams have no end; the test ignores the epochs of the run.
                loader = StepDataLoader(streams, micro_batch, lambda: 0, mixture)
                trainer.run(loader, max_epochs=1, epoch_length=steps)
            except DivergedError:
                log.info("the gradient is not finite from step %d on", len(losses) + 1)
    rates = [growth(number, steps) for number in range(len(losses))]
    if len(losses) < FEWEST_STEPS:
        raise RunError(
            f"lr_find.start: the loss exploded at step {len(losses) + 1} already, at the rate "
            f"{growth(len(losses), steps):.2g}; lower lr_find.start, or take precision=fp32"
        )
    return RangeTest(rates, losses, smooth_losses(losses), exploded=len(losses) < steps)


def smooth_losses(losses: Sequence[float]) -> list[float]:
    """Return the losses, each averaged with its neighbours on both sides.

    A running average, as in Ignite, would lag: it shows at a rate the losses of smaller ones.
    """
    # Standard deviation of the Gaussian that smooths the curve, as a share of its steps.
    steps_smoothed = 0.03
    width = max(1.0, steps_smoothed * len(losses))
    places = np.arange(len(losses))
    weights = np.exp(-0.5 * ((places[:, None] - places[None]) / width) ** 2)
    averaged: list[float] = (weights @ np.asarray(losses) / weights.sum(1)).tolist()
    return averaged


def steepest_step(seen: RangeTest) -> int:
    """Return the step at which the smoothed loss falls fastest, before it is lowest."""
    smoothed = np.asarray(seen.smoothed)
    lowest = int(smoothed.argmin())
    # Beyond the lowest loss the curve rises, which is not noise; a median ignores outliers.
    noise = np.median(np.abs(np.asarray(seen.losses) - smoothed)[: lowest + 1])
    # The loss is falling if it falls by this multiple of its median distance from the curve.
    certain = 3.0
    if lowest < 2 or smoothed[0] - smoothed[lowest] <= certain * noise:
        raise RunError(
            f"no rate can be suggested: between {seen.rates[0]:.2g} and {seen.rates[-1]:.2g} the "
            "loss does not fall; give more lr_find.steps, another range by lr_find.start and "
            "lr_find.end, or a larger loop.batch"
        )
    return int(np.gradient(smoothed)[: lowest + 1].argmin())
