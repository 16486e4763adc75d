"""A range test of the learning rate (Smith 2017, section 3.3), by Ignite's finder.

The rate grows by a constant factor from step to step until the loss explodes. A rate is then
suggested from where the loss fell fastest. All layer groups grow together, each at its own scale,
so what is found for one is found for all.
"""

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ignite.engine import Engine, Events
from ignite.handlers import FastaiLRFinder

from transfer_cli.adaptation.adaptation import StagePlan
from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.mixture import Mixture
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import TrainStep
from transfer_cli.engine.train import Progress, build_trainer, report_of
from transfer_cli.errors import DivergedError, RunError
from transfer_cli.optim.lr_scheduler import LRScheduler
from transfer_cli.optim.schedules import Schedule

log = logging.getLogger(__name__)

FEWEST_STEPS = 10
"""With fewer, each step multiplies the rate by so much that no slope can be told."""

EXPLODED = 4.0
"""How many times its best value the loss has to reach for the test to end (fast.ai's figure)."""

_STEPS_SMOOTHED = 0.03
"""The standard deviation of what smooths the curve, as a share of its steps."""

_WEIGHT_OF_NEWEST = 0.3
"""How much the newest loss counts in the average that tells whether it has exploded."""

_CERTAIN = 3.0
"""How many times as far as it mostly strays from its curve the loss must fall to be falling."""


class Growth(Schedule):
    """A rate that grows by a constant factor from step to step, and is no multiplier.

    Args:
        start: The rate before the first step.
        end: The rate of the last one.
    """

    def __init__(self, start: float, end: float) -> None:
        super().__init__()
        self.start = start
        self.end = end

    def decay(self, step: int, warmup: int, total: int) -> float:
        """Return start x (end / start)^((s + 1) / S), which is how Ignite's finder counts."""
        return self.start * math.pow(self.end / self.start, (step + 1) / total)


@dataclass(frozen=True)
class RangeTest:
    """What a range test saw.

    Args:
        rates: Of a layer group whose scale is 1, by step.
        losses: In nats a target, by step; all finite.
        smoothed: The same, without most of their noise.
        exploded: Whether the loss exploded before the last step.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    exploded: bool


def run_range(
    step: TrainStep,
    streams: Mapping[str, Stream],
    growth: Growth,
    steps: int,
    *,
    frozen_eval: bool,
    micro_batch: int,
    mixture: Mixture | None = None,
    attach: Callable[[Engine], None] = lambda trainer: None,
) -> RangeTest:
    """Let the rate grow until the loss explodes; then model and optimizer are as they were.

    Whatever the run trains at any time trains here from the first step on.

    Args:
        step: The run's; its stages and rates are those of the test from here on.
        streams: The run's sources of batches; short ones are visited again and again.
        growth: The rate, by step.
        steps: How many, unless the loss explodes before.
        frozen_eval: Whether parts of which nothing trains run without dropout.
        micro_batch: Examples that pass through the model at once.
        mixture: Which stream each step draws; None: always "main".
        attach: Attaches a bar, say, to the engine.

    Raises:
        RunError: The loss exploded before there was a curve.
    """
    step.stages = Stages(
        step.model, [StagePlan(0, steps, step.stages.ever_trains)], frozen_eval=frozen_eval
    )
    # As in any run, the step sets its rates from its number; the finder counts up to the same ones.
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
        # It warns where the loss does not explode, which we say in our own words.
        warnings.simplefilter("ignore", UserWarning)
        with finder.attach(
            trainer,
            {"model": step.model, "optimizer": step.optimizer},
            output_transform=lambda report: float(report.total),
            start_lr=[growth.start * scale for scale in scales],
            end_lr=[growth.end * scale for scale in scales],
            smooth_f=_WEIGHT_OF_NEWEST,
            diverge_th=EXPLODED,
        ):
            try:
                # Streams know of no end; the epochs of the run are nothing to the test.
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
    return RangeTest(rates, losses, smooth(losses), exploded=len(losses) < steps)


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the losses, each averaged with its neighbours on both sides.

    A running average, as Ignite has it, lags behind: what it shows at a rate is what happened at
    smaller ones.
    """
    width = max(1.0, _STEPS_SMOOTHED * len(losses))
    places = np.arange(len(losses))
    weights = np.exp(-0.5 * ((places[:, None] - places[None]) / width) ** 2)
    averaged = weights @ np.asarray(losses) / weights.sum(1)
    return [float(value) for value in averaged]


def steepest(seen: RangeTest) -> int:
    """Return the step at which the smoothed loss falls fastest, before it is lowest.

    Raises:
        RunError: It never falls.
    """
    smoothed = np.asarray(seen.smoothed)
    lowest = int(smoothed.argmin())
    # What the curve does beyond is no noise; medians, since an outlier tells nothing of the others.
    noise = np.median(np.abs(np.asarray(seen.losses) - smoothed)[: lowest + 1])
    if lowest < 2 or smoothed[0] - smoothed[lowest] <= _CERTAIN * noise:
        raise RunError(
            f"no rate can be suggested: between {seen.rates[0]:.2g} and {seen.rates[-1]:.2g} the "
            "loss does not fall; give more lr_find.steps, another range by lr_find.start and "
            "lr_find.end, or a larger loop.batch"
        )
    return int(np.gradient(smoothed)[: lowest + 1].argmin())
