"""What a step of a run takes on this machine, for what a budget chooses."""

import time

from transfer_cli.assembly.run import TrainingRun
from transfer_cli.data.loader import StepDataLoader
from transfer_cli.engine import distributed

MEASURED_STEPS = 12
"""How many steps are taken at most."""


def main_value(number: float) -> float:
    """Return the number that the main process has."""
    return float(distributed.broadcast_text(repr(number)))


def measure_step(run: TrainingRun, max_seconds: float) -> float:
    """Return what a step takes, in the mean of some after the first, which warm up."""
    sizes = run.blueprint.course.sizes
    loader = StepDataLoader(
        run.streams, run.micro_batch, lambda: 0, sizes.mixture,
        rank=distributed.rank(), world_size=distributed.world_size(),
    )  # fmt: skip
    # Compiled passes: compiled in the first step, recorded as CUDA graphs in the next two.
    first = min(3 if run.blueprint.course.loop.compile else 1, sizes.total_steps - 1)
    for number in range(first):
        float(run.step(loader.load(number), number).total)  # waits for the device
    began = time.perf_counter()
    for number in range(first, min(sizes.total_steps, first + MEASURED_STEPS)):
        total = run.step(loader.load(number), number).total
        if main_value(time.perf_counter() - began) > max_seconds:
            break
    float(total)
    return (time.perf_counter() - began) / (number + 1 - first)
