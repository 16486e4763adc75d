"""What a report says in sentences: which run to take, how to read a table, what is foretold."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.literal import path_override
from transfer_cli.reports import formats
from transfer_cli.reports.contents import (
    BOOTSTRAP,
    CONFIDENCE,
    FEWEST_SEEDS,
    LEARNT_NOTHING,
    MCNEMAR,
    Best,
    Ladder,
    Report,
    Run,
    TaskRuns,
)
from transfer_cli.reports.results_table import BEST, holds_best
from transfer_cli.safe_files import printable

_TESTS = {
    MCNEMAR: "McNemar's exact test of single runs, which says nothing of other seeds",
    BOOTSTRAP: "a bootstrap over items and seeds",
}

_NO_PATH = re.compile(r"[A-Za-z_][\w.@/:-]*=|[-+]")
"""How a path begins that a command would take for a setting or a flag."""


def table_remarks(task: TaskRuns) -> list[str]:
    """Return the lines below a table in text: `explanations`, analyses, what a ladder says."""
    counts = Counter(analysis.name for run in task.runs for analysis in run.analyses)
    named = [f"{name} of {formats.several(n, 'run')}" for name, n in sorted(counts.items())]
    analyses = [f"analyses, which --html shows: {', '.join(named)}"] if named else []
    foretold = [] if task.ladder is None else ladder_lines(task.ladder)
    return [*explanations(task), *analyses, *foretold]


def explanations(task: TaskRuns, *, best: str = BEST, baseline: str | None = None) -> Iterator[str]:
    """Yield what a reader must know of a table, with its mark of the best group."""
    if task.choice is not None and any(group.is_best for group in task.groups):
        end = "higher" if task.choice.metric.higher_is_better else "lower"
        yield (
            f"{best} best {task.choice.measure} ({end} is better) of what learnt anything; the "
            "test split decides nothing"
        )
    spreads = [spread for group in task.groups for spread in group.measures.values()]
    if any(spread.deviation is not None for spread in spreads):
        yield "± is the standard deviation over the finished runs of a group"
    untold = any(group.against is not None and group.against.p is None for group in task.groups)
    if untold or any(1 < len(spread.values) < FEWEST_SEEDS for spread in spreads):
        yield (
            "of two runs the mean is shown alone; an interval, or a p, takes three seeds or more "
            "on both sides, or one on each"
        )
    yield from _test_explanation(task, baseline or task.baseline)
    if any(group.learnt_nothing for group in task.groups):
        yield f"{LEARNT_NOTHING} counts runs that learnt next to nothing"
    yield from task.notes


def best_run_label(task: TaskRuns, run: Run) -> str:
    """Return what tells the best run from others: its group, and its seed where there are some."""
    group = next(group for group in task.groups if holds_best(task, group))
    seed = f" seed={formats.plain(run.seed)}" if len(group.runs) > 1 else ""
    return f"({printable(group.label)}{seed})"


def why_best(task: TaskRuns, best: Best) -> Iterator[str]:
    """Yield why a run is the best one of a task; also why it is not of the best group."""
    yield from best_reasons(best)
    group = next((group for group in task.groups if group.is_best), None)
    if group is not None and not holds_best(task, group):
        where = formats.folders(run.path for run in group.runs)
        yield f"the best mean over seeds is another's: {group.label} ({where})"


def why_several_tables(report: Report) -> Iterator[str]:
    """Yield why there is more than one table."""
    if len(report.tasks) > 1:
        yield (
            f"{len(report.tasks)} tasks, each by itself: runs are compared where command, data and "
            "labels are the same"
        )


def _test_explanation(task: TaskRuns, baseline: str | None) -> Iterator[str]:
    comparisons = [group.against for group in task.groups if group.against is not None]
    if not comparisons:
        return
    corrected = sum(comparison.corrected is not None for comparison in comparisons)
    items = {f"{comparison.items:,}" for comparison in comparisons}
    tests = {comparison.test for comparison in comparisons}
    how = ", or ".join(words for test, words in _TESTS.items() if test in tests)
    has_interval = any(comparison.low is not None for comparison in comparisons)
    interval = f", with its {CONFIDENCE} % interval" if has_interval else ""
    several = f"; corrected for {corrected} comparisons (Holm; --csv has both)" if corrected else ""
    yield (
        f"difference to {baseline}{interval}; p by {how}, "
        f"paired on the same {' or '.join(sorted(items))} items{several}"
    )


# --- the best run


def best_reasons(best: Best) -> Iterator[str]:
    """Yield why a run is the best: by what, by how much, and what a tie leaves open."""
    value = best.run.results.by_name[best.choice.measure]
    end = "highest" if best.choice.metric.higher_is_better else "lowest"
    has_test = any(name.startswith("test/") for name in best.run.results.by_name)
    yield (
        f"{best.choice.measure} {formats.value(best.choice.metric, value)}, the {end} of "
        f"{formats.several(best.among, 'run')} that learnt anything"
        + ("; the test split had no say" if has_test else "")
    )
    if best.caveat:
        yield best.caveat
    if best.tied:
        yield from _tie_reasons(best.run, best.tied, best.decided)
    if best.runner_up is not None:
        other = best.runner_up.results.by_name[best.choice.measure]
        side = "above" if other > value else "below"
        yield (
            f"the next, {best.runner_up.path}, has {formats.value(best.choice.metric, other)}, "
            f"{formats.distance(best.choice.metric, other - value)} {side}"
        )


def _tie_reasons(run: Run, tied: Sequence[Run], decided: str) -> Iterator[str]:
    others = formats.folders(other.path for other in tied)
    yield f"a tie: {others} {'has' if len(tied) == 1 else 'have'} the same; {decided}"
    cheapest = min(tied, key=lambda other: math.inf if other.trained is None else other.trained)
    if cheapest.trained is not None and run.trained is not None and cheapest.trained < run.trained:
        yield (
            f"as good and cheaper: {cheapest.path} trains {cheapest.trained:,} parameters, "
            f"{run.path} {run.trained:,}"
        )


def next_commands(run: Run) -> dict[str, str]:
    """Return what to type next with a run, by what it is for, to be pasted into a shell."""
    folder = shell_word(run.path)
    typed = {"export": f"export {folder} FOLDER"}
    if run.results.task is not None or run.results.labels:
        typed = {"predict": f"predict {folder} FILE", **typed}
    elif run.command == "pretrain":
        typed = {"adapt": f"finetune {path_override('init_from', run.path)}", **typed}
    whole = run.path.parent
    if run.sweep is not None and whole.resolve() != run.sweep:
        whole = run.sweep
    typed["compare"] = f"report {shell_word(whole)} --html report.html"
    then = CommandLine.current().next_command
    return {what: then(line) for what, line in typed.items()}


def shell_word(path: Path) -> str:
    """Return a path as a word of a command line that is taken for nothing else."""
    # A home is looked for behind `./~`, too.
    text = str(path.absolute() if str(path).startswith("~") else path)
    return shlex.quote(f"./{text}" if _NO_PATH.match(text) else text)


# --- ladders


def ladder_lines(ladder: Ladder) -> Iterator[str]:
    """Yield in words what a ladder says."""
    if ladder.law or ladder.refused:
        law = (
            f"validation/loss = {ladder.law}" if ladder.law else f"no prediction: {ladder.refused}"
        )
        yield f"ladder of {formats.several(len(ladder.rungs), 'run')}: {law}"
    if (target := ladder.target) is not None and target.prediction is None:
        yield f"{target.name}: no prediction: {target.refused}"
    elif target is not None and target.prediction is not None:
        times = target.operations / max(rung.operations for rung in ladder.rungs)
        yield (
            f"{target.name}: depth {target.depth:.1f}, {formats.count(target.parameters)} "
            f"parameters, {formats.count(target.tokens)} tokens, "
            f"{formats.flops(target.operations)} ({times:.1f} times the largest run), "
            f"{formats.duration(float(round(target.seconds)))} as fast as these: validation/loss "
            f"{target.prediction}; to compare, train it with "
            f"model.depth={target.depth:.0f} ladder.of=SWEEP"
        )
    for run in ladder.came:
        if run.prediction is not None:
            off = run.loss - run.prediction.loss
            where = "in" if run.prediction.low <= run.loss <= run.prediction.high else "outside of"
            yield (
                f"{run.name}: foretold {run.prediction}, came {run.loss:.3f}, "
                f"{abs(off):.3f} {'above' if off > 0 else 'below'}, {where} the interval"
            )
