"""Parallel coordinates of a search: each trial a line through its settings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.contents import Group, TaskRuns
from transfer_cli.report.html import charts
from transfer_cli.report.html.charts import Chart, Trace, View, badness
from transfer_cli.report.untrusted import is_number

FEWEST_TRIALS = 8
MOST_AXES = 9
_BINS = 10
_FEW_TICKS = 5
_LONGEST_TITLE = 30
_AXIS_PIXELS = 100
_LARGE = 1000


@dataclass(frozen=True)
class Axis:
    """The place of each trial, from 0 at the bottom to 1; the ticks, each a place and its words."""

    title: str
    places: Sequence[float]
    ticks: Sequence[tuple[float, str]]


def search_chart(task: TaskRuns, names: Sequence[str]) -> Chart | None:
    """Return each group as a line across its settings; None where few of them vary."""
    trials = [(group, names[at], found.mean) for at, group, found in charts.measured(task)]
    keys = [key for key in task.varying
            if len({repr(group.settings.get(key)) for group, _, _ in trials}) > 1]  # fmt: skip
    if len(keys) < 2 or len(trials) < FEWEST_TRIALS:
        return None
    trials.sort(key=lambda trial: badness(task, trial[2]))
    shown_keys = keys[: MOST_AXES - 1]
    short = formats.short_keys(keys)
    axes = [axis_of(key, short[key], [g.settings.get(key) for g, _, _ in trials])
            for key in shown_keys]  # fmt: skip
    result = charts.measure_column(task)
    axes.append(number_axis(str(result.title), [value for _, _, value in trials]))
    words = formats.measure_words(task.measure)
    left_out = "" if shown_keys == keys else f" Shown are the first {len(shown_keys)} keys."
    return Chart(
        "search",
        "From settings to results",
        f"Each line is a group, from left to right through its settings to its {words}. The "
        f"better it is, the stronger its colour.{left_out}",
        f"Parallel coordinates of {len(trials)} trials over {', '.join(shown_keys)}. The best is "
        f"{trials[0][1]} with a {words} of {formats.number(trials[0][2])}.",
        [View(words, [*_binned(axes, trials)], _parallel_layout(axes))],
        ["trial", *keys, result],
        [(place, *(formats.setting_of(key, group.settings.get(key)) for key in keys),
          formats.number(value)) for place, (group, _, value) in enumerate(trials, start=1)],
        narrowest=_AXIS_PIXELS * len(axes),
    )  # fmt: skip


def axis_of(key: str, title: str, values: Sequence[Any]) -> Axis:
    """Return the axis of a key: of numbers where all values are, with a step a value otherwise."""
    numbers = sorted(each for each in values if is_number(each) and math.isfinite(each))
    if len(numbers) == len(values):
        return number_axis(title, [float(each) for each in values])
    words = sorted({formats.setting_of(key, each) for each in values})
    kinds = list(dict.fromkeys((*(formats.setting_of(key, each) for each in numbers), *words)))
    places = {kind: (at + 0.5) / len(kinds) for at, kind in enumerate(kinds)}
    ticks = [(place, formats.cut(kind, 16)) for kind, place in places.items()]
    return Axis(title, [places[formats.setting_of(key, each)] for each in values], ticks)


def number_axis(title: str, values: Sequence[float]) -> Axis:
    """Return an axis that is logarithmic where the values are far apart, and linear otherwise."""
    is_log = charts.is_wide(values)
    scaled = [math.log10(each) if is_log else each for each in values]
    low, high = min(scaled), max(scaled)
    width = (high - low) or 1.0
    places = [(each - low) / width for each in scaled]
    distinct = dict(sorted(zip(places, values, strict=True)))
    if len(distinct) <= _FEW_TICKS:
        return Axis(title, places, [(at, formats.setting(value)) for at, value in distinct.items()])
    marks = [low + width * part / 4 for part in range(5)]
    shown = [10**mark if is_log else mark for mark in marks]
    words = [f"{n:,.0f}" if abs(n) >= _LARGE else f"{n:.3g}" for n in shown]
    return Axis(title, places, [*zip([(mark - low) / width for mark in marks], words, strict=True)])


def _binned(axes: Sequence[Axis], trials: Sequence[tuple[Group, str, float]]) -> Iterable[Trace]:
    """Yield the trials as a few traces, the worst first so that the best lie on top."""
    size = math.ceil(len(trials) / _BINS)
    for begin in reversed(range(0, len(trials), size)):
        x: list[int | None] = []
        y: list[float | None] = []
        names: list[str] = []
        for trial, (_, name, value) in enumerate(trials[begin : begin + size], start=begin):
            x += [*range(len(axes)), None]
            y += [*(round(axis.places[trial], 4) for axis in axes), None]
            names.append(f"{name}\n{axes[-1].title}: {formats.number(value)}")
        yield {
            "x": x, "y": y, "name": names, "line": {"width": 2.5 if begin == 0 else 1.5},
            "meta": {"ramp": round(begin / max(1, len(trials) - size), 3), "role": "trial"},
        }  # fmt: skip


def _parallel_layout(axes: Sequence[Axis]) -> dict[str, Any]:
    places = range(len(axes))
    return {
        "xaxis": {
            "tickvals": list(places), "side": "top", "range": [-0.35, len(axes) - 0.45],
            "ticktext": [formats.cut(axis.title, _LONGEST_TITLE) for axis in axes],
        },
        "yaxis": {"range": [-0.05, 1.05]},
        "annotations": [
            {"x": at, "y": place, "text": words}
            for at, axis in zip(places, axes, strict=True) for place, words in axis.ticks
        ],
    }  # fmt: skip
