"""Measure what the engine costs: Ignite, handlers, records and progress bar around a step.

    python scripts/bench/engine.py

A step itself varies by more than the engine takes, so the time between the end of a step and the
beginning of the next one is measured inside of a real `transfer pretrain`: at the size of the
tutorial's model with a record at each step, and at a tiny size with one every 10 steps.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import measuring
import product
from measuring import Goal, Report

TINY = dict(zip(product.SIZES, (128, 4, 4, 512, 500, 32, 2), strict=True))
"""model=tiny, with few tokens: what the engine takes does not depend on them."""
MAX_PERCENT, MAX_MS = 1.0, 0.6
"""The goals: of a step at the tutorial's size in percent, and of a tiny one in ms."""


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure both sizes."""
    tutorial = product.TRIAL if args.quick else product.TUTORIAL
    for size, every, steps in ((tutorial, 1, 1), (TINY, 10, 10 if args.quick else 50)):
        words, material = product.sized_run(size, folder)
        variant = material.worker([*words, f"loop.log_every={every}"], function="pretrain_timed")
        [figure] = measuring.take_turns(
            [variant], rounds=args.rounds, steps=steps, threads=args.threads
        )
        names = ("step", "batch", "engine", "engine_cpu")
        parts = {name: 1000 * figure.median_note(f"{name}_s") / steps for name in names}
        rows = [["part of a step", "ms"], *([name, f"{ms:.3g}"] for name, ms in parts.items())]
        text, value, limit = "engine, ms a step", parts["engine"], MAX_MS
        if size is not TINY:
            text, limit = "engine, % of a step", MAX_PERCENT
            value = 100 * parts["engine"] / (parts["step"] + parts["batch"])
        goal = Goal(text, value, limit, disturbed=figure.disturbed)
        title = f"What the engine takes, {product.size_title(size)}, a record every {every} step(s)"
        yield Report(title, [figure], [goal], rows)


if __name__ == "__main__":
    measuring.main(__doc__, measure, rounds=5)
