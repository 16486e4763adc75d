"""Score language models by what they see before each token, and time a memory against windows.

    python scripts/bench/memory.py RUN [RUN ...] [--speed 128 512]

Each run is scored on its whole validation text, by windows and, if it has one, by memory, with at
least so many tokens before each; contexts that a model has no positions for are left out. Then a
run with a memory scores the first tokens of that text by memory and by windows that slide by one
token, with the same context. CPU seconds are those of this process, whatever others do.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
from measuring import BenchmarkError, Goal, Report

CONTEXTS = (0, 64, 128, 256, 512)
TOKENS = 2000
"""Of the text that is timed."""
FASTER = 5.0
"""The goal: how many times as fast as windows that slide by one."""


def measure(asked: argparse.Namespace, _: Path) -> Iterator[Report]:
    """Score the runs."""
    import torch

    from transfer_cli.assembly import datasets
    from transfer_cli.assembly.datasets import DataPlace
    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.errors import ConfigError, TransferError

    torch.set_num_threads(asked.threads)
    precision = Precision("fp32", torch.device(asked.device))
    scored = [["run", "context", "by", "perplexity", "CPU s", "s"]]
    timings = [["context", "memory CPU s", "windows CPU s", "times", "by the clock", "ppl", "ppl"]]
    goals: list[Goal] = []
    for path in asked.runs:
        try:
            trained = open_trained(path, precision)
        except TransferError as error:
            raise BenchmarkError(str(error)) from error
        shape = trained.start.description.shape
        place = DataPlace(str(asked.data_dir), trained.config.seed)
        source = datasets.source_of(trained.config.data)
        text, _ = datasets.text(source, place, shape, trained.start.tokenizer, ("validation",))
        whole = text.splits["validation"]
        for by in ("memory", "windows") if shape.recurrence else ("windows",):
            for tokens in CONTEXTS:
                try:
                    split = datasets.with_context(whole, shape, tokens, None, by)
                except ConfigError:  # there are no positions for it
                    continue
                loss, cpu, wall = timed(trained, split, precision)
                said = [str(tokens), by, f"{math.exp(loss):.2f}", f"{cpu:.1f}", f"{wall:.1f}"]
                scored.append([Path(path).name, *said])
                print("  ".join(scored[-1]), flush=True)
        part = first_of(whole, TOKENS)
        for tokens in asked.speed if shape.recurrence else ():
            remembered = datasets.with_context(part, shape, tokens, None, "memory")
            windows = datasets.with_context(part, shape, tokens, 1, "windows")
            loss, cpu, wall = timed(trained, remembered, precision)
            other, more_cpu, more_wall = timed(trained, windows, precision)
            timings.append([
                str(tokens), f"{cpu:.2f}", f"{more_cpu:.2f}", f"{more_cpu / cpu:.1f}",
                f"{more_wall / wall:.1f}", f"{math.exp(loss):.2f}", f"{math.exp(other):.2f}",
            ])  # fmt: skip
            said = f"a memory of {tokens}, times as fast"
            goals.append(Goal(said, more_cpu / cpu, FASTER, at_most=False))
    yield Report("Perplexity by context", rows=scored)
    title = f"A memory against windows by one, {TOKENS:,} tokens"
    yield Report(title, goals=goals, rows=timings)


def timed(trained: Any, split: Any, precision: Any) -> tuple[float, float, float]:
    """Return the mean loss of a text, in nats a token, and the CPU and wall seconds of that."""
    from transfer_cli.engine.evaluation import evaluate

    cpu, wall = time.process_time(), time.perf_counter()
    scores = evaluate(trained.model, trained.objective, split, batch=32, precision=precision)
    return scores.measures["loss"], time.process_time() - cpu, time.perf_counter() - wall


def first_of(whole: Any, tokens: int) -> Any:
    """Return the first tokens of a text."""
    from transfer_cli.data.split import TextStats

    blocks = whole.data
    text = replace(blocks.text, tokens=blocks.text.tokens[: tokens + 1])
    return replace(whole, data=replace(blocks, text=text), text=TextStats())


if __name__ == "__main__":
    speed = {"nargs": "*", "type": int, "default": [128, 512]}
    options = {"runs": {"nargs": "+", "metavar": "RUN"}, "--speed": speed}
    measuring.main(__doc__, measure, options)
