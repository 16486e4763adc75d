"""What came out of a task: the best in a sentence, all groups in a table, what did not finish."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.html.markup import (
    Cell,
    Column,
    Html,
    MarkedRow,
    joined,
    macros,
    sortable_table,
    table,
)
from transfer_cli.report.model import FINISHED, Group, Spread, Task
from transfer_cli.report.results_table import (
    LEARNT_NOTHING,
    Difference,
    Kind,
    Probability,
    ResultColumn,
    RunCount,
    difference_to_baseline,
    explanations,
    learnt_nothing,
    measure_column,
    probability_of,
    results_table,
    unfinished,
)

MOST_OPEN = 8
"""Runs that did not finish which are listed from the start; more of them on demand."""

_MOST_BESIDE = 1
_UNFINISHED = "Runs that are not finished, or learnt next to nothing"
_HEADS: Mapping[Kind, tuple[str, str]] = {
    Kind.DIFFERENCE: ("difference, 95 % interval", "To the baseline"),
    Kind.P: ("p", "How likely such a difference is where there is none"),
    Kind.RUNS: ("runs", "Finished runs, of all"),
    Kind.TRAINED: ("trained", "Parameters that were ever trained"),
    Kind.SECONDS: ("time", "Mean of a run"),
    Kind.MEMORY: ("memory", "Mean of the peaks"),
}
"""Title and note of the columns that are no measure, in their order."""


def best_sentence(task: Task, names: Sequence[str]) -> Html:
    """Return what came out best, in one sentence."""
    best = next((at for at, group in enumerate(task.groups) if group.is_best), None)
    if best is None:
        return Html('<p class="lead">{}</p>').format(_no_result(task))
    group = task.groups[best]
    value = formats.spread(group.measures[task.measure]) + formats.unit(task, task.measure)
    made: Html = macros("results.html").lead(
        task, group, names[best], value, _against_words(task, names, group)
    )
    return made


def _no_result(task: Task) -> str:
    states = Counter(run.status for run in task.runs)
    if states and states.keys() != {FINISHED}:
        return f"No run has a result yet ({formats.counts(states)})."
    return f"No run has measured the {formats.measure_words(task.measure)}."


def _against_words(task: Task, names: Sequence[str], group: Group) -> str:
    found, tested, p = group.against, difference_to_baseline(group), probability_of(group)
    if found is None or tested is None or p is None:
        return ""
    label = found.baseline or task.baseline or ""
    named = zip(task.groups, names, strict=True)
    baseline = next((name for group, name in named if group.label == label), label)
    size = formats.difference(task, tested.value, tested.like, found.measure)
    side = "above" if tested.value > 0 else "below"
    interval = f"95 % interval {tested.interval}, " if tested.interval else ""
    shown = formats.probability(p.value)
    return f"{size} {side} {baseline} ({interval}p {'' if shown.startswith('<') else '= '}{shown})"


def results(task: Task, names: Sequence[str]) -> Html:
    """Return the table of the groups, how to read it, and which runs did not finish."""
    columns = list(_columns(task, names))
    rows = [
        MarkedRow([cells[at] for _, cells in columns], group.is_best)
        for at, group in enumerate(task.groups)
    ]
    made = sortable_table(f"Results of {task.name}", [column for column, _ in columns], rows)
    lines = [*explanations(task, "★")]
    if len(task.groups) > 1 and task.sort not in ("", task.measure):
        lines.insert(0, f"sorted by {formats.measure_words(task.sort)}")
    runs = [(run.name, run.status, run.reason or formats.NOTHING) for run in unfinished(task)]
    listed = table(_UNFINISHED, [Column("run"), Column("state"), Column("reason")], runs)
    below = macros("results.html").below(
        lines, listed if runs else None, f"{_UNFINISHED}: {len(runs)}", len(runs) <= MOST_OPEN
    )
    return joined([made, below])


def _columns(task: Task, names: Sequence[str]) -> Iterator[tuple[Column, list[Cell]]]:
    """Yield the columns of the page's table with a cell for each group."""
    place = macros("results.html").place
    groups = list(enumerate(task.groups))
    yield Column("#"), [Cell(place(at, group.is_best), at + 1) for at, group in groups]
    yield from _setting_columns(task, names)
    found = {each.kind: each for each in results_table(task)}
    first, *others = [measure_column(task, measure) for measure in _shown_measures(task)]
    yield _measure_cells(task, first)
    for kind, (title, note) in _HEADS.items():
        if kind in found:
            cells = [_PAINTERS[kind](value) for value in found[kind].values]
            if kind is Kind.RUNS:
                cells = [
                    Cell(f"{cell.content} {LEARNT_NOTHING}", cell.value) if learnt_nothing(group)
                    else cell
                    for cell, group in zip(cells, task.groups, strict=True)
                ]  # fmt: skip
            yield Column(title, is_number=True, note=note), cells
        if kind is Kind.P:
            yield from (_measure_cells(task, other) for other in others)


def _setting_columns(task: Task, names: Sequence[str]) -> Iterator[tuple[Column, list[Cell]]]:
    short = formats.short_keys(task.varying)
    keys = task.varying if len(task.varying) <= formats.MOST_NAMED else ()
    for key in keys:
        yield Column(short[key], note=key), [_setting_cell(g.settings, key) for g in task.groups]
    if not keys:
        shown = Html('<span title="{}">{}</span>')
        named = zip(task.groups, names, strict=True)
        yield Column("settings"), [Cell(shown.format(g.label, name), name) for g, name in named]


def _shown_measures(task: Task) -> list[str]:
    """Return the main measure, the same of validation, and a few others beside it."""
    split, _, name = task.measure.rpartition("/")
    there = {measure for group in task.groups for measure in group.measures}
    # Not the loss: what else is declared says the same in better words.
    others = [each.name for each in task.metrics if each.unit != "nats" and each.name != name]
    beside = [f"{split}/{other}" for other in others if "/" not in other]
    wanted = [f"validation/{name}", *[each for each in beside if each in there][:_MOST_BESIDE]]
    return [task.measure, *(each for each in wanted if each in there and each != task.measure)]


def _measure_cells(task: Task, found: ResultColumn) -> tuple[Column, list[Cell]]:
    column = Column(formats.axis_words(task, found.title), is_number=True)
    cells = [
        Cell(text or formats.NOTHING, _mean(value))
        for text, value in zip(found.texts(), found.values, strict=True)
    ]
    return column, cells


def _mean(value: object) -> float | None:
    return value.mean if isinstance(value, Spread) and math.isfinite(value.mean) else None


def _setting_cell(settings: Mapping[str, Any], key: str) -> Cell:
    if key not in settings:
        return Cell(formats.NOTHING)
    value = settings[key]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(formats.setting(value), value)
    shown = formats.setting_of(key, value)
    return Cell(shown, math.inf if shown == "all" else shown)


# --- cells by the kind of their column ---------------------------------------------------------


def _difference(value: Any) -> Cell:
    if not isinstance(value, Difference):
        return Cell(value or formats.NOTHING, 0 if value else None)
    text = formats.signed(value.value, value.like)
    if not value.interval:
        shown = Html('<span title="Of the means: not compared by item">{}</span>').format(text)
    else:
        shown = Html("<span>{}<small> {}</small></span>").format(text, value.interval)
    return Cell(shown, value.value)


def _probability(value: Probability | None) -> Cell:
    if value is None:
        return Cell(formats.NOTHING)
    text = formats.probability(value.value)
    if value.uncorrected is None:
        return Cell(text, value.value)
    note = f"p {formats.probability(value.uncorrected)} before the correction"
    return Cell(Html('<span title="{}">{}</span>').format(note, text), value.value)


def _trained(value: int | None) -> Cell:
    if value is None:
        return Cell(formats.NOTHING)
    shown = Html('<span title="{:,} parameters">{}</span>')
    return Cell(shown.format(value, formats.count(value)), value)


def _mean_as(written: Callable[[float], str]) -> Callable[[Spread | None], Cell]:
    def painted(value: Spread | None) -> Cell:
        return Cell(formats.NOTHING) if value is None else Cell(written(value.mean), value.mean)

    return painted


def _runs(value: RunCount) -> Cell:
    text = f"{value.finished} of {value.total}" if value.others else str(value.finished)
    return Cell(text, value.finished)


_PAINTERS: Mapping[Kind, Callable[[Any], Cell]] = {
    Kind.DIFFERENCE: _difference,
    Kind.P: _probability,
    Kind.TRAINED: _trained,
    Kind.SECONDS: _mean_as(formats.duration),
    Kind.MEMORY: _mean_as(formats.size),
    Kind.RUNS: _runs,
}
