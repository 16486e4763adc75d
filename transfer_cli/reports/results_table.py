"""The table of a task: a row of typed cells for each group. Terminal, files and page paint it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from transfer_cli.metrics import UNSEEN
from transfer_cli.reports import formats
from transfer_cli.reports.contents import (
    FINISHED,
    LEARNT_NOTHING,
    Comparison,
    Group,
    Spread,
    TaskRuns,
)

BEST = "*"
"""The mark of the best group."""

DIFFERENCE, P_VALUE, TRAINED, FLOPS, SECONDS, JOULES, MEMORY, RUNS, FOLDER = (
    "difference", "p", "trained", "flops", "seconds", "joules", "memory", "runs", "folder",
)  # fmt: skip
GROUP, PUBLISHED = "group", "published"

NO_P_VALUE = formats.NOTHING
_OTHER = {"test": "validation", "validation": "test"}


@dataclass(frozen=True)
class Cell:
    """A cell, the value by which rows are sorted (those without one are last), and a note."""

    text: str = ""
    value: float | str | None = None
    note: str | None = None


@dataclass(frozen=True)
class ResultColumn:
    """A column of a measure, or of one of the constants above: a cell for each group."""

    title: str
    cells: tuple[Cell, ...]
    is_measure: bool = False
    unit: str = ""

    @property
    def heading(self) -> str:
        """Its title, with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


def results_table(task: TaskRuns, measures: Sequence[str] = ()) -> list[ResultColumn]:
    """Return the columns of a task's table that are not empty.

    Without `measures` they show what the best is chosen by, the measure of the task, and the same
    of the other split; with or without, how many are right of each slice, and the measure of the
    task without what training has seen.
    """
    split, _, name = task.measure.partition("/")
    measure_columns = measures or [task.chosen_by, task.measure, f"{_OTHER.get(split)}/{name}"]
    known = dict.fromkeys(measure for group in task.groups for measure in group.measures)
    slice_of = f"{split}/accuracy/slice/"
    parts = [key for key in known if key.startswith(slice_of) or key == task.measure + UNSEEN]
    shown = [*dict.fromkeys([*measure_columns, *parts])]
    rows = [_row(task, group, shown) for group in task.groups]
    columns = [
        ResultColumn(
            title,
            tuple(row[title] for row in rows),
            title in shown,
            task.metric(title).display_unit.strip() if title in shown else "",
        )
        for title in rows[0]
    ]
    return [column for column in columns if any(cell.text for cell in column.cells)]


def row_texts(columns: Iterable[ResultColumn]) -> Iterator[tuple[str, ...]]:
    """Yield what is written in each row of some columns."""
    return zip(*([cell.text for cell in column.cells] for column in columns), strict=True)


def page_measures(task: TaskRuns) -> list[str]:
    """Return what the best is chosen by, the task's measure, and another: for a wide table."""
    split, _, name = task.measure.rpartition("/")
    known = {measure for group in task.groups for measure in group.measures}
    # Not the loss: another metric says the same in better words.
    names = [metric.name for metric in task.metrics if metric.unit != "nats"]
    others = [f"{split}/{other}" for other in names if other != name and "/" not in other]
    more = [other for other in others if other in known][:1]
    return [task.chosen_by, task.measure, f"validation/{name}", *more]


def comparison_texts(task: TaskRuns, group: Group, comparison: Comparison) -> tuple[str, str, str]:
    """Return the size of a group's tested difference, its interval or "", and its p, as written."""
    times = task.metric(comparison.measure).display_scale
    size = formats.number(times * abs(comparison.difference), _like(group, comparison, times))
    points = " points" if task.metric(comparison.measure).display_unit else ""
    return size + points, _interval(group, comparison, times), _p_cell(comparison).text


def is_baseline(group: Group, task: TaskRuns) -> bool:
    """Return whether others are compared with a group."""
    others = {other.against.baseline for other in task.groups if other.against is not None}
    return group.label == task.baseline or group.label in others


def holds_best(task: TaskRuns, group: Group) -> bool:
    """Return whether the best run of a task is of a group."""
    return task.best is not None and task.best.run.path in (run.path for run in group.runs)


def _row(task: TaskRuns, group: Group, measures: Iterable[str]) -> dict[str, Cell]:
    row = {GROUP: Cell(group.label)}
    mark = f" {LEARNT_NOTHING}" if group.learnt_nothing else ""
    row |= {
        measure: _spread_cell(group.measures.get(measure), mark, task.metric(measure).display_scale)
        for measure in measures
    }
    figure = group.published
    row[PUBLISHED] = Cell() if figure is None else Cell(formats.number(figure), figure)
    if task.baseline is not None:
        row |= {DIFFERENCE: _difference_cell(group, task), P_VALUE: _p_cell(group.against)}
    trained = "" if group.trained is None else f"{group.trained:,}"
    return row | {
        TRAINED: Cell(trained, group.trained),
        FLOPS: _mean_cell(group.flops, formats.with_metric_prefix),
        SECONDS: _spread_cell(group.seconds),
        JOULES: _mean_cell(group.joules, formats.energy),
        MEMORY: _mean_cell(group.memory, formats.size),
        RUNS: _runs_cell(group),
        FOLDER: Cell(formats.folders(run.path for run in group.runs)),
    }


def _spread_cell(spread: Spread | None, mark: str = "", times: float = 1) -> Cell:
    if spread is None:
        return Cell()
    spread = formats.scaled(spread, times)
    value = spread.mean if math.isfinite(spread.mean) else None
    return Cell(formats.spread(spread) + mark, value)


def _mean_cell(spread: Spread | None, words: Callable[[float], str]) -> Cell:
    return Cell() if spread is None else replace(_spread_cell(spread), text=words(spread.mean))


def _difference_cell(group: Group, task: TaskRuns) -> Cell:
    """Return the difference that was tested, else that of the means."""
    comparison = group.against
    if comparison is not None:
        times = task.metric(comparison.measure).display_scale
        size = formats.signed(times * comparison.difference, _like(group, comparison, times))
        return Cell(f"{size} {_interval(group, comparison, times)}".rstrip(), comparison.difference)
    if is_baseline(group, task):
        return Cell("baseline", 0)
    base = next((other for other in task.groups if other.label == task.baseline), None)
    if base is None or task.measure not in base.measures or task.measure not in group.measures:
        return Cell()
    times = task.metric(task.measure).display_scale
    mean = group.measures[task.measure].mean
    difference = mean - base.measures[task.measure].mean
    text = formats.signed(times * difference, times * mean)
    return Cell(text, difference, "Of the means: not compared by item")


def _like(group: Group, comparison: Comparison, times: float) -> float:
    """Return a number of the measure that was compared: differences have as many decimals."""
    known = group.measures.get(comparison.measure)
    return times * ((comparison.low if known is None else known.mean) or 0.0)


def _interval(group: Group, comparison: Comparison, times: float) -> str:
    if comparison.low is None or comparison.high is None:
        return ""
    like = _like(group, comparison, times)
    ends = (formats.signed(times * end, like) for end in (comparison.low, comparison.high))
    return f"[{', '.join(ends)}]"


def _p_cell(comparison: Comparison | None) -> Cell:
    if comparison is None:
        return Cell()
    if comparison.p is None:
        return Cell(NO_P_VALUE, None, "fewer than three seeds say next to nothing about chance")
    if comparison.corrected is None:
        return Cell(formats.probability(comparison.p), comparison.p)
    note = f"p {formats.probability(comparison.p)} before the correction"
    return Cell(formats.probability(comparison.corrected), comparison.corrected, note)


def _runs_cell(group: Group) -> Cell:
    counts = Counter(run.status for run in group.runs)
    done, total = counts.pop(FINISHED, 0), len(group.runs)
    others = ", ".join(f"{n} {status}" for status, n in counts.items())
    return Cell(f"{done} of {total} ({others})" if others else str(total), done)
