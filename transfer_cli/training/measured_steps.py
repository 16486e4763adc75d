"""What a step of a run takes on this machine, for what a budget chooses."""

import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from transfer_cli.assembly.run import TrainingRun
from transfer_cli.data.loader import StepDataLoader
from transfer_cli.engine import distributed

MEASURED_STEPS = 12
"""How many steps are taken at most."""


def main_value(number: float) -> float:
    """Return the number that the main process has."""
    return float(distributed.broadcast_text(repr(number)))


@contextmanager
def silence_logging() -> Iterator[None]:
    """Say nothing of runs that are only measured, or looked at."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def measure_step(run: TrainingRun, max_seconds: float) -> float:
    """Return what a step takes, in the mean of some after the first, which warms up."""
    sizes = run.blueprint.course.sizes
    loader = StepDataLoader(
        run.streams, run.micro_batch, lambda: 0, sizes.mixture,
        rank=distributed.rank(), world_size=distributed.world_size(),
    )  # fmt: skip
    seconds = list[float]()
    for number in range(min(sizes.total_steps, MEASURED_STEPS)):
        began = time.perf_counter()
        float(run.step(loader.load(number), number).total)  # waits for the device
        seconds.append(time.perf_counter() - began)
        if main_value(sum(seconds[1:])) > max_seconds:
            break
    return statistics.mean(seconds[1:] or seconds)
