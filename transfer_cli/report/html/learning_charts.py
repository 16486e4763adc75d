"""Charts of what runs measure while they train."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transfer_cli.report.contents import FINISHED, Run, TaskRuns
from transfer_cli.report.formats import axis_words, number
from transfer_cli.report.html import charts
from transfer_cli.report.html.charts import Chart, Trace, View, rounded, safe
from transfer_cli.report.html.learning_curves import Curve, RunCurves, mean_curve
from transfer_cli.report.html.line_styles import dash, symbol

_MARKED_POINTS = 40
_MEANS = (
    "A line for each group: the mean over its seeds, at the steps that all of its finished runs "
    "have measured. Thin lines are single runs."
)


def validation_chart(
    task: TaskRuns, names: Sequence[str], curves: Mapping[str, RunCurves]
) -> Chart | None:
    """Return the measures of validation over time, by the curves of each run; none without them."""
    found = dict.fromkeys(name for each in curves.values() for name in each.validation)
    main = task.measure.rpartition("/")[2]
    views = []
    for measure in sorted(found, key=lambda name: (name != main, name != "loss")):
        lines = [
            [(run, curves[run.name].validation.get(measure, ())) for run in group.runs]
            for group in task.groups
        ]
        title = axis_words(task, f"validation/{measure}")
        views.append(_over_time(f"validation {measure}", title, names, lines))
    if not views:
        return None
    return Chart(
        "validation",
        "Validation while training",
        _MEANS if len(task.runs) > 1 else "Measured on the validation split.",
        f"Line chart of {len(names)} groups over training steps. {_outcome(views[0], names)}",
        views,
    )


def training_chart(
    task: TaskRuns, names: Sequence[str], curves: Mapping[str, RunCurves]
) -> Chart | None:
    """Return the training loss over time; none where there is no record of it."""
    lines = [[(run, curves[run.name].train) for run in group.runs] for group in task.groups]
    if not any(curve for each in lines for _, curve in each):
        return None
    view = _over_time("training loss", "training loss", names, lines)
    return Chart(
        "training",
        "Training loss",
        "The loss of the batches themselves, in nats for each target. Long curves are thinned.",
        f"Line chart of {len(names)} groups over training steps. {_outcome(view, names)}",
        [view],
    )


def _over_time(
    name: str, title: str, names: Sequence[str], lines: Sequence[Sequence[tuple[Run, Curve]]]
) -> View:
    faint: list[Trace] = []
    means: list[Trace] = []
    for place, (label, runs) in enumerate(zip(names, lines, strict=True)):
        single = [curve for _, curve in runs if curve]
        finished = [curve for run, curve in runs if curve and run.status == FINISHED]
        mean = mean_curve(finished or single)
        if len(single) > 1:
            faint.append(_seeds(place, single))
        if mean:
            means.append(_mean(place, label, mean))
    values = [y for trace in (*faint, *means) for y in trace["y"] if y is not None]
    y_axis: dict[str, Any] = {"title": {"text": title}}
    if charts.is_wide(values):
        ticks = charts.log_ticks(values)
        y_axis = charts.log_axis(title, ticks, [f"{each:,.6g}" for each in ticks])
    layout = {"xaxis": {"title": {"text": "step"}, "rangemode": "tozero"}, "yaxis": y_axis}
    return View(name.replace("_", " "), [*faint, *means], layout)


def _mean(place: int, label: str, curve: Curve) -> Trace:
    is_marked = len(curve) <= _MARKED_POINTS
    return {
        "type": "scatter", "mode": "lines+markers" if is_marked else "lines", "name": safe(label),
        "x": [step for step, _ in curve], "y": [rounded(value) for _, value in curve],
        "line": {"dash": dash(place), "width": 2.25},
        "marker": {"symbol": symbol(place), "size": 6},
        "hovertemplate": "%{y:.4~g} at step %{x:,}<extra>%{fullData.name}</extra>",
        "meta": {"slot": place, "group": place, "role": "mean"},
    }  # fmt: skip


def _seeds(place: int, curves: Iterable[Curve]) -> Trace:
    """Return the curves of a group's runs as one trace, with gaps between them."""
    x: list[int | None] = []
    y: list[float | None] = []
    for curve in curves:
        x += [*(step for step, _ in curve), None]
        y += [*(rounded(value) for _, value in curve), None]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip", "opacity": 0.35,
        "line": {"width": 1}, "meta": {"slot": place, "group": place, "role": "seed"},
    }  # fmt: skip


def _outcome(view: View, names: Sequence[str]) -> str:
    last = [(trace["y"][-1], trace["meta"]["group"]) for trace in view.traces
            if trace["meta"]["role"] == "mean"]  # fmt: skip
    if not last:
        return ""
    (low, lowest), (high, highest) = min(last), max(last)
    if lowest == highest:
        return f"{view.name} ends at {number(low)}."
    return (
        f"{view.name} ends between {number(low)} ({names[lowest]}) and {number(high)} "
        f"({names[highest]})."
    )
