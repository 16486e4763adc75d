"""Charts, and those of a task: against learning rate, labels, costs, and that of a ladder.

The page's script draws traces. A trace is a mapping: `x` and `y` of its points, None where a line
has a gap; `line` and `marker`, what is drawn; `error_y`, bars; `name`, what a point is called, or a
name for each point; `labels`, words beside the points; `ring`, the point to take. `meta.slot` says
which group it shows, or `slots` for each point: the script gives it a colour that differs from the
others on a light and on a dark ground.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transfer_cli.reports import formats, results_table
from transfer_cli.reports.contents import Group, Ladder, Spread, TaskRuns
from transfer_cli.reports.html.markup import Html, PageColumn, dashes, shape, table
from transfer_cli.reports.remarks import ladder_lines
from transfer_cli.reports.results_table import Cell

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


def rounded(value: float) -> float:
    """Return a value with as many digits as a chart can show."""
    return float(f"{value:.5g}")


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values are easier to tell apart by their logarithm."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_RATIO


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


RATE_KEY = "optimizer.lr"

MOST_LINES = 8
"""With more of them, groups are points, apart by one further setting."""

_MOST_TICKS = 8


class _Cost(NamedTuple):
    """An axis of what groups cost: `amount` is its name in a group, and `words` writes one."""

    name: str
    title: str
    against: str
    no_more: str
    amount: str
    words: Callable[[float], str]


_COSTS = (
    _Cost(
        "size", "parameters trained", "trained parameters", "trains as few parameters", "trained",
        formats.count,
    ),
    _Cost(
        "flops", "floating-point operations", "FLOPs", "takes as few operations", "flops",
        formats.flops,
    ),
    _Cost(
        "joules", "energy", "energy", "takes as little energy", "joules", formats.energy,
    ),
)  # fmt: skip


class Point(NamedTuple):
    """A group with its place on the axis, its result as it is shown, and its number.

    Of two results the one with more `badness` is the worse.
    """

    value: float
    result: Spread
    number: int
    group: Group
    badness: float


Lines = Mapping[str, Sequence[Point]]
"""The points of each line, from left to right."""


def cost_charts(task: TaskRuns, names: Sequence[str]) -> list[Chart]:
    """Return the main measure against each kind of cost in which groups differ."""
    charts = (_cost_chart(task, names, cost) for cost in _COSTS)
    return [chart for chart in charts if chart is not None]


def rate_chart(task: TaskRuns) -> Chart | None:
    """Return the task's measure over the learning rate; none where fewer than two were tried."""
    lines = _lines(task, RATE_KEY, _as_rate)
    rates = sorted({point.value for points in lines.values() for point in points})
    if RATE_KEY not in task.varying or len(rates) < 2:
        return None
    apart, are_lines = _lines_or_points(task, lines)
    ticks = rates if len(rates) <= _MOST_TICKS else log_ticks(rates)
    axis = log_axis("learning rate", ticks, map(formats.setting, ticks), rates)
    words = formats.measure_words(task.measure)
    placed = [(label, point) for label, points in apart.items() for point in points]
    _, best = min(placed, key=lambda pair: pair[1].badness)
    best_label = next((f"{label} at {formats.setting(point.value)}" for label, point in placed
                  if results_table.holds_best(task, point.group)), "")  # fmt: skip
    to_take = f"the run to take is of {best_label}"
    texts = (
        f"{words[:1].upper()}{words[1:]} over learning rate",
        f"{'A line for each scheme' if are_lines else 'Each point is a group'}. "
        f"{_spread_words(task)}{f' The ring: {to_take}.' if best_label else ''}",
        f"Chart of the {words} over {formats.several(len(rates), 'learning rate')} for "
        f"{', '.join(apart)}. The best mean is {formats.spread(best.result)} at "
        f"{formats.setting(best.value)}{f'; {to_take}' if best_label else ''}.",
    )
    traces = _traces(task, apart, are_lines=are_lines)
    rows = [(label, formats.setting(point.value), point.result) for label, point in placed]
    return _chart(task, "rate", texts, axis, traces, rows)


def label_chart(task: TaskRuns) -> Chart | None:
    """Return the task's measure against the number of labelled examples; none where it is one."""
    key = next((key for key in task.varying if formats.is_labelled(key)), None)
    lines = {} if key is None else _lines(task, key, _as_amount)
    amounts = sorted({point.value for points in lines.values() for point in points})
    if key is None or len(amounts) < 2:
        return None
    most = max(amount for amount in amounts if amount < math.inf)
    of_all = [group for group in task.groups if group.settings.get(key) is None]
    known = max(
        (run.results.examples.get("train", 0) for group in of_all for run in group.finished),
        default=0,
    )
    # Runs of earlier versions do not say how many all are: more than any number that was asked for.
    all_at = known if known >= most else 2 * most
    place = f"is {known:,}" if known >= most else "stands to the right, wherever that may be"
    of_all_labels = f"; “all” {place}" if amounts[-1] == math.inf else ""
    ticks = [min(amount, all_at) for amount in amounts]
    axis = log_axis("labelled examples", ticks, map(_amount_words, amounts), ticks)
    placed = {label: [point._replace(value=min(point.value, all_at)) for point in points]
              for label, points in lines.items()}  # fmt: skip
    texts = (
        "With few labels",
        f"{_spread_words(task)} The space between examples is logarithmic{of_all_labels}.",
        f"Line chart of the {formats.measure_words(task.measure)} for "
        f"{formats.several(len(lines), 'line')} and {formats.several(len(ticks), 'number')} of "
        "labelled examples; the numbers are in the table.",
    )
    traces = _traces(task, placed, are_lines=True)
    rows = [(label, _amount_words(point.value), point.result)
            for label, points in lines.items() for point in points]  # fmt: skip
    return _chart(task, "labels", texts, axis, traces, rows)


def _cost_chart(task: TaskRuns, names: Sequence[str], cost: _Cost) -> Chart | None:
    placed = _points(task, lambda group: group.mean(cost.amount))
    points = [point for point in placed if 0 < point.value < math.inf]
    points.sort(key=lambda point: (point.value, point.badness))
    alike = 1.005  # costs that differ by less come from how texts were drawn into batches
    if not points or points[-1].value < alike * points[0].value:
        return None
    front: list[Point] = []
    for point in points:
        if not front or point.badness < front[-1].badness:
            front.append(point)
    line = {
        "x": [point.value for point in front],
        "y": [rounded(point.result.mean) for point in front],
        "line": {"dashes": "2 3", "width": 1.5, "steps": True}, "meta": {"role": "quiet"},
    }  # fmt: skip
    amounts = [point.value for point in points]
    ticks = log_ticks(amounts)
    words, better = formats.measure_words(task.measure), "Less" if task.lower_is_better else "More"
    best = ", ".join(
        f"{names[point.number]} ({cost.words(point.value)}: {formats.spread(point.result)})"
        for point in front
    )
    texts = (
        f"{words[:1].upper()}{words[1:]} against {cost.against}",
        f"Each point is a group. {_spread_words(task)} {better} is better. On the dotted line: "
        f"nothing that {cost.no_more} does better.",
        f"Scatter chart of {len(points)} groups. On the line of the best for their cost: {best}.",
    )
    axis = log_axis(cost.title, ticks, map(cost.words, ticks), amounts)
    traces = [line, _markers(task, points, names)]
    rows = [(names[point.number], f"{point.value:,.0f}", point.result) for point in points]
    return _chart(task, cost.name, texts, axis, traces, rows)


def _chart(
    task: TaskRuns, name: str, texts: tuple[str, str, str], axis: Trace, traces: Sequence[Trace],
    rows: Sequence[tuple[str, str, Spread]],
) -> Chart:  # fmt: skip
    measure = formats.axis_words(task, task.measure)
    view = View(
        formats.measure_words(task.measure), traces, {"xaxis": axis, "yaxis": {"title": measure}}
    )
    lines = [trace["name"] for trace in traces if "slot" in trace["meta"]]
    numbers = (PageColumn(title, is_number=True) for title in (axis["title"], measure))
    columns = ["settings" if lines else "group", *numbers]
    cells = [(*row, formats.spread(result)) for *row, result in rows]
    return Chart(name, *texts, [view], columns, cells, lines if len(lines) > 1 else [])


def _points(task: TaskRuns, place: Callable[[Group], float | None]) -> Iterator[Point]:
    """Yield the groups whose result can be drawn, and that have a place."""
    for number, group in enumerate(task.groups):
        result, value = group.measures.get(task.measure), place(group)
        if value is not None and result is not None and math.isfinite(result.mean):
            scaled = formats.scaled(result, task.metric(task.measure).display_scale)
            sign = 1 if task.lower_is_better else -1
            yield Point(value, scaled, number, group, sign * scaled.mean)


def _spread_words(task: TaskRuns) -> str:
    """Return what a point and its bar are."""
    results = [point.result for point in _points(task, lambda group: 0.0)]
    if any(result.deviation is not None for result in results):
        return "Means over the seeds; bars are one standard deviation."
    if any(len(result.values) > 1 for result in results):
        return "Means over the seeds, without bars: a deviation takes three seeds or more."
    return "Each is a single run."


def _as_rate(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < math.inf else None


def _as_amount(value: Any) -> float | None:
    if value is None:
        return math.inf
    return value if type(value) is int and value > 0 else None


def _amount_words(amount: float) -> str:
    return "all" if amount == math.inf else f"{amount:,}"


def _lines(task: TaskRuns, key: str, value_of: Callable[[Any], float | None]) -> Lines:
    """Return groups by their other settings, placed by a key."""
    lines = defaultdict(list)
    for point in _points(task, lambda group: value_of(group.settings.get(key))):
        rest = [other for other in point.group.settings if other != key]
        lines[_settings_words(task, point.group, rest)].append(point)
    return {label: sorted(points, key=lambda point: point.value) for label, points in lines.items()}


def _lines_or_points(task: TaskRuns, lines: Lines) -> tuple[Lines, bool]:
    """Return the points by line, and whether lines join them: a search tries no rate twice."""
    if len(lines) <= MOST_LINES:
        return lines, True
    points = [point for line in lines.values() for point in line]
    points.sort(key=lambda point: point.value)
    for key in (other for other in task.varying if other != RATE_KEY):
        apart: dict[str, list[Point]] = defaultdict(list)
        for point in points:
            apart[_settings_words(task, point.group, [key])].append(point)
        if 1 < len(apart) <= MOST_LINES:
            return apart, False
    return {formats.measure_words(task.measure): points}, False


def _settings_words(task: TaskRuns, group: Group, keys: Iterable[str]) -> str:
    short = formats.short_keys(task.varying)
    words = [
        value if isinstance(value, str) else f"{short.get(key, key)}={formats.setting(value)}"
        for key, value in ((key, group.settings.get(key)) for key in keys)
    ]
    return ", ".join(words) or formats.measure_words(task.measure)


def _traces(task: TaskRuns, lines: Lines, *, are_lines: bool) -> list[Trace]:
    traces = []
    for place, (label, points) in enumerate(lines.items()):
        best = [results_table.holds_best(task, point.group) for point in points]
        places = [(point.value, point.result.mean) for point in points]
        trace = points_trace(label, place, places, is_line=are_lines)
        trace |= means(task, [point.result for point in points])
        if True in best:
            trace["ring"] = best.index(True)
        traces.append(trace)
    return traces


def points_trace(
    name: str, place: int, points: Sequence[tuple[float, float]], *, size: int = 9,
    is_line: bool = True,
) -> Trace:  # fmt: skip
    """Return points with the look of a place, that of a group or a line, joined by a line."""
    line = {"line": {"dashes": dashes(place), "width": 2.25}} if is_line else {}
    return {
        "name": name, "x": [x for x, _ in points], "y": [y for _, y in points], **line,
        "marker": {"shape": shape(place), "size": size}, "meta": {"slot": place, "role": "points"},
    }  # fmt: skip


def _markers(task: TaskRuns, points: Sequence[Point], names: Sequence[str]) -> Trace:
    places = [point.number for point in points]
    middle = math.sqrt(points[0].value * points[-1].value)
    # The best of each amount has its name. Those a few percent apart lie on top of each other.
    worst_first = sorted(points, key=lambda point: (-point.badness, -point.number))
    best_of_amount = {round(math.log10(point.value), 1): point.number for point in worst_first}
    labelled = set(best_of_amount.values())
    return {
        "x": [point.value for point in points],
        **means(task, [point.result for point in points]),
        "marker": {"size": 11, "shape": [shape(place) for place in places]},
        "name": [names[place] for place in places],
        "labels": [formats.cut(names[at]) if at in labelled else "" for at in places],
        # Away from the edge, and beside the bar of its deviation.
        "sides": ["right" if point.value < middle else "left" for point in points],
        # Where there is no room for names, the page shows the numbers of the table.
        "meta": {"slots": places, "role": "points",
                 "short": [f"#{place + 1}" if place in labelled else "" for place in places]},
    }  # fmt: skip


def means(task: TaskRuns, results: Sequence[Spread]) -> Trace:
    """Return the part of a trace that places means, with a bar of one deviation each.

    A bar ends where the task's measure does: no error rate is below 0.
    """
    metric = task.metric(task.measure)
    low, high = (metric.display_scale * bound for bound in metric.bounds)
    bars = [(result.mean, result.deviation or 0) for result in results]
    return {
        "y": [rounded(mean) for mean, _ in bars],
        "error_y": {
            "array": [min(bar, max(0, high - mean)) for mean, bar in bars],
            "arrayminus": [min(bar, max(0, mean - low)) for mean, bar in bars],
        },
    }


def ladder_chart(ladder: Ladder) -> Chart | None:
    """Return the validation loss over operations; None where there is no law."""
    if not ladder.curve:
        return None
    places = [place for place, _ in ladder.curve]
    curves: list[Trace] = [
        {
            "x": places, "y": [rounded(getattr(expected, end)) for _, expected in ladder.curve],
            "line": {"dashes": "" if end == "loss" else "2 3", "width": 1.5},
            "meta": {"role": "quiet"},
        }
        for end in ("loss", "low", "high")
    ]  # fmt: skip
    foretold = [
        (rung, rung.prediction.loss, str(rung.prediction))
        for rung in (*ladder.came, ladder.target)
        if rung and rung.prediction
    ]
    groups = {
        "ladder": [(rung, rung.loss, f"{rung.loss:.3f}") for rung in ladder.rungs],
        "foretold": foretold,
        "came": [(rung, rung.loss, f"{rung.loss:.3f}") for rung in ladder.came],
    }
    points: list[Trace] = [
        points_trace(kind, place, [(rung.operations, rounded(loss)) for rung, loss, _ in members],
                     is_line=False)
        for place, (kind, members) in enumerate(groups.items()) if members
    ]  # fmt: skip
    rows = [(f"{rung.name} ({kind})", formats.flops(rung.operations), text)
            for kind, members in groups.items() for rung, _, text in members]  # fmt: skip
    ticks = log_ticks(places)
    axis = log_axis("floating-point operations", ticks, map(formats.flops, ticks), places)
    words = "validation loss, nats a token"
    return Chart(
        "ladder", "Validation loss over operations",
        "Each point is a run. The line is the law of the ladder, as far as it is believed; between "
        "the dotted ones a further run is expected, in 95 of 100 cases.",
        " ".join(f"{line}." for line in ladder_lines(ladder)),
        [View(words, [*curves, *points], {"xaxis": axis, "yaxis": {"title": words}})],
        ["run", *(PageColumn(title, is_number=True) for title in (axis["title"], words))],
        rows, [kind for kind, members in groups.items() if members],
    )  # fmt: skip
