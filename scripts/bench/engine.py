"""Measure what the engine costs: Ignite, handlers, records and progress bar around a step.

    python scripts/bench/engine.py [--rounds N] [--threads 2] [--quick] [--json FILE]

At the size of the tutorial's model the step itself varies by more than the engine takes, so the
time between the end of a step and the beginning of the next one is measured inside of a real
`transfer pretrain`, and compared with the step. At a tiny size a real `transfer pretrain` and a
bare loop over its very steps and batches take turns.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import measuring
import product
from measuring import Goal, Report

TINY = dict(zip(product.SIZES, (128, 4, 4, 512, 500, 32, 2), strict=True))
"""model=tiny, with few tokens: what the engine takes does not depend on them."""


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure both sizes."""
    yield at_tutorial_size(asked, folder)
    yield at_tiny_size(asked, folder)


def at_tutorial_size(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure the time between steps of a run of the tutorial's size, with a record at each."""
    size = product.TRIAL if asked.quick else product.TUTORIAL
    words, material = product.sized(size, folder)
    ways = [material.worker([*words, "loop.log_every=1"], function="pretrain_timed")]
    [figure] = measuring.take_turns(ways, rounds=asked.rounds, threads=asked.threads)
    parts = {name: figure.noted(f"{name}_s") for name in ("step", "batch", "engine", "engine_cpu")}
    rows = [["part of a step", "ms"], *([n, f"{1000 * s:.3g}"] for n, s in parts.items())]
    share = 100 * parts["engine"] / (parts["step"] + parts["batch"])
    goal = Goal("engine, % of a step", share, 1.0, disturbed=figure.disturbed)
    title = f"What the engine takes, {product.title_of(size)}, a record at each step"
    return Report(title, [figure], [goal], rows)


def at_tiny_size(asked: argparse.Namespace, folder: Path) -> Report:
    """Let a real run and a bare loop over the same steps take turns, with a record each 10."""
    words, material = product.sized(TINY, folder)
    ways = {"transfer": "pretrain", "bare loop": "bare_loop", "transfer, parts": "pretrain_timed"}
    workers = [
        material.worker([*words, "loop.log_every=10"], name, function=how)
        for name, how in ways.items()
    ]
    steps, rounds = (10, 2) if asked.quick else (50, 4 * asked.rounds + 1)
    ours, bare, timed = figures = measuring.take_turns(
        workers, rounds=rounds, steps=steps, threads=1
    )
    wall, cpu = (1000 * measuring.difference(ours, bare, of) for of in ("wall_s", "cpu_s"))
    notes = [
        f"Over the bare loop, CPU time: {cpu:.2f} ms a step.",
        f"Between steps, as a run itself measures it: {1000 * timed.noted('engine_s') / steps:.2f} "
        "ms.",
    ]
    disturbed = ours.disturbed or bare.disturbed
    goal = Goal("engine over a bare loop, ms a step", wall, 0.6, disturbed=disturbed)
    title = f"What the engine takes, {product.title_of(TINY)}, a record every 10 steps, one thread"
    return Report(title, figures, [goal], notes=notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, rounds=2)
