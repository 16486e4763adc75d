"""What came out of a task: the best in a sentence, all groups in a table, what did not finish."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transfer_cli.report import words
from transfer_cli.report.html.figures import SHOWN_AT_FIRST, swatch
from transfer_cli.report.html.markup import (
    Cell,
    Column,
    Html,
    details,
    joined,
    sortable_table,
    table,
    tag,
)  # fmt: skip
from transfer_cli.report.model import FINISHED, Comparison, Group, Spread, Task

_MOST_BESIDE = 1
_UNFINISHED = "Runs that are not finished, or learnt next to nothing"
_LEARNT_NOTHING = "†"


def best_sentence(task: Task, names: Sequence[str]) -> Html:
    """Return what came out best, in one sentence."""
    best = next((at for at, group in enumerate(task.groups) if group.is_best), None)
    if best is None:
        return tag("p", _no_result(task), class_="lead")
    group = task.groups[best]
    found = group.measures[task.measure]
    parts: list[object] = [
        "Best: " if len(task.groups) > 1 else "",
        tag("strong", names[best]),
        f" with a {words.measure_words(task.measure)} of ",
        tag("strong", words.spread(found) + words.unit(task, task.measure)),
        f" ({words.several(len(found.values), 'run')})",
    ]
    if group.against is not None:
        parts += [", ", _against_words(task, names, group, group.against)]
    return tag("p", *parts, ".", class_="lead")


def _no_result(task: Task) -> str:
    states = Counter(run.status for run in task.runs)
    if states and states.keys() != {FINISHED}:
        return f"No run has a result yet ({words.counts(states)})."
    return f"No run has measured the {words.measure_words(task.measure)}."


def _against_words(task: Task, names: Sequence[str], group: Group, found: Comparison) -> str:
    like = _mean(group, found)
    baseline = _baseline_of(task, names, found)
    size = words.difference(task, found.difference, like, found.measure)
    side = "above" if found.difference > 0 else "below"
    interval = "" if found.low is None else f"95 % interval {_interval(found, like)}, "
    p = words.probability(_p(found))
    return f"{size} {side} {baseline} ({interval}p {'' if p.startswith('<') else '= '}{p})"


def _mean(group: Group, found: Comparison) -> float:
    """Return the group's value of what is compared: differences are written like it."""
    return group.measures[found.measure].mean if found.measure in group.measures else 1.0


def _interval(found: Comparison, like: float) -> str:
    if found.low is None or found.high is None:
        return ""
    return f"{words.signed(found.low, like)} to {words.signed(found.high, like)}"


def _p(found: Comparison) -> float:
    return found.p if found.corrected is None else found.corrected


def _baseline_of(task: Task, names: Sequence[str], compared: Comparison) -> str:
    label = compared.baseline or task.baseline or ""
    named = zip(task.groups, names, strict=True)
    return next((name for group, name in named if group.label == label), label)


def results(task: Task, names: Sequence[str]) -> Html:
    """Return the table of the groups, and which runs did not finish."""
    measures = _shown_measures(task)
    keys = list(task.varying) if len(task.varying) <= words.MOST_NAMED else []
    columns = _columns(task, keys, measures)
    rows = [_row(task, at, names[at], keys, measures) for at in range(len(task.groups))]
    return joined(
        [
            sortable_table(
                f"Results of {task.name}", columns, rows, [g.is_best for g in task.groups]
            ),
            tag("p", *_legend_of_table(task, names), class_="note"),
            *(tag("p", note, class_="note") for note in task.notes),
            unfinished(task),
        ]
    )


def _shown_measures(task: Task) -> list[str]:
    """Return the main measure, the same of validation, and a few others beside it."""
    split, _, name = task.measure.rpartition("/")
    there = {measure for group in task.groups for measure in group.measures}
    # Not the loss: what else is declared says the same in better words.
    others = [each.name for each in task.metrics if each.unit != "nats" and each.name != name]
    beside = [f"{split}/{other}" for other in others if "/" not in other]
    wanted = [f"validation/{name}", *[each for each in beside if each in there][:_MOST_BESIDE]]
    return [task.measure, *(each for each in wanted if each in there and each != task.measure)]


def _columns(task: Task, keys: Sequence[str], measures: Sequence[str]) -> list[Column]:
    short = words.short_keys(task.varying)
    settings = [Column(short[key], note=key) for key in keys] or [Column("settings")]
    compared = [
        Column("difference, 95 % interval", is_number=True, note="To the baseline"),
        Column("p", is_number=True, note="How likely such a difference is where there is none"),
    ]
    first, *others = [Column(words.axis_words(task, each), is_number=True) for each in measures]
    return [
        Column("#"),
        *settings,
        first,
        *(compared if _is_compared(task) else ()),
        *others,
        Column("runs", is_number=True, note="Finished runs, of all"),
        Column("trained", is_number=True, note="Parameters that were ever trained"),
        Column("time", is_number=True, note="Mean of a run"),
        Column("memory", is_number=True, note="Mean of the peaks"),
    ]


def _row(
    task: Task, at: int, name: str, keys: Sequence[str], measures: Sequence[str]
) -> list[Cell | object]:
    group = task.groups[at]
    settings = [_setting_cell(group.settings, key) for key in keys] or [
        Cell(tag("span", name, title=group.label), name)
    ]
    finished = sum(run.status == FINISHED for run in group.runs)
    whole = finished == len(group.runs)
    weak = f" {_LEARNT_NOTHING}" if _learnt_nothing(group) else ""
    first, *others = [_spread_cell(group.measures.get(measure)) for measure in measures]
    return [
        Cell(_place(group, at), at + 1),
        *settings,
        first,
        *(_compared(task, group) if _is_compared(task) else ()),
        *others,
        Cell(f"{finished if whole else f'{finished} of {len(group.runs)}'}{weak}", finished),
        Cell(words.NOTHING) if group.trained is None else _counted(group.trained),
        Cell(words.NOTHING) if group.seconds is None else _timed(group.seconds),
        Cell(words.NOTHING) if group.memory is None else _sized(group.memory),
    ]


def _learnt_nothing(group: Group) -> bool:
    return any(run.status == FINISHED and run.reason for run in group.runs)


def _place(group: Group, at: int) -> Html:
    star = tag("span", "★", tag("span", " best", class_="hidden"), class_="star", title="best")
    return tag("span", str(at + 1), swatch(at), star if group.is_best else None, class_="place")


def _setting_cell(settings: Mapping[str, Any], key: str) -> Cell:
    if key not in settings:
        return Cell(words.NOTHING)
    value = settings[key]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(words.setting(value), value)
    shown = words.setting_of(key, value)
    return Cell(shown, math.inf if shown == "all" else shown)


def _spread_cell(found: Spread | None) -> Cell:
    if found is None:
        return Cell(words.NOTHING)
    return Cell(words.spread(found), found.mean if math.isfinite(found.mean) else None)


def _counted(trained: int) -> Cell:
    return Cell(tag("span", words.count(trained), title=f"{trained:,} parameters"), trained)


def _timed(seconds: Spread) -> Cell:
    return Cell(words.duration(seconds.mean), seconds.mean)


def _sized(memory: Spread) -> Cell:
    return Cell(words.size(memory.mean), memory.mean)


def _compared(task: Task, group: Group) -> tuple[Cell, Cell]:
    """Return the cells of the difference to the baseline and of its p."""
    found = group.against
    if found is None:
        return _difference_of_means(task, group), Cell(words.NOTHING)
    like = _mean(group, found)
    interval = tag("small", f" ({_interval(found, like)})") if found.low is not None else None
    shown = tag("span", words.signed(found.difference, like), interval)
    uncorrected = f"p {words.probability(found.p)} before the correction"
    note = uncorrected if found.corrected is not None else None
    p = _p(found)
    return Cell(shown, found.difference), Cell(tag("span", words.probability(p), title=note), p)


def _difference_of_means(task: Task, group: Group) -> Cell:
    """Return what is left to say where no items can be compared."""
    if group.label in _baselines(task):
        return Cell("baseline", 0)
    base = next((each for each in task.groups if each.label == task.baseline), None)
    there = base is not None and task.measure in base.measures and task.measure in group.measures
    if base is None or not there:
        return Cell(words.NOTHING)
    mean = group.measures[task.measure].mean
    difference = mean - base.measures[task.measure].mean
    shown = tag("span", words.signed(difference, mean), title="Of the means: not compared by item")
    return Cell(shown, difference)


def _baselines(task: Task) -> set[str | None]:
    return {task.baseline, *(each.against.baseline for each in task.groups if each.against)}


def _is_compared(task: Task) -> bool:
    return len(task.groups) > 1 and task.baseline is not None


def _legend_of_table(task: Task, names: Sequence[str]) -> Iterable[object]:
    """Yield how the table is to be read."""
    if any(_learnt_nothing(group) for group in task.groups):
        yield f"{_LEARNT_NOTHING} counts runs that learnt next to nothing. "
    if len(task.groups) < 2:
        return
    better = "lower" if task.lower_is_better else "higher"
    by_measure = task.sort in ("", task.measure)
    order = "Best first" if by_measure else f"Sorted by {words.measure_words(task.sort)}"
    yield f"{order}: {better} {words.measure_words(task.measure)} is better. "
    if any(found.deviation is not None for g in task.groups for found in g.measures.values()):
        yield "Mean ± sample standard deviation over the seeds. "
    compared = [group.against for group in task.groups if group.against]
    if compared:
        tests = words.listed(sorted({each.test for each in compared}))
        items = max(each.items for each in compared)
        measures = words.listed(sorted({words.measure_words(each.measure) for each in compared}))
        baselines = sorted({_baseline_of(task, names, each) for each in compared})
        yield "Differences are to "
        yield tag("strong", words.listed(baselines))
        yield f", in {measures}, on the same {words.several(items, 'example')} ({tests})."
        if any(each.corrected is not None for each in compared):
            yield " p is corrected for the number of comparisons (Holm 1979)."


def unfinished(task: Task) -> Html | None:
    """Return which runs did not finish, or finished with nothing learnt, and why."""
    runs = [run for run in task.runs if run.status != FINISHED or run.reason]
    if not runs:
        return None
    rows = [(run.name, run.status, run.reason or words.NOTHING) for run in runs]
    columns = [Column("run"), Column("state"), Column("reason")]
    summary = f"{_UNFINISHED}: {len(runs)}"
    return details(summary, table(_UNFINISHED, columns, rows), open=len(runs) <= SHOWN_AT_FIRST)
