"""What a chart of a report is: traces that the page's script draws, and its words and numbers.

A trace is a mapping: `x` and `y` of its points, None where a line has a gap; `line` and `marker`,
what is drawn; `error_y`, bars; `name`, what a point is called, or a name for each point; `labels`,
words beside the points; `ring`, the point to take. `meta.slot` says which group it shows, or
`slots` for each point: the script gives it a colour that differs from the others on a light and on
a dark ground.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.contents import Group, Spread, TaskRuns
from transfer_cli.report.html.markup import Html, PageColumn, table
from transfer_cli.report.results_table import Cell

_LOG_RATIO = 20.0
_FEW_POWERS = 3

Trace = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One of the figures of a chart: its traces, and its axes (`layout`)."""

    name: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart, its words and its numbers.

    Args:
        name: Part of its address on the page.
        caption: What it shows and how to read it.
        description: The same with the outcome, for those who cannot see it.
        views: One at least.
        columns: Of the table of numbers; without them the script lists what is visible.
        lines: What its lines are called, where they are no groups.
    """

    name: str
    title: str
    caption: str
    description: str
    views: Sequence[View]
    columns: Sequence[PageColumn | str] = ()
    rows: Sequence[Sequence[Cell | object]] = ()
    lines: Sequence[str] = ()

    @property
    def numbers(self) -> Html:
        """The table of its numbers."""
        return table(f"Numbers of: {self.title}", self.columns, self.rows)


def badness(task: TaskRuns, value: float) -> float:
    """Return a number that is the larger, the worse a value of the task's measure is."""
    return value if task.lower_is_better else -value


def measured(task: TaskRuns) -> Iterable[tuple[int, Group, Spread]]:
    """Yield place, group and result, as it is shown, of each group whose result can be drawn."""
    for place, group in enumerate(task.groups):
        found = group.measures.get(task.measure)
        if found is not None and math.isfinite(found.mean):
            yield place, group, formats.scaled(found, formats.times(task, task.measure))


def rounded(value: float) -> float:
    """Return a value with as many digits as a chart can show."""
    return float(f"{value:.5g}")


def means(task: TaskRuns, spreads: Iterable[Spread]) -> Trace:
    """Return the part of a trace that places means, with a bar of one deviation each.

    A bar ends where the task's measure does: no error rate is below 0.
    """
    found = list(spreads)
    metric, times = task.metric(task.measure), formats.times(task, task.measure)
    bounds = (-math.inf, math.inf) if metric is None else metric.bounds
    low, high = (times * each for each in bounds)
    bars = [(each.mean, each.deviation or 0) for each in found]
    return {
        "y": [rounded(each.mean) for each in found],
        "error_y": {
            "array": [min(bar, max(0, high - mean)) for mean, bar in bars],
            "arrayminus": [min(bar, max(0, mean - low)) for mean, bar in bars],
        },
    }  # fmt: skip


def of_spreads(task: TaskRuns) -> str:
    """Return what a point and its bar are."""
    spreads = [found for _, _, found in measured(task)]
    if any(each.deviation is not None for each in spreads):
        return "Means over the seeds; bars are one standard deviation."
    if any(len(each.values) > 1 for each in spreads):
        return "Means over the seeds, without bars: a deviation takes three seeds or more."
    return "Each is a single run."


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values are easier to tell apart by their logarithm."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_RATIO


def against(task: TaskRuns, x_axis: Trace, traces: Sequence[Trace]) -> View:
    """Return the task's measure against something else."""
    y_axis = {"title": formats.axis_words(task, task.measure)}
    return View(formats.measure_words(task.measure), traces, {"xaxis": x_axis, "yaxis": y_axis})


def log_axis(
    title: str, ticks: Sequence[float], words: Iterable[str], around: Sequence[float] = ()
) -> dict[str, Any]:
    """Return a logarithmic axis with words at its ticks, and some space around some values."""
    axis: dict[str, Any] = {
        "type": "log", "title": title, "tickvals": ticks, "ticktext": list(words),
    }  # fmt: skip
    if around:
        low, high = math.log10(min(around)), math.log10(max(around))
        edge = max(0.12 * (high - low), 0.2)
        axis["range"] = [round(low - edge, 4), round(high + edge, 4)]
    return axis


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers around values: powers of ten, and some between where they are close."""
    low, high = math.log10(min(values)), math.log10(max(values))
    powers = range(math.floor(low), math.ceil(high) + 1)
    between = (1,) if len(powers) > _FEW_POWERS else (1, 2, 5)
    return [part * 10.0**power for power in powers for part in between]


def measure_column(task: TaskRuns) -> PageColumn:
    """Return the column of the task's measure in a table of numbers."""
    return PageColumn(formats.axis_words(task, task.measure), is_number=True)
