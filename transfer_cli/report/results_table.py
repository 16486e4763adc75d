"""The table of a task: typed values for each group, which terminal, files and page paint."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from transfer_cli.report import formats
from transfer_cli.report.comparisons import MCNEMAR
from transfer_cli.report.model import (
    FAILED,
    FINISHED,
    PRUNED,
    STOPPED,
    Group,
    Report,
    Run,
    Spread,
    Task,
)
from transfer_cli.report.statistics import CONFIDENCE

BEST, LEARNT_NOTHING = "*", "†"
"""Marks: of the best group, and of one in which a run learnt next to nothing."""

BASELINE = "baseline"

_OTHER = {"test": "validation", "validation": "test"}


class Kind(Enum):
    """What a column holds; the title of those that are no measure."""

    GROUP = "group"
    MEASURE = "measure"
    DIFFERENCE = "difference"
    P = "p"
    TRAINED = "trained"
    SECONDS = "seconds"
    MEMORY = "memory"
    RUNS = "runs"


@dataclass(frozen=True)
class Difference:
    """A group's difference to the baseline.

    Args:
        value: Group minus baseline.
        like: A number of the measure: the difference is written with as many decimals.
        low: Lower end of its interval; none where only means were compared.
        high: Upper end.
    """

    value: float
    like: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        """How its interval is written; "" where there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{formats.signed(self.low, self.like)}, {formats.signed(self.high, self.like)}]"


@dataclass(frozen=True)
class Probability:
    """A p-value, and what it was before it was corrected for the number of comparisons."""

    value: float
    uncorrected: float | None = None


@dataclass(frozen=True)
class RunCount:
    """How many runs of a group are finished, and what became of the others."""

    finished: int
    others: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many there are."""
        return self.finished + sum(self.others.values())


Value = str | int | Spread | Difference | Probability | RunCount | None


@dataclass(frozen=True)
class ResultColumn:
    """A column.

    Args:
        kind: What it holds.
        title: What stands above it.
        values: Of each group, in the order of the task.
    """

    kind: Kind
    title: str
    values: tuple[Value, ...]

    def texts(self) -> list[str]:
        """Return how each value is written; "" where there is none."""
        return [_text(self.kind, value) for value in self.values]


def results_table(task: Task) -> list[ResultColumn]:
    """Return the columns of a task's table, but for those in which nothing stands."""
    groups = task.groups
    columns = [_column(Kind.GROUP, [group.label for group in groups])]
    for measure in _shown_measures(task):
        columns.append(measure_column(task, measure))
    if task.baseline is not None:
        columns.append(_column(Kind.DIFFERENCE, [_difference(each, task) for each in groups]))
        columns.append(_column(Kind.P, [probability_of(group) for group in groups]))
    columns += [
        _column(Kind.TRAINED, [group.trained for group in groups]),
        _column(Kind.SECONDS, [group.seconds for group in groups]),
        _column(Kind.MEMORY, [group.memory for group in groups]),
        _column(Kind.RUNS, [_run_count(group) for group in groups]),
    ]
    return [column for column in columns if any(column.texts())]


def marked_texts(task: Task, column: ResultColumn) -> list[str]:
    """Return a column's texts, measures marked where runs of a group learnt next to nothing."""
    is_measure = column.kind is Kind.MEASURE
    return [
        f"{text} {LEARNT_NOTHING}" if text and is_measure and learnt_nothing(group) else text
        for text, group in zip(column.texts(), task.groups, strict=True)
    ]


def measure_column(task: Task, measure: str) -> ResultColumn:
    """Return the column of a measure."""
    values = tuple(group.measures.get(measure) for group in task.groups)
    return ResultColumn(Kind.MEASURE, measure, values)


def difference_to_baseline(group: Group) -> Difference | None:
    """Return a group's difference item by item; none where there is none."""
    found = group.against
    if found is None:
        return None
    like = group.measures[found.measure].mean if found.measure in group.measures else found.low
    return Difference(found.difference, like or 0.0, found.low, found.high)


def probability_of(group: Group) -> Probability | None:
    """Return how likely a group's difference is by chance; none where it was not tested."""
    found = group.against
    if found is None:
        return None
    return (
        Probability(found.p) if found.corrected is None else Probability(found.corrected, found.p)
    )


def learnt_nothing(group: Group) -> int:
    """Return how many of a group's runs learnt next to nothing."""
    return sum(run.status == FINISHED and run.reason is not None for run in group.runs)


def is_baseline(group: Group, task: Task) -> bool:
    """Return whether others are compared with a group."""
    others = {each.against.baseline for each in task.groups if each.against is not None}
    return group.label == task.baseline or group.label in others


def unfinished(task: Task) -> list[Run]:
    """Return the runs that are not finished, or learnt next to nothing."""
    return [run for run in task.runs if run.status != FINISHED or run.reason is not None]


def came_to(run: Run) -> str | None:
    """Return why less came of a run than should have; None where it is still at work."""
    if run.status in (FAILED, STOPPED, PRUNED):
        return f"{run.status}: {run.reason}" if run.reason else run.status
    return None if run.reason is None else f"{LEARNT_NOTHING} {run.reason}"


def explanations(task: Task, best: str = BEST) -> Iterator[str]:
    """Yield what a reader of the table must know, a line each; `best` marks the best group."""
    if any(group.is_best for group in task.groups):
        end = "lower" if task.lower_is_better else "higher"
        yield f"{best} best {task.measure} ({end} is better)"
    spreads = (each for group in task.groups for each in group.measures.values())
    if any(each.deviation is not None for each in spreads):
        yield "± is the standard deviation over the finished runs of a group"
    yield from _of_tests(task)
    if any(map(learnt_nothing, task.groups)):
        yield f"{LEARNT_NOTHING} counts runs that learnt next to nothing"
    yield from task.notes


def of_analyses(task: Task) -> Iterator[str]:
    """Yield which analyses there are beside the table."""
    found = Counter(each.name for run in task.runs for each in run.analyses)
    if found:
        named = (f"{name} of {formats.several(n, 'run')}" for name, n in sorted(found.items()))
        yield f"analyses, which --html shows: {', '.join(named)}"


def apart(report: Report) -> str | None:
    """Return why there is more than one table; None where there is not."""
    if len(report.tasks) < 2:
        return None
    return (
        f"{len(report.tasks)} tasks, each by itself: runs are compared where command, data and "
        "labels are the same"
    )


def split_of(task: Task) -> str:
    """Return the split that a task's measure is of."""
    return task.measure.partition("/")[0]


def _column(kind: Kind, values: list[Value]) -> ResultColumn:
    return ResultColumn(kind, kind.value, tuple(values))


def _shown_measures(task: Task) -> list[str]:
    """Return the measures that are shown: that of the task, and the same of the other split."""
    split, _, name = task.measure.partition("/")
    known = {each for group in task.groups for each in group.measures}
    other = f"{_OTHER.get(split, '')}/{name}"
    return [each for each in (task.measure, other) if each in known]


def _difference(group: Group, task: Task) -> Difference | str | None:
    """Return the difference that was tested, else that of the means."""
    tested = difference_to_baseline(group)
    if tested is not None or is_baseline(group, task):
        return tested or BASELINE
    base = next((each for each in task.groups if each.label == task.baseline), None)
    if base is None or task.measure not in base.measures or task.measure not in group.measures:
        return None
    mean = group.measures[task.measure].mean
    return Difference(mean - base.measures[task.measure].mean, mean)


def _run_count(group: Group) -> RunCount:
    counts = Counter(run.status for run in group.runs)
    return RunCount(counts.pop(FINISHED, 0), counts)


def _text(kind: Kind, value: Value) -> str:
    if isinstance(value, Spread):
        return formats.size(value.mean) if kind is Kind.MEMORY else formats.spread(value)
    if isinstance(value, Difference):
        return f"{formats.signed(value.value, value.like)} {value.interval}".rstrip()
    if isinstance(value, Probability):
        return formats.probability(value.value)
    if isinstance(value, RunCount):
        others = ", ".join(f"{n} {status}" for status, n in value.others.items())
        return f"{value.finished} of {value.total} ({others})" if others else str(value.total)
    if isinstance(value, int):
        return f"{value:,}"
    return value or ""


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
