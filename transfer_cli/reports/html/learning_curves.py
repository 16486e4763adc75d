"""Learning curves: read from `metrics.jsonl` in bounded time and memory, and drawn."""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transfer_cli.reports.contents import FINISHED, TaskRuns
from transfer_cli.reports.formats import axis_words, measure_words, number, several
from transfer_cli.reports.html.charts import (
    Chart,
    Trace,
    View,
    is_wide,
    log_axis,
    log_ticks,
    points_trace,
    rounded,
)
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import MAX_WHOLE_NUMBER, UnreadableError, read_text

MOST_BYTES = 64 * 2**20
"""More than this of a file is not read: ten million steps take less."""

_TRAIN = '{"kind": "train"'
"""How our own records of training begin; they are thinned before they are parsed."""

Curve = tuple[tuple[int, float], ...]
"""Pairs of step and value, the steps rising."""

_MARKED_POINTS = 40
_TRAINING = "train/loss"

Curves = Mapping[str, Mapping[str, Curve]]
"""The curves of each run."""


def read_curves(path: Path, most_points: int) -> Mapping[str, Curve]:
    """Return the curves in a `metrics.jsonl`, each thinned to at most `most_points`.

    They are `train/loss` and `validation/NAME`, but for single classes. A run may be writing to the
    file: what is no record, such as half a line at the end, is skipped. Without a file there are no
    curves.
    """
    try:
        lines = read_text(path, MOST_BYTES).splitlines()
    except (OSError, UnreadableError):
        return {}
    measured: dict[str, dict[int, float]] = defaultdict(dict)
    for kind, step, values in _records(_thinned(lines, most_points)):
        for name in {"train": ["loss"], "validation": values.keys() - {"step"}}.get(kind, ()):
            value = values.get(name)
            if "/" not in name and is_number(value) and abs(value) <= sys.float_info.max:
                measured[f"{kind}/{name}"][step] = float(value)
    return {name: thin(sorted(points.items()), most_points) for name, points in measured.items()}


def thin(points: Iterable[tuple[int, float]], most_points: int) -> Curve:
    """Return every 2nd, 4th, 8th ... point and the last, so that there are at most `most_points`.

    With powers of two, curves of different lengths still have steps in common.
    """
    curve = tuple(points)
    stride = _stride(len(curve), most_points)
    kept = curve[::stride]
    return kept if kept[-1:] == curve[-1:] else (*kept, curve[-1])


def mean_curve(curves: Iterable[Curve]) -> Curve:
    """Return the mean over several curves, at the steps that all of them have."""
    known = [dict(curve) for curve in curves if curve]
    common = set.intersection(*map(set, known)) if known else set()
    return tuple(
        (step, math.fsum(values[step] for values in known) / len(known)) for step in sorted(common)
    )


def _stride(points: int, most_points: int) -> int:
    """Return the smallest power of two that leaves fewer than `most_points`, or one."""
    needed = math.ceil(points / max(1, most_points - 1))
    return 1 << max(0, needed - 1).bit_length()


def _thinned(lines: list[str], most_points: int) -> Iterator[str]:
    """Yield the lines but for most of those about training, when these are many."""
    train = [place for place, line in enumerate(lines) if line.startswith(_TRAIN)]
    left_out = {*train} - {*train[:: _stride(len(train), most_points)], *train[-2:]}
    return (line for place, line in enumerate(lines) if place not in left_out)


def _records(lines: Iterator[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = record.get("step") if isinstance(record, dict) else None
        if isinstance(step, int) and abs(step) <= MAX_WHOLE_NUMBER:
            yield str(record.get("kind")), step, record


def validation_chart(task: TaskRuns, names: Sequence[str], curves: Curves) -> Chart | None:
    """Return the measures of validation over time, by the curves of each run; none without them."""
    measures = {key for curve in curves.values() for key in curve if key.startswith("validation/")}
    first = [f"validation/{task.measure.rpartition('/')[2]}", "validation/loss"]
    keys = sorted(measures, key=lambda key: (*(key != name for name in first), key))
    if not keys:
        return None
    views = [_over_time(task, names, curves, key, axis_words(task, key)) for key in keys]
    caption = "Measured on the validation split."
    if len(task.runs) > 1:
        caption = (
            "A line for each group: the mean over its seeds, at the steps that all of its finished "
            "runs have measured. Thin lines are single runs."
        )
    description = _description(views[0], names)
    return Chart("validation", "Validation while training", caption, description, views)


def training_chart(task: TaskRuns, names: Sequence[str], curves: Curves) -> Chart | None:
    """Return the training loss over time; none where there is no record of it."""
    if not any(_TRAINING in curve for curve in curves.values()):
        return None
    view = _over_time(task, names, curves, _TRAINING, "training loss")
    caption = (
        "The loss of the batches themselves, in nats for each target. Long curves are thinned."
    )
    return Chart("training", "Training loss", caption, _description(view, names), [view])


def _over_time(task: TaskRuns, names: Sequence[str], curves: Curves, key: str, title: str) -> View:
    faint: list[Trace] = []
    means: list[Trace] = []
    for place, (label, group) in enumerate(zip(names, task.groups, strict=True)):
        curves_of = [(run, curve) for run in group.runs if (curve := curves[run.name].get(key))]
        finished = [curve for run, curve in curves_of if run.status == FINISHED]
        if len(curves_of) > 1:
            faint.append(_seed_trace(place, [curve for _, curve in curves_of]))
        if mean := mean_curve(finished or [curve for _, curve in curves_of]):
            means.append(_mean_trace(place, label, mean))
    times = task.metric(key).display_scale
    for trace in (*faint, *means):
        trace["y"] = [y if y is None else rounded(times * y) for y in trace["y"]]
    values = [y for trace in (*faint, *means) for y in trace["y"] if y is not None]
    y_axis: dict[str, Any] = {"title": title}
    if is_wide(values):
        ticks = log_ticks(values)
        y_axis = log_axis(title, ticks, [f"{tick:,.6g}" for tick in ticks])
    layout = {"xaxis": {"title": "step", "rangemode": "tozero"}, "yaxis": y_axis}
    return View(
        "training loss" if key == _TRAINING else measure_words(key), [*faint, *means], layout
    )


def _mean_trace(place: int, label: str, curve: Curve) -> Trace:
    trace = points_trace(label, place, curve, size=6)
    trace["meta"] = {"slot": place, "group": place, "role": "mean"}
    if len(curve) > _MARKED_POINTS:
        del trace["marker"]
    return trace


def _seed_trace(place: int, curves: Iterable[Curve]) -> Trace:
    """Return the curves of a group's runs as one trace, with gaps between them."""
    points = [point for curve in curves for point in (*curve, (None, None))]
    return {
        "x": [x for x, _ in points], "y": [y for _, y in points], "line": {"width": 1},
        "meta": {"slot": place, "group": place, "role": "seed"},
    }  # fmt: skip


def _description(view: View, names: Sequence[str]) -> str:
    begins = f"Line chart of {several(len(names), 'group')} over training steps. "
    last = [(trace["y"][-1], trace["meta"]["group"]) for trace in view.traces
            if trace["meta"]["role"] == "mean"]  # fmt: skip
    if not last:
        return begins
    (low, lowest), (high, highest) = min(last), max(last)
    if lowest == highest:
        return f"{begins}{view.name} ends at {number(low)}."
    ends = f"{number(low)} ({names[lowest]}) and {number(high)} ({names[highest]})"
    return f"{begins}{view.name} ends between {ends}."
