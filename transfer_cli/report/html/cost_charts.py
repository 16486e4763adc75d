"""Charts of what a result costs: parameters that train, and labels that people give."""

import math
from collections.abc import Iterable, Sequence

from transfer_cli.report.contents import Group, Spread, TaskRuns
from transfer_cli.report.formats import (
    axis_words,
    count,
    cut,
    is_labelled,
    measure_words,
    setting,
    several,
    short_keys,
    spread,
)  # fmt: skip
from transfer_cli.report.html.charts import (
    Chart,
    Trace,
    View,
    badness,
    is_measured,
    log_ticks,
    padded_log,
    rounded,
    safe,
)  # fmt: skip
from transfer_cli.report.html.line_styles import dash, symbol
from transfer_cli.report.html.markup import PageColumn


def size_chart(task: TaskRuns, names: Sequence[str]) -> Chart | None:
    """Return the main measure against trained parameters; none where all train as many."""
    points = [
        (group.trained or 0, group.measures[task.measure], place)
        for place, group in enumerate(task.groups)
        if (group.trained or 0) > 0 and is_measured(task, group)
    ]
    if len({trained for trained, _, _ in points}) < 2:
        return None
    points.sort(key=lambda point: (point[0], badness(task, point[1].mean)))
    front = _front(task, points)
    labelled = _best_of_each_size(task, points)
    middle = math.sqrt(points[0][0] * points[-1][0])
    ticks = log_ticks(points[0][0], points[-1][0])
    markers: Trace = {
        "type": "scatter", "mode": "markers+text",
        "x": [trained for trained, _, _ in points],
        "y": [rounded(found.mean) for _, found, _ in points],
        "error_y": {"type": "data", "array": [found.deviation or 0 for _, found, _ in points],
                    "thickness": 1.25, "width": 4},
        "marker": {"size": 11, "symbol": [symbol(place) for _, _, place in points]},
        "text": [safe(cut(names[place])) if place in labelled else "" for _, _, place in points],
        # Away from the edge, and beside the bar of its deviation.
        "textposition": ["middle right" if trained < middle else "middle left"
                         for trained, _, _ in points],
        "cliponaxis": False,
        "customdata": [safe(names[place]) for _, _, place in points],
        "hovertemplate": "%{customdata}<br>%{x:,} parameters trained<br>%{y:.4~g}<extra></extra>",
        # Where there is no room for names, the page shows the numbers of the table.
        "meta": {"slots": [place for _, _, place in points], "role": "points",
                 "short": [f"#{place + 1}" if place in labelled else "" for _, _, place in points]},
    }  # fmt: skip
    title = axis_words(task, task.measure)
    layout = {
        "xaxis": {"type": "log", "range": padded_log([trained for trained, _, _ in points]),
                  "title": {"text": "parameters trained"}, "tickmode": "array",
                  "tickvals": ticks, "ticktext": [count(each) for each in ticks]},
        "yaxis": {"title": {"text": title}},
    }  # fmt: skip
    words = measure_words(task.measure)
    better = "less" if task.lower_is_better else "more"
    best = ", ".join(f"{names[place]} ({count(trained)}: {spread(found)})"
                     for trained, found, place in front)  # fmt: skip
    return Chart(
        "size",
        f"{words[:1].upper()}{words[1:]} against trained parameters",
        f"Each point is a group, its bar one standard deviation over seeds; {better} is better. "
        "On the dotted line: nothing that trains as few parameters does better.",
        f"Scatter chart of {len(points)} groups. On the line of the best for their size: {best}.",
        [View(words, [_front_trace(front), markers], layout)],
        [PageColumn("group"), PageColumn("parameters trained", is_number=True),
         PageColumn(title, is_number=True)],
        [(names[place], f"{trained:,}", spread(found)) for trained, found, place in points],
    )  # fmt: skip


def _front(
    task: TaskRuns, points: Sequence[tuple[int, Spread, int]]
) -> list[tuple[int, Spread, int]]:
    """Return the points that no smaller one beats; `points` are by size, then by measure."""
    front: list[tuple[int, Spread, int]] = []
    for point in points:
        if not front or badness(task, point[1].mean) < badness(task, front[-1][1].mean):
            front.append(point)
    return front


def _front_trace(front: Sequence[tuple[int, Spread, int]]) -> Trace:
    return {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip",
        "x": [trained for trained, _, _ in front],
        "y": [rounded(each.mean) for _, each, _ in front],
        "line": {"dash": "dot", "width": 1.5, "shape": "hv"}, "meta": {"role": "quiet"},
    }  # fmt: skip


def _best_of_each_size(task: TaskRuns, points: Sequence[tuple[int, Spread, int]]) -> set[int]:
    first: dict[float, tuple[float, int]] = {}
    for trained, found, place in points:
        # Sizes that differ by a few percent lie on top of each other.
        size = round(math.log10(trained), 1)
        first[size] = min(first.get(size, (math.inf, -1)), (badness(task, found.mean), place))
    return {place for _, place in first.values()}


def label_chart(task: TaskRuns) -> Chart | None:
    """Return the main measure against the number of labelled examples; none where it is one."""
    keys = [key for key in task.varying if is_labelled(key)]
    if not keys:
        return None
    series: dict[str, list[tuple[int | None, Spread]]] = {}
    for group in task.groups:
        amount = group.settings.get(keys[0])
        if is_measured(task, group) and (amount is None or _is_count(amount)):
            found = (amount, group.measures[task.measure])
            series.setdefault(_rest(group, task, keys[0]), []).append(found)
    amounts = {amount for points in series.values() for amount, _ in points}
    if len(amounts) < 2:
        return None
    counts = sorted(amount for amount in amounts if amount is not None)
    # All examples are more than any number that was asked for, by how much is not known here.
    all_at = 2 * counts[-1]
    traces = [
        _labels_trace(place, label, points, all_at)
        for place, (label, points) in enumerate(series.items())
    ]
    title = axis_words(task, task.measure)
    words = measure_words(task.measure)
    ticks = [*counts, *([all_at] if None in amounts else [])]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "labelled examples"}, "tickmode": "array",
                  "tickvals": ticks, "ticktext": [*(f"{each:,}" for each in counts), "all"],
                  "range": padded_log(ticks)},
        "yaxis": {"title": {"text": title}},
        "showlegend": len(series) > 1,
    }  # fmt: skip
    return Chart(
        "labels",
        "With few labels",
        "Mean over the seeds, bars are one standard deviation. The space between examples is "
        "logarithmic; “all” stands to the right, wherever that may be.",
        f"Line chart of the {words} for {several(len(series), 'line')} and "
        f"{several(len(ticks), 'number')} of labelled examples; the numbers are in the table.",
        [View(words, traces, layout)],
        [PageColumn("settings"), PageColumn("labelled examples", is_number=True),
         PageColumn(title, is_number=True)],
        [(label, "all" if amount is None else f"{amount:,}", spread(found))
         for label, points in series.items() for amount, found in sorted(points, key=_by_amount)],
    )  # fmt: skip


def _labels_trace(
    place: int, label: str, points: Iterable[tuple[int | None, Spread]], all_at: int
) -> Trace:
    ordered = sorted(points, key=_by_amount)
    return {
        "type": "scatter", "mode": "lines+markers", "name": safe(label),
        "x": [all_at if amount is None else amount for amount, _ in ordered],
        "y": [rounded(found.mean) for _, found in ordered],
        "text": ["all" if amount is None else f"{amount:,}" for amount, _ in ordered],
        "error_y": {"type": "data", "array": [found.deviation or 0 for _, found in ordered],
                    "thickness": 1.25, "width": 4},
        "line": {"dash": dash(place), "width": 2.25},
        "marker": {"symbol": symbol(place), "size": 9},
        "hovertemplate": "%{y:.4~g} with %{text} labelled<extra>%{fullData.name}</extra>",
        "meta": {"slot": place, "role": "points"},
    }  # fmt: skip


def _by_amount(point: tuple[int | None, Spread]) -> float:
    return math.inf if point[0] is None else point[0]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _rest(group: Group, task: TaskRuns, key: str) -> str:
    short = short_keys(task.varying)
    rest = [(other, value) for other, value in group.settings.items() if other != key]
    return ", ".join(
        setting(value) if isinstance(value, str) else f"{short.get(other, other)}={setting(value)}"
        for other, value in rest
    ) or measure_words(task.measure)
