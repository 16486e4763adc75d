"""What came out of a task: the best in a sentence, all groups in a table, what did not finish."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import escape

from transfer_cli.report import formats, results_table
from transfer_cli.report.best import commands
from transfer_cli.report.contents import FINISHED, Group, Spread, TaskRuns
from transfer_cli.report.html import markup
from transfer_cli.report.html.markup import Html, PageColumn, joined, macro
from transfer_cli.report.results_table import Cell
from transfer_cli.runs.untrusted import is_number

_MOST_OPEN = 8
"""Runs that did not finish which are listed from the start; more of them on demand."""

_UNFINISHED = "Runs that are not finished, or learnt next to nothing"
_NOTES = {
    results_table.DIFFERENCE: "To the baseline, with its 95 % interval",
    results_table.P: "How likely such a difference is where there is none",
    results_table.RUNS: "Finished runs, of all",
    results_table.TRAINED: "Parameters that were ever trained",
    results_table.FLOPS: "Floating-point operations of a run's steps, with padding",
    results_table.SECONDS: "Of a run",
    results_table.JOULES: "Energy of a run, as counters of its machine tell it",
    results_table.MEMORY: "Mean of the peaks",
    results_table.FOLDER: "Where its runs are",
}


def best_sentence(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return what came out best, in one sentence."""
    for group, name in zip(task.groups, names, strict=True):
        found = group.measures.get(task.chosen_by)
        if found is not None and (group.is_best or len(task.groups) == 1):
            value = _value(task, task.chosen_by, found)
            test = _on_test(task, group, names)
            return macro("results.html", "lead", task, group, name, value, test)
    if task.choice is None and any(group.measures for group in task.groups):
        return Html('<p class="lead">{}</p>').format(
            "No group is marked as the best: nothing was measured on a validation split."
        )
    states = dict(sorted(Counter(run.status for run in task.runs).items()))
    why = "No run is the best: none learnt anything."
    if states and states.keys() != {FINISHED}:
        why = f"No run has a result yet ({formats.amounts(states)})."
    return Html('<p class="lead">{}</p>').format(why)


def _on_test(task: TaskRuns, group: Group, names: Sequence[str]) -> str:
    """Return what the best group reached in the reported measure, and against the baseline."""
    measured = group.measures.get(task.measure)
    if measured is None or task.measure == task.chosen_by:
        return ""
    said = f"{formats.measure_words(task.measure)} {_value(task, task.measure, measured)}"
    if (found := group.against) is None:
        return said
    size, interval, p = results_table.compared(task, group, found)
    side = "above" if found.difference > 0 else "below"
    baseline = _name_of(task, names, found.baseline or task.baseline)
    if p == results_table.UNTOLD:
        return f"{said}, {size} {side} {baseline}"
    drawn = f"95 % interval {interval}, " if interval else ""
    return f"{said}, {size} {side} {baseline} ({drawn}p {p if p.startswith('<') else f'= {p}'})"


def _value(task: TaskRuns, measure: str, found: Spread) -> str:
    scaled = formats.scaled(found, formats.times(task, measure))
    return formats.spread(scaled) + formats.unit(task, measure)


def take(task: TaskRuns) -> Html:
    """Return which run to take, why, and what to type next; a single run is what there is."""
    if task.best is not None:
        why, own = list(results_table.why_best(task)), results_table.own(task)
        return macro("results.html", "take", task.best.run.path, own, why, commands(task.best.run))
    if len(task.runs) == 1 and task.runs[0].status == FINISHED:
        path = task.runs[0].path
        return macro("results.html", "take", path, "", [], commands(task.runs[0]))
    return Html()


def _name_of(task: TaskRuns, names: Sequence[str], label: str | None) -> str:
    """Return the name on the page for the group of a label."""
    found = zip(task.groups, names, strict=True)
    return next((name for group, name in found if group.label == label), label or "")


def results(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return the table of the groups, how to read it, and which runs did not finish."""
    columns, cells = zip(*_columns(task, names), strict=True)
    best = [group.is_best for group in task.groups]
    made = _filters(task)
    made += markup.table(f"Results of {task.name}", columns, zip(*cells, strict=True), best)
    lines = []
    if len(task.groups) > 1 and task.sort not in ("", task.measure):
        lines.append(f"sorted by {formats.measure_words(task.sort)}")
    baseline = _name_of(task, names, task.baseline)
    lines += results_table.explanations(task, best="★", baseline=baseline)
    made = joined([made, *map(markup.note, lines)])
    unfinished = [(run.name, run.status, run.reason or formats.NOTHING) for run in task.runs
                  if run.status != FINISHED or run.reason is not None]  # fmt: skip
    if not unfinished:
        return made
    title, is_open = f"{_UNFINISHED}: {len(unfinished)}", len(unfinished) <= _MOST_OPEN
    listed = markup.table(_UNFINISHED, ["run", "state", "reason"], unfinished)
    return made + markup.details(title, listed, is_open=is_open)


def _filters(task: TaskRuns) -> Html:
    """Return what rows can be chosen by: the values of each key that varies, and words."""
    if len(task.groups) < 2:
        return Html()
    rows = [[formats.setting_of(key, group.settings[key]) if key in group.settings else ""
             for key in task.varying] for group in task.groups]  # fmt: skip
    short = formats.short_keys(task.varying)
    keys = [(short[key], _values(task, key)) for key in task.varying]
    return macro("results.html", "filters", keys, rows)


def _values(task: TaskRuns, key: str) -> list[str]:
    """Return the values of a key that groups have, numbers by size."""
    found = [group.settings[key] for group in task.groups if key in group.settings]
    found.sort(
        key=lambda value: (not is_number(value), value if is_number(value) else 0, str(value))
    )
    return list(dict.fromkeys(formats.setting_of(key, value) for value in found))


def _columns(task: TaskRuns, names: Sequence[str]) -> Iterator[tuple[PageColumn, Sequence[Cell]]]:
    """Yield the columns of the page's table with a cell for each group."""
    places = [
        Cell(macro("results.html", "place", at, group.is_best), at + 1)
        for at, group in enumerate(task.groups)
    ]
    yield PageColumn("#"), places
    if 0 < len(task.varying) <= formats.MOST_NAMED:
        for key, short in formats.short_keys(task.varying).items():
            cells = [_setting_cell(group.settings, key) for group in task.groups]
            yield PageColumn(short, note=key), cells
    else:
        named = zip(task.groups, names, strict=True)
        yield PageColumn("settings"), [Cell(name, name, group.label) for group, name in named]
    measures = results_table.measures_beside(task)
    for column in results_table.results_table(task, measures)[1:]:
        words = formats.measure_words(column.title)
        title = f"{words} ({column.unit})" if column.unit else words
        yield (
            PageColumn(
                title, is_number=column.title != results_table.FOLDER, note=_NOTES.get(column.title)
            ),
            [_cell(each) for each in column.cells],
        )


def _cell(found: Cell) -> Cell:
    """Return a cell, with brackets on a line of their own; a path breaks before its last part."""
    text = escape(found.text or formats.NOTHING).replace(" [", "\n[").replace(" (", "\n(")
    folder, slash, name = text.rpartition("/")
    return replace(found, text=folder + slash + Html("<wbr>") + name if slash else text)


def _setting_cell(settings: Mapping[str, Any], key: str) -> Cell:
    if key not in settings:
        return Cell(formats.NOTHING)
    value, shown = settings[key], formats.setting_of(key, settings[key])
    return Cell(shown, value if is_number(value) else math.inf if shown == "all" else shown)
