"""What a result costs: charts of a measure against trained parameters, operations and energy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transfer_cli.report import formats
from transfer_cli.report.contents import Group, Spread, TaskRuns
from transfer_cli.report.html import charts
from transfer_cli.report.html.charts import Chart, Trace, badness
from transfer_cli.report.html.line_styles import shape
from transfer_cli.report.html.markup import PageColumn

Point = tuple[float, Spread, int]
"""What a group costs, its result, and its place."""

_ALIKE = 1.005
"""Costs that differ by less come from how texts were drawn into batches."""


@dataclass(frozen=True)
class _Cost:
    """What groups are placed by.

    Args:
        name: Of the chart.
        title: Of the axis.
        against: What the measure is drawn against.
        no_more: What is said of the groups on the line.
        of: Returns what a group costs; None where it is not known.
        words: Writes an amount.
    """

    name: str
    title: str
    against: str
    no_more: str
    of: Callable[[Group], float | None]
    words: Callable[[float], str]


def _mean(found: Spread | None) -> float | None:
    return None if found is None else found.mean


_COSTS = (
    _Cost(
        "size", "parameters trained", "trained parameters", "trains as few parameters",
        lambda group: group.trained, formats.count,
    ),
    _Cost(
        "flops", "floating-point operations", "FLOPs", "takes as few operations",
        lambda group: _mean(group.flops), formats.flops,
    ),
    _Cost(
        "joules", "energy", "energy", "takes as little energy",
        lambda group: _mean(group.joules), formats.energy,
    ),
)  # fmt: skip


def cost_charts(task: TaskRuns, names: Sequence[str]) -> list[Chart]:
    """Return the main measure against each kind of cost in which groups differ."""
    found = (_chart(task, names, cost) for cost in _COSTS)
    return [chart for chart in found if chart is not None]


def _chart(task: TaskRuns, names: Sequence[str], cost: _Cost) -> Chart | None:
    known = ((cost.of(group), found, place) for place, group, found in charts.measured(task))
    points = [
        (amount, found, place)
        for amount, found, place in known
        if amount is not None and 0 < amount < math.inf
    ]
    points.sort(key=lambda point: (point[0], badness(task, point[1].mean)))
    amounts = [amount for amount, _, _ in points]
    if not amounts or amounts[-1] < _ALIKE * amounts[0]:
        return None
    front: list[Point] = []
    for point in points:
        if not front or badness(task, point[1].mean) < badness(task, front[-1][1].mean):
            front.append(point)
    ticks = charts.log_ticks(amounts)
    line = {
        "x": [amount for amount, _, _ in front],
        "y": [charts.rounded(found.mean) for _, found, _ in front],
        "line": {"dashes": "2 3", "width": 1.5, "steps": True}, "meta": {"role": "quiet"},
    }  # fmt: skip
    axis = charts.log_axis(cost.title, ticks, map(cost.words, ticks), amounts)
    words = formats.measure_words(task.measure)
    better = "Less" if task.lower_is_better else "More"
    best = ", ".join(
        f"{names[place]} ({cost.words(amount)}: {formats.spread(found)})"
        for amount, found, place in front
    )
    return Chart(
        cost.name,
        f"{words[:1].upper()}{words[1:]} against {cost.against}",
        f"Each point is a group. {charts.of_spreads(task)} {better} is better. "
        f"On the dotted line: nothing that {cost.no_more} does better.",
        f"Scatter chart of {len(points)} groups. On the line of the best for their cost: {best}.",
        [charts.against(task, axis, [line, _markers(task, points, names)])],
        ["group", PageColumn(cost.title, is_number=True), charts.measure_column(task)],
        [(names[at], f"{amount:,.0f}", formats.spread(found)) for amount, found, at in points],
    )  # fmt: skip


def _markers(task: TaskRuns, points: Sequence[Point], names: Sequence[str]) -> Trace:
    amounts, spreads, places = zip(*points, strict=True)
    middle = math.sqrt(amounts[0] * amounts[-1])
    # The best of each amount has its name. Those a few percent apart lie on top of each other.
    worst_first = sorted(points, key=lambda point: (-badness(task, point[1].mean), -point[2]))
    labelled = {round(math.log10(amount), 1): place for amount, _, place in worst_first}.values()
    return {
        "x": amounts, **charts.means(task, spreads),
        "marker": {"size": 11, "shape": [shape(place) for place in places]},
        "name": [names[place] for place in places],
        "labels": [formats.cut(names[at]) if at in labelled else "" for at in places],
        # Away from the edge, and beside the bar of its deviation.
        "sides": ["right" if amount < middle else "left" for amount in amounts],
        # Where there is no room for names, the page shows the numbers of the table.
        "meta": {"slots": places, "role": "points",
                 "short": [f"#{place + 1}" if place in labelled else "" for place in places]},
    }  # fmt: skip
