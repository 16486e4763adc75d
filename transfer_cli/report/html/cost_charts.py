"""What a result costs: the chart of a measure against the parameters that train."""

import math
from collections.abc import Sequence

from transfer_cli.report import formats
from transfer_cli.report.contents import Spread, TaskRuns
from transfer_cli.report.html import charts
from transfer_cli.report.html.charts import Chart, Trace, badness
from transfer_cli.report.html.line_styles import shape
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
        "x": [trained for trained, _, _ in front],
        "y": [charts.rounded(found.mean) for _, found, _ in front],
        "line": {"dashes": "2 3", "width": 1.5, "steps": True}, "meta": {"role": "quiet"},
    }  # fmt: skip
    axis = charts.log_axis("parameters trained", ticks, map(formats.count, ticks), sizes)
    words = formats.measure_words(task.measure)
    better = "Less" if task.lower_is_better else "More"
    best = ", ".join(
        f"{names[place]} ({formats.count(trained)}: {formats.spread(found)})"
        for trained, found, place in front
    )
    return Chart(
        "size",
        f"{words[:1].upper()}{words[1:]} against trained parameters",
        f"Each point is a group. {charts.of_spreads(task)} {better} is better. "
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
        "x": sizes, **charts.means(task, spreads),
        "marker": {"size": 11, "shape": [shape(place) for place in places]},
        "name": [names[place] for place in places],
        "labels": [formats.cut(names[at]) if at in labelled else "" for at in places],
        # Away from the edge, and beside the bar of its deviation.
        "sides": ["right" if size < middle else "left" for size in sizes],
        # Where there is no room for names, the page shows the numbers of the table.
        "meta": {"slots": places, "role": "points",
                 "short": [f"#{place + 1}" if place in labelled else "" for place in places]},
    }  # fmt: skip
