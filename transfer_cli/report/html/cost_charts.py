"""Charts of what a result costs: parameters that train, and labels that people give."""

import math
from collections.abc import Sequence

from transfer_cli.report import formats
from transfer_cli.report.contents import Group, Spread, TaskRuns
from transfer_cli.report.html import charts
from transfer_cli.report.html.charts import Chart, Trace, badness, safe
from transfer_cli.report.html.line_styles import dash, symbol
from transfer_cli.report.html.markup import PageColumn

Point = tuple[int, Spread, int]
"""Parameters that a group trains, its result, and its place."""


def size_chart(task: TaskRuns, names: Sequence[str]) -> Chart | None:
    """Return the main measure against trained parameters; none where all train as many."""
    points = [(group.trained, found, place) for place, group, found in charts.measured(task)
              if group.trained is not None and group.trained > 0]  # fmt: skip
    points.sort(key=lambda point: (point[0], badness(task, point[1].mean)))
    sizes = [trained for trained, _, _ in points]
    if len(set(sizes)) < 2:
        return None
    front: list[Point] = []
    for point in points:
        if not front or badness(task, point[1].mean) < badness(task, front[-1][1].mean):
            front.append(point)
    ticks = charts.log_ticks(sizes)
    line = {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip",
        "x": [trained for trained, _, _ in front],
        "y": [charts.rounded(found.mean) for _, found, _ in front],
        "line": {"dash": "dot", "width": 1.5, "shape": "hv"}, "meta": {"role": "quiet"},
    }  # fmt: skip
    axis = charts.log_axis("parameters trained", ticks, map(formats.count, ticks), sizes)
    words = formats.measure_words(task.measure)
    better = "less" if task.lower_is_better else "more"
    best = ", ".join(
        f"{names[place]} ({formats.count(trained)}: {formats.spread(found)})"
        for trained, found, place in front
    )
    return Chart(
        "size",
        f"{words[:1].upper()}{words[1:]} against trained parameters",
        f"Each point is a group, its bar one standard deviation over seeds; {better} is better. "
        "On the dotted line: nothing that trains as few parameters does better.",
        f"Scatter chart of {len(points)} groups. On the line of the best for their size: {best}.",
        [charts.against(task, axis, [line, _markers(task, points, names)])],
        ["group", PageColumn("parameters trained", is_number=True), charts.measure_column(task)],
        [(names[place], f"{trained:,}", formats.spread(found)) for trained, found, place in points],
    )  # fmt: skip


def _markers(task: TaskRuns, points: Sequence[Point], names: Sequence[str]) -> Trace:
    sizes, spreads, places = zip(*points, strict=True)
    middle = math.sqrt(sizes[0] * sizes[-1])
    # The best of each size has its name. Sizes a few percent apart lie on top of each other.
    worst_first = sorted(points, key=lambda point: (-badness(task, point[1].mean), -point[2]))
    labelled = {round(math.log10(size), 1): place for size, _, place in worst_first}.values()
    return {
        "type": "scatter", "mode": "markers+text", "x": sizes, **charts.means(task, spreads),
        "marker": {"size": 11, "symbol": [symbol(place) for place in places]},
        "text": [safe(formats.cut(names[at])) if at in labelled else "" for at in places],
        # Away from the edge, and beside the bar of its deviation.
        "textposition": ["middle right" if size < middle else "middle left" for size in sizes],
        "cliponaxis": False,
        "customdata": [safe(names[place]) for place in places],
        "hovertemplate": "%{customdata}<br>%{x:,} parameters trained<br>%{y:.4~g}<extra></extra>",
        # Where there is no room for names, the page shows the numbers of the table.
        "meta": {"slots": places, "role": "points",
                 "short": [f"#{place + 1}" if place in labelled else "" for place in places]},
    }  # fmt: skip


def label_chart(task: TaskRuns) -> Chart | None:
    """Return the main measure against the number of labelled examples; none where it is one."""
    key = next((key for key in task.varying if formats.is_labelled(key)), None)
    if key is None:
        return None
    series: dict[str, list[tuple[float, Spread]]] = {}
    for _, group, found in charts.measured(task):
        amount = group.settings.get(key)
        if amount is None or (type(amount) is int and amount > 0):
            # All examples are more than any number that was asked for.
            point = (math.inf if amount is None else amount, found)
            series.setdefault(_rest(group, task, key), []).append(point)
    amounts = sorted({amount for points in series.values() for amount, _ in points})
    if len(amounts) < 2:
        return None
    # By how much they are more is not known here.
    all_at = 2 * max(amount for amount in amounts if amount < math.inf)
    ticks = [min(amount, all_at) for amount in amounts]
    axis = charts.log_axis("labelled examples", ticks, map(_amount, amounts), ticks)
    words = formats.measure_words(task.measure)
    for points in series.values():
        points.sort(key=lambda point: point[0])
    traces = [_line(task, place, *each, all_at) for place, each in enumerate(series.items())]
    return Chart(
        "labels",
        "With few labels",
        "Mean over the seeds, bars are one standard deviation. The space between examples is "
        "logarithmic; “all” stands to the right, wherever that may be.",
        f"Line chart of the {words} for {formats.several(len(series), 'line')} and "
        f"{formats.several(len(ticks), 'number')} of labelled examples; the numbers are in the "
        "table.",
        [charts.against(task, axis, traces, showlegend=len(series) > 1)],
        ["settings", PageColumn("labelled examples", is_number=True), charts.measure_column(task)],
        [(label, _amount(amount), formats.spread(found))
         for label, points in series.items() for amount, found in points],
    )  # fmt: skip


def _line(
    task: TaskRuns, place: int, label: str, points: Sequence[tuple[float, Spread]], all_at: float
) -> Trace:
    return {
        "type": "scatter", "mode": "lines+markers", "name": safe(label),
        "x": [min(amount, all_at) for amount, _ in points],
        **charts.means(task, (found for _, found in points)),
        "text": [_amount(amount) for amount, _ in points],
        "line": {"dash": dash(place), "width": 2.25},
        "marker": {"symbol": symbol(place), "size": 9},
        "hovertemplate": "%{y:.4~g} with %{text} labelled<extra>%{fullData.name}</extra>",
        "meta": {"slot": place, "role": "points"},
    }  # fmt: skip


def _amount(amount: float) -> str:
    return "all" if amount == math.inf else f"{amount:,}"


def _rest(group: Group, task: TaskRuns, key: str) -> str:
    """Return a group's settings but for the number of labelled examples."""
    short = formats.short_keys(task.varying)
    words = [
        value if isinstance(value, str) else f"{short.get(other, other)}={formats.setting(value)}"
        for other, value in group.settings.items()
        if other != key
    ]
    return ", ".join(words) or formats.measure_words(task.measure)
