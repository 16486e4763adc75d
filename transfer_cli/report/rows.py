"""The rows of a task's table, as texts: the same on a terminal and in Markdown."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from transfer_cli.report import words
from transfer_cli.report.comparisons import MCNEMAR
from transfer_cli.report.model import FAILED, FINISHED, PRUNED, STOPPED, Group, Report, Run, Task
from transfer_cli.report.statistics import CONFIDENCE
from transfer_cli.safe_files import printable

BEST, LEARNT_NOTHING = "*", "†"
"""Marks: of the best group, and of one in which a run learnt next to nothing."""

GROUP, DIFFERENCE, P, TRAINED, SECONDS, MEMORY, RUNS = (
    "group", "difference", "p", "trained", "seconds", "memory", "runs",
)  # fmt: skip

_BASELINE = "baseline"
_OTHER = {"test": "validation", "validation": "test"}


@dataclass(frozen=True)
class Rows:
    """A table of texts.

    Args:
        titles: Of the columns; the first names the groups.
        cells: Of each group, in the order of the task.
        is_best: Of each group.
        least_first: Columns that can be done without, the least important first.
    """

    titles: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    is_best: tuple[bool, ...]
    least_first: tuple[str, ...]


def rows(task: Task) -> Rows:
    """Return the table of a task; a column in which nothing stands is left out."""
    columns: dict[str, list[str]] = {GROUP: [group.label for group in task.groups]}
    for measure in _measures(task):
        columns[measure] = [_measured(group, measure) for group in task.groups]
    if task.baseline is not None:
        columns[DIFFERENCE] = [_difference(group, task) for group in task.groups]
        columns[P] = [_p(group) for group in task.groups]
    columns[TRAINED] = ["" if each.trained is None else f"{each.trained:,}" for each in task.groups]
    columns[SECONDS] = [
        "" if each.seconds is None else words.spread(each.seconds) for each in task.groups
    ]
    columns[MEMORY] = [
        "" if each.memory is None else words.size(each.memory.mean) for each in task.groups
    ]
    columns[RUNS] = [_runs(group) for group in task.groups]
    titles = [title for title, cells in columns.items() if any(cells)]
    return Rows(
        tuple(map(printable, titles)),
        tuple(zip(*(columns[title] for title in titles), strict=True)),
        tuple(group.is_best for group in task.groups),
        (*_measures(task)[1:], MEMORY, TRAINED, SECONDS),
    )


def explanations(task: Task) -> Iterator[str]:
    """Yield what a reader of the table must know, a line each."""
    if any(group.is_best for group in task.groups):
        end = "lower" if task.lower_is_better else "higher"
        yield f"{BEST} best {task.measure} ({end} is better)"
    spreads = (each for group in task.groups for each in group.measures.values())
    if any(each.deviation is not None for each in spreads):
        yield "± is the standard deviation over the finished runs of a group"
    yield from _of_tests(task)
    if any(_learnt_nothing(group) for group in task.groups):
        yield f"{LEARNT_NOTHING} counts runs that learnt next to nothing"
    yield from task.notes
    analyses = Counter(each.name for run in task.runs for each in run.analyses)
    if analyses:
        named = (f"{name} of {words.several(n, 'run')}" for name, n in sorted(analyses.items()))
        yield f"analyses, which --html shows: {', '.join(named)}"


def apart(report: Report) -> str | None:
    """Return why there is more than one table; None where there is not."""
    if len(report.tasks) < 2:
        return None
    return (
        f"{len(report.tasks)} tasks, each by itself: runs are compared where command, data and "
        "labels are the same"
    )


def unfinished(task: Task) -> Iterator[tuple[Run, str]]:
    """Yield each run of which less came than it should have, and why."""
    for run in task.runs:
        if run.status in (FAILED, STOPPED, PRUNED):
            yield run, f"{run.status}: {run.reason}" if run.reason else run.status
        elif run.reason is not None:
            yield run, f"{LEARNT_NOTHING} {run.reason}"


def split_of(task: Task) -> str:
    """Return the split that a task's measure is of."""
    return task.measure.partition("/")[0]


def _measures(task: Task) -> list[str]:
    """Return the measures that are shown: that of the task, and the same of the other split."""
    split, _, name = task.measure.partition("/")
    known = {each for group in task.groups for each in group.measures}
    other = f"{_OTHER.get(split, '')}/{name}"
    return [each for each in (task.measure, other) if each in known]


def _measured(group: Group, measure: str) -> str:
    found = group.measures.get(measure)
    if found is None:
        return ""
    return words.spread(found) + (f" {LEARNT_NOTHING}" if _learnt_nothing(group) else "")


def _learnt_nothing(group: Group) -> bool:
    return any(run.status == FINISHED and run.reason is not None for run in group.runs)


def _difference(group: Group, task: Task) -> str:
    found = group.against
    if found is None:
        if is_baseline(group, task):
            return _BASELINE
        return _plain_difference(group, task)
    mean = group.measures[found.measure].mean if found.measure in group.measures else found.low
    low, high = (
        "" if end is None else words.signed(end, mean or 0.0) for end in (found.low, found.high)
    )
    return f"{words.signed(found.difference, mean or 0.0)} [{low}, {high}]"


def _plain_difference(group: Group, task: Task) -> str:
    """Return the difference of the means, where there is no test."""
    base = next((each for each in task.groups if each.label == task.baseline), None)
    if base is None or task.measure not in base.measures or task.measure not in group.measures:
        return ""
    mean = group.measures[task.measure].mean
    return words.signed(mean - base.measures[task.measure].mean, mean)


def is_baseline(group: Group, task: Task) -> bool:
    """Return whether others are compared with a group."""
    others = {each.against.baseline for each in task.groups if each.against is not None}
    return group.label == task.baseline or group.label in others


def _p(group: Group) -> str:
    found = group.against
    if found is None:
        return ""
    return words.probability(found.p if found.corrected is None else found.corrected)


def _runs(group: Group) -> str:
    counts = Counter(run.status for run in group.runs)
    done, total = counts.pop(FINISHED, 0), len(group.runs)
    if done == total:
        return str(total)
    return f"{done} of {total} ({', '.join(f'{n} {status}' for status, n in counts.items())})"


def _of_tests(task: Task) -> Iterator[str]:
    found = [group.against for group in task.groups if group.against is not None]
    if not found:
        return
    tests = {each.test for each in found}
    items = {f"{each.items:,}" for each in found}
    how = []
    if MCNEMAR in tests:
        how.append("McNemar's exact test of single runs, which says nothing of other seeds,")
    if tests - {MCNEMAR}:
        how.append("a bootstrap over items and seeds")
    several = any(each.corrected is not None for each in found)
    yield (
        f"difference to {task.baseline}, with its {CONFIDENCE} % interval; p by "
        f"{' or '.join(how)}, paired on the same {' or '.join(sorted(items))} items"
        + (f"; corrected for {len(found)} comparisons (Holm; --csv has both)" if several else "")
    )
