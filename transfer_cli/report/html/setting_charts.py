"""The measure of a task over one setting, a line for each scheme: over rates, over labels."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transfer_cli.report import formats, results_table
from transfer_cli.report.contents import Group, Spread, TaskRuns
from transfer_cli.report.html import charts
from transfer_cli.report.html.charts import Chart, Trace, badness
from transfer_cli.report.html.line_styles import dashes, shape
from transfer_cli.report.html.markup import PageColumn

RATE = "optimizer.lr"

MOST_LINES = 8
"""With more of them, groups are points, apart by one further setting."""

_MOST_TICKS = 8


class Point(NamedTuple):
    """A group at its value of the setting."""

    value: float
    found: Spread
    group: Group


Lines = Mapping[str, Sequence[Point]]
"""The points of each line, from left to right."""


def rate_chart(task: TaskRuns) -> Chart | None:
    """Return the task's measure over the learning rate; none where fewer than two were tried."""
    lines = _lines(task, RATE, _rate)
    rates = sorted({point.value for points in lines.values() for point in points})
    if RATE not in task.varying or len(rates) < 2:
        return None
    apart, are_lines = _apart(task, lines)
    few = len(rates) <= _MOST_TICKS
    ticks = rates if few else charts.log_ticks(rates)
    axis = charts.log_axis("learning rate", ticks, map(formats.setting, ticks), rates)
    words = formats.measure_words(task.measure)
    taken = _taken(task, apart)
    best = min((each for points in apart.values() for each in points),
               key=lambda each: badness(task, each.found.mean))  # fmt: skip
    return Chart(
        "rate",
        f"{words[:1].upper()}{words[1:]} over learning rate",
        f"{'A line for each scheme' if are_lines else 'Each point is a group'}. "
        f"{charts.of_spreads(task)}{f' The ring: the run to take is of {taken}.' if taken else ''}",
        f"Chart of the {words} over {formats.several(len(rates), 'learning rate')} for "
        f"{', '.join(apart)}. The best mean is {formats.spread(best.found)} at "
        f"{formats.setting(best.value)}{f'; the run to take is of {taken}' if taken else ''}.",
        [charts.against(task, axis, _traces(task, apart, are_lines=are_lines))],
        ["settings", PageColumn("learning rate", is_number=True), charts.measure_column(task)],
        [(label, formats.setting(each.value), formats.spread(each.found))
         for label, points in apart.items() for each in points],
        lines=[*apart] if len(apart) > 1 else [],
    )  # fmt: skip


def label_chart(task: TaskRuns) -> Chart | None:
    """Return the task's measure against the number of labelled examples; none where it is one."""
    key = next((key for key in task.varying if formats.is_labelled(key)), None)
    lines = {} if key is None else _lines(task, key, _amount)
    amounts = sorted({point.value for points in lines.values() for point in points})
    if key is None or len(amounts) < 2:
        return None
    asked = max(amount for amount in amounts if amount < math.inf)
    of_all = [group for group in task.groups if group.settings.get(key) is None]
    known = max(
        (run.results.examples.get("train", 0) for group in of_all for run in group.finished),
        default=0,
    )
    # Runs of earlier versions do not say how many all are: more than any number that was asked for.
    all_at = known if known >= asked else 2 * asked
    place = f"is {known:,}" if known >= asked else "stands to the right, wherever that may be"
    ticks = [min(amount, all_at) for amount in amounts]
    axis = charts.log_axis("labelled examples", ticks, map(_amount_words, amounts), ticks)
    placed = {label: [each._replace(value=min(each.value, all_at)) for each in points]
              for label, points in lines.items()}  # fmt: skip
    return Chart(
        "labels",
        "With few labels",
        f"{charts.of_spreads(task)} The space between examples is logarithmic; “all” {place}.",
        f"Line chart of the {formats.measure_words(task.measure)} for "
        f"{formats.several(len(lines), 'line')} and {formats.several(len(ticks), 'number')} of "
        "labelled examples; the numbers are in the table.",
        [charts.against(task, axis, _traces(task, placed, are_lines=True))],
        ["settings", PageColumn("labelled examples", is_number=True), charts.measure_column(task)],
        [(label, _amount_words(each.value), formats.spread(each.found))
         for label, points in lines.items() for each in points],
        lines=[*lines] if len(lines) > 1 else [],
    )  # fmt: skip


def _rate(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < math.inf else None


def _amount(value: Any) -> float | None:
    if value is None:
        return math.inf
    return value if type(value) is int and value > 0 else None


def _amount_words(amount: float) -> str:
    return "all" if amount == math.inf else f"{amount:,}"


def _lines(task: TaskRuns, key: str, value_of: Callable[[Any], float | None]) -> Lines:
    found = defaultdict(list)
    for _, group, spread in charts.measured(task):
        if (value := value_of(group.settings.get(key))) is not None:
            rest = [other for other in group.settings if other != key]
            found[_words(task, group, rest)].append(Point(value, spread, group))
    return {label: sorted(points, key=lambda each: each.value) for label, points in found.items()}


def _apart(task: TaskRuns, lines: Lines) -> tuple[Lines, bool]:
    """Return the points by line, and whether lines join them: a search tries no rate twice."""
    if len(lines) <= MOST_LINES:
        return lines, True
    points = sorted((each for line in lines.values() for each in line), key=lambda each: each.value)
    for key in (each for each in task.varying if each != RATE):
        found: dict[str, list[Point]] = defaultdict(list)
        for point in points:
            found[_words(task, point.group, [key])].append(point)
        if 1 < len(found) <= MOST_LINES:
            return found, False
    return {formats.measure_words(task.measure): points}, False


def _words(task: TaskRuns, group: Group, keys: Iterable[str]) -> str:
    """Return a group's settings of some keys."""
    short = formats.short_keys(task.varying)
    words = [
        value if isinstance(value, str) else f"{short.get(key, key)}={formats.setting(value)}"
        for key, value in ((key, group.settings.get(key)) for key in keys)
    ]
    return ", ".join(words) or formats.measure_words(task.measure)


def _taken(task: TaskRuns, lines: Lines) -> str:
    """Return the line and rate of the run to take; "" where there is none."""
    found = ((label, each) for label, points in lines.items() for each in points)
    return next((f"{label} at {formats.setting(each.value)}" for label, each in found
                 if results_table.holds_best(task, each.group)), "")  # fmt: skip


def _traces(task: TaskRuns, lines: Lines, *, are_lines: bool) -> list[Trace]:
    traces = []
    for place, (label, points) in enumerate(lines.items()):
        taken = [results_table.holds_best(task, each.group) for each in points]
        made: Trace = {
            "name": label, "x": [each.value for each in points],
            **charts.means(task, (each.found for each in points)),
            "marker": {"shape": shape(place), "size": 9},
            "meta": {"slot": place, "role": "points"},
        }  # fmt: skip
        if are_lines:
            made["line"] = {"dashes": dashes(place), "width": 2.25}
        if True in taken:
            made["ring"] = taken.index(True)
        traces.append(made)
    return traces
