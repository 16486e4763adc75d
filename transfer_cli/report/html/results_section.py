"""What came out of a task: the best in a sentence, all groups in a table, what did not finish."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transfer_cli.report import formats, results_table
from transfer_cli.report.best import commands
from transfer_cli.report.contents import FINISHED, Group, TaskRuns
from transfer_cli.report.html import markup
from transfer_cli.report.html.markup import Html, PageColumn, joined, macro
from transfer_cli.report.results_table import Cell
from transfer_cli.report.untrusted import is_number

_MOST_OPEN = 8
"""Runs that did not finish which are listed from the start; more of them on demand."""

_UNFINISHED = "Runs that are not finished, or learnt next to nothing"
_NOTES = {
    results_table.DIFFERENCE: "To the baseline, with its 95 % interval",
    results_table.P: "How likely such a difference is where there is none",
    results_table.RUNS: "Finished runs, of all",
    results_table.TRAINED: "Parameters that were ever trained",
    results_table.SECONDS: "Of a run",
    results_table.MEMORY: "Mean of the peaks",
    results_table.FOLDER: "Where its runs are",
}


def best_sentence(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return what came out best, in one sentence."""
    for group, name in zip(task.groups, names, strict=True):
        found = group.measures.get(task.chosen_by)
        if found is not None and (group.is_best or len(task.groups) == 1):
            value = formats.spread(found) + formats.unit(task, task.chosen_by)
            test = _on_test(task, group, names)
            sentence = macro("results.html", "lead", task, group, name, value, test)
            return sentence + _take(task)
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
    value = formats.spread(measured) + formats.unit(task, task.measure)
    said = f"{formats.measure_words(task.measure)} {value}"
    if (found := group.against) is None:
        return said
    size, interval, p = results_table.compared(task, group, found)
    side = "above" if found.difference > 0 else "below"
    baseline = _name_of(task, names, found.baseline or task.baseline)
    drawn = f"95 % interval {interval}, " if interval else ""
    return f"{said}, {size} {side} {baseline} ({drawn}p {p if p.startswith('<') else f'= {p}'})"


def _take(task: TaskRuns) -> Html:
    """Return which run to take, why, and what to type next."""
    if task.best is None:
        return Html()
    why = list(results_table.why_best(task))
    own, typed = results_table.own(task), commands(task.best.run)
    return macro("results.html", "take", task.best.run.path, own, why, typed)


def _name_of(task: TaskRuns, names: Sequence[str], label: str | None) -> str:
    """Return the name on the page for the group of a label."""
    found = zip(task.groups, names, strict=True)
    return next((name for group, name in found if group.label == label), label or "")


def results(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return the table of the groups, how to read it, and which runs did not finish."""
    columns, cells = zip(*_columns(task, names), strict=True)
    best = [group.is_best for group in task.groups]
    made = markup.table(f"Results of {task.name}", columns, zip(*cells, strict=True), best)
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
        title = formats.axis_words(task, column.title) if column.is_measure else column.title
        yield (
            PageColumn(
                title, is_number=column.title != results_table.FOLDER, note=_NOTES.get(column.title)
            ),
            [each if each.text else Cell(formats.NOTHING) for each in column.cells],
        )


def _setting_cell(settings: Mapping[str, Any], key: str) -> Cell:
    if key not in settings:
        return Cell(formats.NOTHING)
    value, shown = settings[key], formats.setting_of(key, settings[key])
    return Cell(shown, value if is_number(value) else math.inf if shown == "all" else shown)
