"""What a run says about itself on the terminal: a few lines before, a few after."""

import logging
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.exports import export_description
from transfer_cli.assembly.plan_table import run_facts
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.literal import path_override
from transfer_cli.engine import handlers
from transfer_cli.errors import list_names
from transfer_cli.metrics import UNSEEN, without_details
from transfer_cli.runs.class_scores import (
    MOST_LISTED,
    TITLES,
    Counts,
    accuracy_interval,
    class_scores,
    count_table,
    describe_confusions,
    has_one_label_each,
)
from transfer_cli.runs.results import Results
from transfer_cli.safe_files import printable
from transfer_cli.terminal import Column, Entry, Line, Page, Piece, Renderable, TextTable, print_out
from transfer_cli.training.measurements import MOST_CHARACTERS

log = logging.getLogger(__name__)

MIN_WAIT_SHARE = 0.05
"""The share of a step's time that a host waits which a GPU is not waiting for."""


def say_start(command: str, path: Path, run: TrainingRun) -> None:
    """Log the model, the data and the length of a run that begins."""
    rows = {
        "run": str(path),
        **run_facts(run.blueprint, run.prepared),
        "exports": export_description(run.blueprint),
    }
    if weights := run.blueprint.objective.get("class_weight"):
        named = (f"{printable(label)} {weight:.3g}" for label, weight in weights.items())
        rows["weights"] = list_names(named, 10)
    log.info("%s", command)
    for name, text in rows.items():
        log.info("  %-7s %s", name, text)


def say_what_is_faster(
    command: str, blueprint: Blueprint, seconds: float, seconds_a_step: float
) -> None:
    """Log what to change about a run that will take `seconds` more on a CPU."""
    steps = max(1, int(handlers.LONG_SECONDS / seconds_a_step))
    is_fresh = blueprint.start.pretrained is None
    smaller = "a smaller model" + " (model=tiny)" * is_fresh
    ways = ["a GPU", smaller, f"fewer steps (half an hour is loop.steps={steps})"]
    if len(blueprint.course.stage_plans) == 1:
        ways.append("an end by the clock (loop.minutes=30)")
    trained = blueprint.course.ever_trains
    if command == "finetune" and any(name.startswith("backbone.") for name in trained):
        ways.append("frozen features (experiment=quick)")
    log.info(
        "about %.1f h to go on this CPU; faster would be %s or %s",
        seconds / 3600, ", ".join(ways[:-1]), ways[-1],
    )  # fmt: skip


def pace_text(
    seconds: float,
    waited: float,
    tokens: float,
    flops: float,
    *,
    peak: float | None,
    batch: int,
    rate: float,
) -> str:
    """Return how fast the steps of a run are on a GPU, and what a larger batch may bring.

    Args:
        waited: Of these the host has waited for the device.
        peak: Floating-point operations that the device computes in a second at most, if known.
    """
    speed = f"{tokens / seconds:,.0f} tokens/s, {flops / seconds / 1e12:,.1f} TFLOP/s"
    share = waited / seconds
    speed += "" if peak is None else f" (MFU {100 * flops / seconds / peak:.0f} %)"
    speed += f"; of {1000 * seconds:,.1f} ms a step the host waits {100 * share:.0f} %"
    if share >= MIN_WAIT_SHARE:
        return speed
    return (
        f"{speed}, so the GPU waits for it: up to twice as many tokens/s (estimated) with "
        f"loop.batch={2 * batch} optimizer.lr={math.sqrt(2) * rate:.2g}"
    )


def say_results(command: str, path: Path, results: Results, seconds: float) -> None:
    """Print the final measures to standard output, and where to go from here."""
    average = results.more.get("average")
    how = f"{average['kept']} (loop.average), " if average else ""
    blocks: list[Renderable] = [
        Line(
            Piece("done:", "good"),
            f" {results.seen.steps:,} steps in {seconds:,.0f} s; the best weights, "
            f"{how}of step {results.best_step:,}, score:",
        )
    ]
    for split, measures in results.measures.items():
        blocks.append(_named_entry(split, measures_text(without_details(measures))))
        unseen = {
            name.removesuffix(UNSEEN): value
            for name, value in measures.items()
            if name.endswith(UNSEEN)
        }
        if unseen:
            blocks.append(_named_entry("  unseen", f"in training: {measures_text(unseen)}"))
    for split in [name for name in results.measures if name in results.tables][-1:]:
        tables = results.tables[split]
        table = tables.get(f"confusion{UNSEEN}") or tables.get("confusion")
        if table and has_one_label_each(results.metrics):
            text = accuracy_text(table, results.labels, results.more["by_words"])
            blocks.append(_named_entry("in words", text))
        blocks += label_score_blocks(results, split)
    forgetting = results.more["forgetting"]
    if forgetting is not None:
        before, after = forgetting["before"], forgetting["after"]
        for name in (n for n in before if n != "loss"):
            text = f"{name} {before[name]:.4g} before, {after[name]:.4g} after"
            blocks.append(_named_entry("source", text))
    then = f"finetune {path_override('init_from', path)}"
    if command == "finetune":
        then = f"predict {path_override('run', path)} input=FILE"
    curves = f"tensorboard --logdir {shlex.quote(str(path))}"
    lines = {"files": path, "curves": curves, "next": CommandLine.current().next_command(then)}
    if not (path / "tensorboard").is_dir():
        del lines["curves"]
    if results.failed:  # what to do then has been said
        del lines["next"]
    print_out(Page(*blocks, *copyable_lines(lines)))


def label_score_blocks(results: Results, split: str) -> list[Renderable]:
    """Return how well each label of a split is found, the worst first, and what was confused."""
    scores = class_scores([results], split)
    if not scores:
        return []
    rows = [
        [printable(score.label)[:MOST_CHARACTERS], *score.cells()] for score in scores[:MOST_LISTED]
    ]
    columns = [Column(f"{split} by label"), *(Column(title, right=True) for title in TITLES)]
    blocks: list[Renderable] = [TextTable(columns, rows)]
    if len(scores) > MOST_LISTED:
        lowest = f"an F1 of {scores[MOST_LISTED].f1:.3f} or more"
        blocks.append(
            _named_entry("and", f"{len(scores) - MOST_LISTED:,} labels more, with {lowest}")
        )
    table = count_table(results, split, "confusion", len(results.labels))
    if table and (words := describe_confusions(results.labels, table)):
        blocks.append(_named_entry("confused", words))
    return blocks


def accuracy_text(
    confusion: Counts, labels: Sequence[str], by_words: Mapping[str, int] | None = None
) -> str:
    """Return what to expect of new texts, beside what is to be had without the model.

    Args:
        by_words: How a linear model on words did on the same texts.
    """
    counts = [sum(row) for row in confusion]
    total, right = sum(counts), sum(row[label] for label, row in enumerate(confusion))
    low, high, different = accuracy_interval(confusion, by_words)
    doubled = f", {different:,} of them different" if different < total else ""
    commonest = printable(labels[counts.index(max(counts))])[:MOST_CHARACTERS]
    words = ""
    if by_words is not None:
        share = by_words["right"] / by_words["scored"]
        words = f", a linear model on words {100 * share:.0f}"
        if by_words["trained_on"] < by_words["of"]:
            words += f" (fitted on {by_words['trained_on']:,} of {by_words['of']:,} texts)"
        if share > right / total:
            words += ", more than this model"
    return (
        f"of 100 such texts about {100 * right / total:.0f} get the right label "
        f"({100 * low:.0f} to {100 * high:.0f}, by these {total:,}{doubled}); always saying "
        f"{commonest!r} gets {100 * max(counts) / total:.0f} right{words}"
    )


def copyable_lines(texts: Mapping[str, object]) -> list[Line]:
    """Return named texts, each on a line that is never broken: they are there to be copied."""
    return [Line("  ", Piece(f"{name:10s}", "name"), f" {text}") for name, text in texts.items()]


def measures_text(measures: Mapping[str, float]) -> str:
    """Return measures on a line."""
    return "  ".join(f"{name} {value:.4g}" for name, value in measures.items())


def _named_entry(name: str, text: str) -> Entry:
    return Entry(["  ", Piece(f"{name:10s}", "name"), " "], [text], 13)
