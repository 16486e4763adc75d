"""The best run of a sweep: named where the sweep ends, and taken where its folder is given."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from transfer_cli.errors import ConfigError
from transfer_cli.report import formats
from transfer_cli.report.best import best_of, choice_of, commands, learnt, reasons, shell_word
from transfer_cli.report.collect import collect
from transfer_cli.report.contents import FINISHED, Best, Run
from transfer_cli.report.grouping import by_task
from transfer_cli.runs.sweep import SweepDirectory
from transfer_cli.safe_files import printable

log = logging.getLogger(__name__)


def last_words(sweep: Path) -> Iterator[str]:
    """Yield the lines with which a sweep ends: its best run, why, and what to type next."""
    try:
        runs = collect([sweep]).runs
    except ConfigError:
        runs = []
    tasks = by_task(runs)
    for name, members in tasks.items():
        best = _best(members)
        of_task = f" of {name}" if len(tasks) > 1 else ""
        if best is None:
            yield f"no best run{of_task}: {_why_none(members)}"
            continue
        overrides = f" ({printable(' '.join(best.run.overrides))})" if best.run.overrides else ""
        yield f"best run by validation{of_task}: {best.run.path}{overrides}"
        yield from (f"  {reason}" for reason in reasons(best))
        for what, line in commands(best.run).items():
            if what != "compare":
                yield f"  {what + ':':8} {line}"
    yield f"compare: transfer report {shell_word(sweep)}"


def run_of(path: str, key: str) -> str:
    """Return the path of a run as it is; for the folder of a sweep, that of its best run."""
    sweep = Path(path).expanduser()
    if not SweepDirectory.is_at(sweep):
        return path
    runs = collect([sweep]).runs
    best_runs = [
        (name, best) for name, members in by_task(runs).items() if (best := _best(members))
    ]
    if len(best_runs) > 1:
        named = "; ".join(f"{name}: {best.run.path}" for name, best in best_runs)
        raise ConfigError(
            f"{key}: {path} is a sweep over {len(best_runs)} tasks, whose runs cannot be compared; "
            f"name the best of one ({named})"
        )
    if not best_runs:
        raise ConfigError(
            f"{key}: {path} is a sweep without a best run: {_why_none(runs)}; name one of its runs "
            f"({path}/NUMBER); transfer report {shell_word(sweep)} shows them"
        )
    _, best = best_runs[0]
    value = formats.value(best.choice.metric, best.run.results.by_name[best.choice.measure])
    tie = f", as {formats.several(len(best.tied), 'other')}: {best.decided}" if best.tied else ""
    log.info(
        "%s: took %s, the best of %s of that sweep by %s (%s%s)",
        key, best.run.path, formats.several(best.among, "run"), best.choice.measure, value, tie,
    )  # fmt: skip
    return str(best.run.path)


def _best(runs: Sequence[Run]) -> Best | None:
    return best_of(runs, choice_of(learnt(runs)))


def _why_none(runs: Sequence[Run]) -> str:
    if learnt(runs):
        return "nothing was measured on a validation split"
    states = Counter(
        "learnt next to nothing" if run.status == FINISHED else run.status for run in runs
    )
    said = formats.amounts(dict(states))
    return f"no finished run learnt anything{f' ({said})' if said else ''}"
