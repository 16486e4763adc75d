"""The sections of a task: its results, what was confused and got wrong, settings and machines."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import escape

from transfer_cli.config.flat import flat_items
from transfer_cli.reports import formats, remarks, results_table
from transfer_cli.reports.contents import FINISHED, Group, SharedError, Spread, TaskRuns
from transfer_cli.reports.html.markup import Html, PageColumn, details, joined, macro, note, table
from transfer_cli.reports.results_table import Cell
from transfer_cli.runs.class_scores import TITLES, class_scores, count_table, describe_confusions
from transfer_cli.runs.untrusted import is_number

MOST_LABELS = 60
"""With more labels a table can no longer be read, and a page of many groups no longer be sent."""

MOST_ERRORS = 200

_MOST_VALUES = 8

_CODE = Html("<code>{}</code>")
_UNFINISHED = "Runs that are not finished, or learnt next to nothing"
_NOTES = {
    results_table.DIFFERENCE: "To the baseline, with its 95 % interval",
    results_table.P_VALUE: "How likely such a difference is where there is none",
    results_table.PUBLISHED: "By others; sweep.published names it",
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
        measured = group.measures.get(task.chosen_by)
        if measured is not None and (group.is_best or len(task.groups) == 1):
            value = _value(task, task.chosen_by, measured)
            test = _test_sentence(task, group, names)
            return macro("results.html", "lead", task, group, name, value, test)
    states = dict(sorted(Counter(run.status for run in task.runs).items()))
    why = "No run is the best: none learnt anything."
    if task.choice is None and any(group.measures for group in task.groups):
        why = "No group is marked as the best: nothing was measured on a validation split."
    elif states and states.keys() != {FINISHED}:
        why = f"No run has a result yet ({formats.amounts(states)})."
    return Html('<p class="lead">{}</p>').format(why)


def _test_sentence(task: TaskRuns, group: Group, names: Sequence[str]) -> str:
    """Return what the best group reached in the reported measure, and against the baseline."""
    measured = group.measures.get(task.measure)
    if measured is None or task.measure == task.chosen_by:
        return ""
    value = f"{formats.measure_words(task.measure)} {_value(task, task.measure, measured)}"
    if (comparison := group.against) is None:
        return value
    size, interval, p = results_table.comparison_texts(task, group, comparison)
    side = "above" if comparison.difference > 0 else "below"
    baseline = _group_name(task, names, comparison.baseline or task.baseline)
    if p == results_table.NO_P_VALUE:
        return f"{value}, {size} {side} {baseline}"
    drawn = f"95 % interval {interval}, " if interval else ""
    return f"{value}, {size} {side} {baseline} ({drawn}p {p if p.startswith('<') else f'= {p}'})"


def _value(task: TaskRuns, measure: str, measured: Spread) -> str:
    scaled = formats.scaled(measured, task.metric(measure).display_scale)
    return formats.spread(scaled) + task.metric(measure).display_unit


def run_to_take(task: TaskRuns) -> Html:
    """Return which run to take, why, and what to type next; a single run is what there is."""
    run, label, why = task.runs[0], "", list[str]()
    if task.best is not None:
        run = task.best.run
        label, why = remarks.best_run_label(task, run), [*remarks.why_best(task, task.best)]
    elif len(task.runs) > 1 or run.status != FINISHED:
        return Html()
    return macro("results.html", "run_to_take", run.path, label, why, remarks.next_commands(run))


def _group_name(task: TaskRuns, names: Sequence[str], label: str | None) -> str:
    named = zip(task.groups, names, strict=True)
    return next((name for group, name in named if group.label == label), label or "")


def results_section(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return the table of the groups, how to read it, and which runs did not finish."""
    columns, cells = zip(*_columns(task, names), strict=True)
    best = [group.is_best for group in task.groups]
    groups = table(f"Results of {task.name}", columns, zip(*cells, strict=True), best)
    lines = []
    if len(task.groups) > 1 and task.sort not in ("", task.measure):
        lines.append(f"sorted by {formats.measure_words(task.sort)}")
    baseline = _group_name(task, names, task.baseline)
    lines += remarks.explanations(task, best="★", baseline=baseline)
    content = joined([_filters(task), groups, *map(note, lines)])
    unfinished = [(run.name, run.status, run.reason or formats.NOTHING) for run in task.runs
                  if run.status != FINISHED or run.reason is not None]  # fmt: skip
    if not unfinished:
        return content
    # Runs that did not finish which are listed from the start; more of them on demand.
    most_open = 8
    title, is_open = f"{_UNFINISHED}: {len(unfinished)}", len(unfinished) <= most_open
    listed = table(_UNFINISHED, ["run", "state", "reason"], unfinished)
    return content + details(title, listed, is_open=is_open)


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
    values = [group.settings[key] for group in task.groups if key in group.settings]
    values.sort(
        key=lambda value: (not is_number(value), value if is_number(value) else 0, str(value))
    )
    return list(dict.fromkeys(formats.setting_of(key, value) for value in values))


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
    measures = results_table.page_measures(task)
    for column in results_table.results_table(task, measures)[1:]:
        words = formats.measure_words(column.title)
        title = f"{words} ({column.unit})" if column.unit else words
        yield (
            PageColumn(
                title, is_number=column.title != results_table.FOLDER, note=_NOTES.get(column.title)
            ),
            [_cell(cell) for cell in column.cells],
        )


def _cell(cell: Cell) -> Cell:
    """Return a cell, with brackets on a line of their own; a path breaks before its last part."""
    text = escape(cell.text or formats.NOTHING).replace(" [", "\n[").replace(" (", "\n(")
    folder, slash, name = text.rpartition("/")
    return replace(cell, text=folder + slash + Html("<wbr>") + name if slash else text)


def _setting_cell(settings: Mapping[str, Any], key: str) -> Cell:
    if key not in settings:
        return Cell(formats.NOTHING)
    value, shown = settings[key], formats.setting_of(key, settings[key])
    return Cell(shown, value if is_number(value) else math.inf if shown == "all" else shown)


# --- how runs were set, and on what they ran ----------------------------------------------------


def settings_section(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return the settings in which runs differ, and those that all share."""
    known = [run.settings for run in task.runs if run.settings]
    values = {
        key: {formats.setting_of(key, settings.get(key)) for settings in known}
        for key in sorted({key for settings in known for key in settings})
    }
    seed = ["seed"] if len(values.get("seed", ())) > 1 else []
    rows = [
        (_CODE.format(key) if at == 0 else "", _CODE.format(value), groups)
        for key in (*task.varying, *seed)
        for at, (value, groups) in enumerate(_by_value(task, key))
    ]
    shown = table("Settings in which runs differ", ["key", "value", "groups"], rows) if rows else ""
    differing = Html('<div class="settings">{}</div>').format(shown)
    fixed = [
        (_CODE.format(key), *map(_CODE.format, texts))
        for key, texts in values.items()
        if len(texts) == 1 and key not in task.varying
    ]
    if not fixed:
        return differing
    alike = "The same for all runs" if len(task.runs) > 1 else "Of this run"
    listed = table("Settings that all runs share", ["key", "value"], fixed)
    summary = f"{alike}: {formats.several(len(fixed), 'setting')}"
    return joined([differing, details(summary, listed, is_open=not rows)])


def _by_value(task: TaskRuns, key: str) -> Iterable[tuple[str, str]]:
    """Yield each value of a key with the groups that have it; the range, where there are many."""
    groups: dict[str, set[int]] = defaultdict(set)
    raw: list[Any] = []
    for place, group in enumerate(task.groups, start=1):
        of_runs = [run.settings[key] for run in group.runs if key in run.settings]
        for value in [group.settings[key]] if key in group.settings else of_runs:
            raw.append(value)
            groups[formats.setting_of(key, value)].add(place)
    numbers = [value for value in raw if isinstance(value, int | float)]
    if len(groups) > _MOST_VALUES and len(numbers) == len(raw):
        low, high = formats.setting(min(numbers)), formats.setting(max(numbers))
        yield f"{low} … {high}", f"{len(groups)} values"
        return
    if all(len(places) == len(task.groups) for places in groups.values()):
        yield formats.joined_with_and(list(groups)), "each of them"
        return
    for value, places in groups.items():
        named = ", ".join(f"#{place}" for place in sorted(places))
        yield value, named if len(places) <= _MOST_VALUES else f"{len(places)} groups"


def environment_section(task: TaskRuns) -> Html | None:
    """Return versions and machines; where they differ, how many runs had which."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for run in task.runs:
        for key, value in flat_items(run.environment):
            if key != "command" and not key.startswith("command."):
                counts[key][formats.setting(value) if value != [] else "none"] += 1
    if not counts:
        return None
    rows = []
    for key, values in counts.items():
        several = (f"{value} ({formats.several(runs, 'run')})" for value, runs in values.items())
        rows.append((_CODE.format(key), "; ".join(values if len(values) == 1 else several)))
    differ = sum(len(values) > 1 for values in counts.values())
    sameness = formats.several(differ, "difference") if differ else "the same for all runs"
    listed = table("Environment", ["what", "value"], rows)
    is_open = bool(differ) or len(task.runs) == 1
    return details(f"Versions and machine, {sameness}", listed, is_open=is_open)


# --- what runs got wrong ------------------------------------------------------------------------


def confusion_section(task_id: str, task: TaskRuns, names: Sequence[str]) -> Html | None:
    """Return the confusion table of the best group, and those of the others to choose from."""
    split = task.measure.partition("/")[0]
    found = ((at, _confusion(group, split, task.labels)) for at, group in task.best_first)
    counted = ((at, confusion) for at, confusion in found if confusion is not None)
    if len(task.labels) > MOST_LABELS and any(counted):
        return note(f"Not shown for as many as {len(task.labels):,} labels.")
    groups = dict(counted)
    if not groups:
        return None
    first = next(iter(groups.values()))
    rows = [[0] * len(task.labels) for _ in task.labels]
    for label, predicted, count in first["cells"]:
        rows[label][predicted] = count
    caption = f"Confusion on {split}, {formats.several(first['runs'], 'run')}"
    cells = macro("mistakes.html", "cells", caption, task.labels, rows)
    return macro(
        "mistakes.html", "confusion", task_id, [(at, names[at]) for at in groups], cells,
        first["words"], groups,
    )  # fmt: skip


def _confusion(group: Group, split: str, labels: Sequence[str]) -> dict[str, Any] | None:
    """Return how often a group's runs took which label for which, as the page's script reads it."""
    counted = (count_table(run.results, split, "confusion", len(labels)) for run in group.runs)
    tables = [counts for counts in counted if counts is not None]
    if not tables:
        return None
    whole = [
        [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)
    ]
    cells = [(at, to, n) for at, row in enumerate(whole) for to, n in enumerate(row) if n]
    pairs = describe_confusions(labels, whole)
    words = f"Most often confused: {pairs}." if pairs else "Nothing was confused."
    return {"cells": cells, "split": split, "runs": len(tables), "words": words}


def labels_section(task: TaskRuns, names: Sequence[str]) -> Html | None:
    """Return precision, recall, F1 and support of each label, by the best group that has them."""
    split = task.measure.partition("/")[0]
    found = ((at, class_scores([run.results for run in group.runs], split))
             for at, group in task.best_first)  # fmt: skip
    at, scores = next(((at, scores) for at, scores in found if scores), (0, []))
    if not scores:
        return None
    columns = [PageColumn(title, is_number=True) for title in TITLES]
    rows = [(score.label, *score.cells()) for score in scores[:MOST_LABELS]]
    listed = table("Labels", ["label", *columns], rows)
    whose = f"{names[at]}, {formats.several(len(task.groups[at].runs), 'run')}"
    more = len(scores) - len(rows)
    left_out = note(f"{more:,} with a higher F1 are left out.") if more else None
    return joined([note(f"On {split}, the worst first: {whose}."), listed, left_out])


def errors_section(errors: Sequence[SharedError], expected: str) -> Html | None:
    """Return what most runs get wrong: the text, what is right, and what was said."""
    if not errors:
        return None
    rows = [
        (*(macro("mistakes.html", name, error) for name in ("text", "label", "said")),
         f"{error.wrong} of {error.runs}")
        for error in errors[:MOST_ERRORS]
    ]  # fmt: skip
    columns = ["text", expected, "said instead", "wrong runs"]
    listed = table("Errors that most runs share", columns, rows)
    more = len(errors) - len(rows)
    texts = Html('<div class="texts">{}</div>').format(listed)
    return joined([texts, note(f"{more:,} more are left out.") if more else None])
