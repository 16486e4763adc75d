"""Charts of how far probabilities can be believed: reliability, and precision against coverage."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from transfer_cli.reports.contents import TaskRuns
from transfer_cli.reports.html.charts import Chart, Trace, View, points_trace, rounded
from transfer_cli.reports.html.markup import PageColumn
from transfer_cli.runs.class_scores import count_table

Points = Sequence[tuple[float, float]]
"""Two shares in percent."""

_BINS, _STEPS = 15, 80


def confidence_charts(task: TaskRuns, names: Sequence[str]) -> list[Chart | None]:
    """Return the charts of the best group whose runs were calibrated, or hold answers back."""
    return [_reliability(task, names), _coverage(task, names)]


def _summed_counts(
    task: TaskRuns, names: Sequence[str], name: str, height: int, width: int
) -> tuple[str, list[list[int]]]:
    """Return whose such tables are, the best group's that has some, and the sum of them."""
    split = task.measure.partition("/")[0]
    for at, group in task.best_first:
        counts = [count_table(run.results, split, name, height, width) for run in group.runs]
        if tables := [*filter(None, counts)]:
            rows = zip(*tables, strict=True)
            whose = f"On {split}: {names[at]}."
            return whose, [[sum(cells) for cells in zip(*row, strict=True)] for row in rows]
    return "", []


def _reliability(task: TaskRuns, names: Sequence[str]) -> Chart | None:
    whose, rows = _summed_counts(task, names, "reliability", 4, _BINS)
    middles = [100 * (place + 0.5) / _BINS for place in range(_BINS)]
    lines = {
        name: [
            (middle, 100 * right / count)
            for middle, count, right in zip(middles, counts, rights, strict=True)
            if count
        ]
        for name, counts, rights in zip(("before", "after"), rows[::2], rows[1::2], strict=False)
    }
    caption = (
        "Answers in 15 bins by their probability, before and after the temperature, and the share "
        "of each that is right. On the dotted line probabilities are what they say; below it they "
        f"are too high. {whose}"
    )
    even = {"x": [0, 100], "y": [0, 100], "line": {"dashes": "2 3", "width": 1.5},
            "meta": {"role": "quiet"}}  # fmt: skip
    return _chart("Reliability", caption, ("probability, %", "right, %"), lines, even)


def _coverage(task: TaskRuns, names: Sequence[str]) -> Chart | None:
    whose, counted = _summed_counts(task, names, "curve", 2, _STEPS)
    rows = [[*accumulate(reversed(row))] for row in counted]
    points = {
        (100 * count / rows[0][-1], 100 * right / count)
        for count, right in zip(*rows, strict=True)
        if count
    }
    caption = (
        "Where the surest answers alone are given, as many as the axis says, the share of these "
        f"that is right. {whose}"
    )
    axes = ("answers that are given, %", "of these right, %")
    lines = {"precision": sorted(points)}
    return _chart("Precision against coverage", caption, axes, lines)


def _chart(
    title: str, caption: str, axes: tuple[str, str], lines: Mapping[str, Points], *beside: Trace
) -> Chart | None:
    if not any(lines.values()):
        return None
    traces = [
        points_trace(line, place, [(rounded(x), rounded(y)) for x, y in points], size=6)
        for place, (line, points) in enumerate(lines.items())
    ]
    layout = {"xaxis": {"title": axes[0]}, "yaxis": {"title": axes[1]}}
    return Chart(
        title.split()[0].lower(), title, caption, f"Line chart. {caption}",
        [View(title, [*beside, *traces], layout)],
        ["line", *(PageColumn(axis, is_number=True) for axis in axes)],
        [(line, f"{x:.1f}", f"{y:.1f}") for line, points in lines.items() for x, y in points],
        [*lines] if len(lines) > 1 else [],
    )  # fmt: skip
