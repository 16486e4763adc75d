"""Measure what the engine costs: Ignite, handlers, records and progress bar around a step.

    python scripts/bench/engine.py [--rounds N] [--threads 2] [--quick] [--json FILE]

At the size of the tutorial's model the step itself varies by more than the engine takes, so the
time between the end of a step and the beginning of the next one is measured inside of a real
`transfer pretrain`, and compared with the step. At a tiny size a real `transfer pretrain` and a
bare loop over its very steps and batches take turns.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import measuring
import pretrain
import product
from measuring import Goal, Report, Variant

TINY = {
    "width": 128,
    "heads": 4,
    "depth": 4,
    "feedforward": 512,
    "vocabulary": 500,
    "length": 32,
    "batch": 2,
}
"""model=tiny, with few tokens: what the engine takes does not depend on them."""

STEPS = 50
"""Steps of a turn at the tiny size."""


def at_tutorial_size(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure the time between steps of a run of the tutorial's size, with a record at each."""
    size = pretrain.TRIAL if asked.quick else pretrain.TUTORIAL
    words = [*_words(size, folder), "loop.log_every=1"]
    variant = _variant("transfer", "pretrain_timed", words, folder)
    [figure] = measuring.take_turns([variant], rounds=asked.rounds or 2, threads=asked.threads)
    parts = {name: figure.noted(f"{name}_s") for name in ("step", "batch", "engine")}
    cpu = figure.noted("engine_cpu_s")
    rows = [["part of a step", "wall ms"]]
    rows += [[name, f"{1000 * seconds:.3g}"] for name, seconds in parts.items()]
    rows += [["engine, CPU", f"{1000 * cpu:.3g}"]]
    share = 100 * parts["engine"] / (parts["step"] + parts["batch"])
    goal = Goal("engine, % of a step", share, 1.0, disturbed=figure.disturbed)
    title = f"What the engine takes, {pretrain.title_of(size)}, a record at each step"
    return Report(title, [figure], [goal], rows)


def at_tiny_size(asked: argparse.Namespace, folder: Path) -> Report:
    """Let a real run and a bare loop over the same steps take turns, with a record each 10."""
    words = [*_words(TINY, folder), "loop.log_every=10"]
    variants = [
        _variant("transfer", "pretrain", words, folder),
        _variant("bare loop", "bare_loop", words, folder),
        _variant("transfer, parts", "pretrain_timed", words, folder),
    ]
    steps = 10 if asked.quick else STEPS
    own, bare, timed = figures = measuring.take_turns(
        variants, rounds=asked.rounds or (2 if asked.quick else 9), steps=steps, threads=1
    )
    wall, cpu = (1000 * measuring.difference(own, bare, of) for of in ("wall_s", "cpu_s"))
    inside = 1000 * timed.noted("engine_s") / steps
    notes = [
        f"Over the bare loop, CPU time: {cpu:.2f} ms a step.",
        f"Between steps, as a run itself measures it: {inside:.2f} ms.",
    ]
    disturbed = own.disturbed or bare.disturbed
    goal = Goal("engine over a bare loop, ms a step", wall, 0.6, disturbed=disturbed)
    title = f"What the engine takes, {pretrain.title_of(TINY)}, a record every 10 steps, one thread"
    return Report(title, figures, [goal], notes=notes)


def _words(size: dict[str, int], folder: Path) -> list[str]:
    return list(pretrain.ours("clm", size, folder).options["words"])


def _variant(name: str, function: str, words: Sequence[str], folder: Path) -> Variant:
    env = product.Material(folder).env
    return Variant(name, "product", function, {"words": words}, env=env, terminal=True)


def reports(asked: argparse.Namespace) -> list[Report]:
    """Measure both."""
    found = []
    for measure in (at_tutorial_size, at_tiny_size):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found.append(measure(asked, Path(folder)))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    asked = measuring.parser(__doc__).parse_args(argv)
    measuring.show(reports(asked), asked)


if __name__ == "__main__":
    main()
