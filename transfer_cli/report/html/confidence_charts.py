"""Charts of how far probabilities can be believed: reliability, and precision against coverage."""

from collections.abc import Sequence
from itertools import accumulate

from transfer_cli.report import formats
from transfer_cli.report.contents import TaskRuns
from transfer_cli.report.html.charts import Chart, Trace, View, rounded
from transfer_cli.report.html.markup import PageColumn, dashes, shape
from transfer_cli.report.html.task_sections import tables_of

Points = Sequence[tuple[float, float]]
"""Two shares in percent."""

_BINS, _STEPS = 15, 80


def confidence_charts(task: TaskRuns) -> list[Chart]:
    """Return the charts of the best group whose runs were calibrated, or hold answers back."""
    made = (_reliability(task), _coverage(task))
    return [chart for chart in made if chart is not None]


def _counted(task: TaskRuns, name: str, height: int, width: int) -> tuple[list[list[int]], int]:
    """Return the summed tables of a group, and of how many runs."""
    place = (task.measure.partition("/")[0], name)
    counted = (tables_of(group, place, height, width) for group in task.groups)
    tables = next(filter(None, counted), [])
    rows = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
    return rows, len(tables)


def _reliability(task: TaskRuns) -> Chart | None:
    rows, runs = _counted(task, "reliability", 4, _BINS)
    if not rows:
        return None
    middles = [100 * (place + 0.5) / _BINS for place in range(_BINS)]
    lines = {
        name: [
            (middle, 100 * right / count)
            for middle, count, right in zip(middles, counts, rights, strict=True)
            if count
        ]
        for name, counts, rights in zip(("before", "after"), rows[::2], rows[1::2], strict=True)
    }
    said = (
        "Reliability",
        "Answers in 15 bins by their probability, before and after the temperature, and the share "
        "of each that is right. On the dotted line probabilities are what they say; below it they "
        f"are too high. {_of(task, runs)}",
    )
    even = {"x": [0, 100], "y": [0, 100], "line": {"dashes": "2 3", "width": 1.5},
            "meta": {"role": "quiet"}}  # fmt: skip
    return _chart("reliability", said, ("probability, %", "right, %"), lines, [even])


def _coverage(task: TaskRuns) -> Chart | None:
    rows, runs = _counted(task, "curve", 2, _STEPS)
    if not rows:
        return None
    counts, rights = (list(accumulate(reversed(row))) for row in rows)
    points = {
        (100 * count / max(1, counts[-1]), 100 * right / count)
        for count, right in zip(counts, rights, strict=True)
        if count
    }
    said = (
        "Precision against coverage",
        "Where the surest answers alone are given, as many as the axis says, the share of these "
        f"that is right. {_of(task, runs)}",
    )
    lines = {"precision": sorted(points)}
    return _chart("coverage", said, ("answers that are given, %", "of these right, %"), lines, [])


def _of(task: TaskRuns, runs: int) -> str:
    return f"On {task.measure.partition('/')[0]}, {formats.several(runs, 'run')} of the best group."


def _chart(
    name: str,
    said: tuple[str, str],
    axes: tuple[str, str],
    lines: dict[str, Points],
    beside: Sequence[Trace],
) -> Chart:
    traces: list[Trace] = [
        {
            "name": line,
            "x": [rounded(x) for x, _ in points], "y": [rounded(y) for _, y in points],
            "line": {"dashes": dashes(place), "width": 2.25},
            "marker": {"shape": shape(place), "size": 6},
            "meta": {"slot": place, "role": "points"},
        }
        for place, (line, points) in enumerate(lines.items())
    ]  # fmt: skip
    layout = {"xaxis": {"title": axes[0]}, "yaxis": {"title": axes[1]}}
    return Chart(
        name, *said, f"Line chart. {said[1]} The numbers are in the table.",
        [View(said[0], [*beside, *traces], layout)],
        ["line", *(PageColumn(axis, is_number=True) for axis in axes)],
        [(line, f"{x:.1f}", f"{y:.1f}") for line, points in lines.items() for x, y in points],
        [*lines] if len(lines) > 1 else [],
    )  # fmt: skip
