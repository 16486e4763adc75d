"""Score language models by what they see before each token, and time a memory against windows.

    python scripts/bench/memory.py RUN [RUN ...] [--data-dir DIR] [--contexts 0 64 128 256 512]
        [--speed 128 512] [--tokens 2000] [--threads 1] [--device cpu] [--json FILE]

Each run is scored on its whole validation text, by windows and, if it has one, by memory, with at
least so many tokens before each; contexts that a model has no positions for are left out. Then a
run with a memory scores the first tokens of that text by memory and by windows that slide by one
token, with the same context. CPU seconds are those of this process, whatever others do.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import measuring
import torch
from measuring import Goal, Report

from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.split import Split, TextStats
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, TransferError

FASTER = 5.0
"""The goal: how many times as fast as windows that slide by one."""
BATCH = 32


def validation_of(trained: Trained, data_dir: Path) -> Split:
    """Return the validation text of a run, in blocks."""
    source, start = datasets.source_of(trained.config.data), trained.start
    place = DataPlace(str(data_dir), trained.config.seed)
    shape = start.description.shape
    prepared, _ = datasets.text(source, place, shape, start.tokenizer, ("validation",))
    return prepared.splits["validation"]


def timed(work: Callable[[], float]) -> tuple[float, float, float]:
    """Return what a function returns, its CPU seconds and its seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = work()
    return found, time.process_time() - cpu, time.perf_counter() - wall


def loss_of(trained: Trained, split: Split) -> float:
    """Return the mean loss of a text, in nats a token."""
    precision = Precision("fp32", next(trained.model.parameters()).device)
    scores = evaluate(trained.model, trained.objective, split, batch=BATCH, precision=precision)
    return scores.measures["loss"]


def by_context(path: str, trained: Trained, whole: Split, contexts: list[int]) -> list[list[str]]:
    """Return a row for each way to score the text."""
    shape, rows = trained.start.description.shape, []
    for by in ("memory", "windows") if shape.recurrence else ("windows",):
        for tokens in contexts:
            try:
                split = datasets.with_context(whole, shape, tokens, None, by)
            except ConfigError:  # there are no positions for it
                continue
            loss, cpu, wall = timed(lambda split=split: loss_of(trained, split))
            said = [str(tokens), by, f"{math.exp(loss):.2f}", f"{cpu:.1f}", f"{wall:.1f}"]
            rows.append([Path(path).name, *said])
            print("  ".join(rows[-1]), flush=True)
    return rows


def first_of(whole: Split, tokens: int) -> Split:
    """Return the first tokens of a text."""
    blocks = whole.data
    assert isinstance(blocks, TextBlocks)  # noqa: S101 - text is read in blocks
    text = replace(blocks.text, tokens=blocks.text.tokens[: tokens + 1])
    return replace(whole, data=replace(blocks, text=text), text=TextStats())


def speed(trained: Trained, part: Split, contexts: list[int]) -> tuple[list[list[str]], list[Goal]]:
    """Return a row for each context, and how many times as fast the memory is."""
    shape, rows, goals = trained.start.description.shape, [], []
    for tokens in contexts:
        remembered = datasets.with_context(part, shape, tokens, None, "memory")
        windows = datasets.with_context(part, shape, tokens, 1, "windows")
        loss, cpu, wall = timed(lambda split=remembered: loss_of(trained, split))
        other, more_cpu, more_wall = timed(lambda split=windows: loss_of(trained, split))
        rows.append([
            str(tokens), f"{cpu:.2f}", f"{more_cpu:.2f}", f"{more_cpu / cpu:.1f}",
            f"{more_wall / wall:.1f}", f"{math.exp(loss):.2f}", f"{math.exp(other):.2f}",
        ])  # fmt: skip
        said = f"a memory of {tokens}, times as fast"
        goals.append(Goal(said, more_cpu / cpu, FASTER, at_most=False))
    return rows, goals


def main() -> int:
    """Score the runs, and print what came of it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("runs", nargs="+", metavar="RUN")
    words.add_argument("--contexts", nargs="*", type=int, default=[0, 64, 128, 256, 512])
    words.add_argument("--speed", nargs="*", type=int, default=[128, 512])
    words.add_argument("--tokens", type=int, default=2000)
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--device", default="cpu")
    words.add_argument("--json", type=Path)
    measuring.add_data_dir(words)
    asked = words.parse_args()
    if measuring.device_is_missing(asked.device):
        return 2
    torch.set_num_threads(asked.threads)
    scored = [["run", "context", "by", "perplexity", "CPU s", "s"]]
    timings = [["context", "memory CPU s", "windows CPU s", "times", "by the clock", "ppl", "ppl"]]
    goals: list[Goal] = []
    for path in asked.runs:
        try:
            trained = open_trained(path, Precision("fp32", torch.device(asked.device)))
        except TransferError as error:
            print(f"memory.py: {error}", file=sys.stderr)
            return 2
        whole = validation_of(trained, asked.data_dir)
        scored += by_context(path, trained, whole, asked.contexts)
        if trained.start.description.shape.recurrence:
            rows, met = speed(trained, first_of(whole, asked.tokens), asked.speed)
            timings, goals = timings + rows, goals + met
    reports = [
        Report("Perplexity by context", rows=scored),
        Report(
            f"A memory against windows by one, {asked.tokens} tokens", goals=goals, rows=timings
        ),
    ]
    print("\n\n".join(map(str, reports)))
    if asked.json is not None:
        asked.json.write_text(json.dumps([each.as_data() for each in reports]), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
