"""Finds runs and sweeps below the paths that somebody typed, and reads them as far as possible.

The best run of a sweep is named where the sweep ends, and taken where its folder is given. A run
may be at work, may have been killed, or may come from a stranger. Nothing here waits for one, runs
anything of one, or ends because of one.
"""

import logging
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.flat import flat_items
from transfer_cli.config.plain_yaml import read_plain, scalar
from transfer_cli.errors import ConfigError
from transfer_cli.progress import progress
from transfer_cli.reports import formats
from transfer_cli.reports.best import best_run, criterion, learnt_runs
from transfer_cli.reports.contents import (
    ENDED_EARLY,
    FINISHED,
    RUNNING,
    STOPPED,
    Best,
    Run,
    SweepProgress,
)
from transfer_cli.reports.grouping import group_by_task
from transfer_cli.reports.ladder import ladder_of
from transfer_cli.reports.remarks import best_reasons, ladder_lines, next_commands, shell_word
from transfer_cli.runs.directory import LOCK, RunDirectory, folder_hint
from transfer_cli.runs.locks import is_held
from transfer_cli.runs.results import Results
from transfer_cli.runs.stored_analyses import read_analyses
from transfer_cli.runs.sweep import SWEEP, JobState, SweepDirectory, SweepJob, SweepRequest
from transfer_cli.runs.untrusted import error_reason, is_number, text_or_none
from transfer_cli.safe_files import UnreadableError, printable, read_json, read_text

log = logging.getLogger(__name__)

MOST_FOLDERS = 20_000
"""Folders that are looked into below one path; more of them hold something else than runs."""

_MOST_TYPED_BYTES = 2**20

T = TypeVar("T")


@dataclass
class CollectedRuns:
    """Runs, sweeps, a line for each thing that cannot be read, and the jobs of each sweep."""

    runs: list[Run] = field(default_factory=list)
    standings: list[SweepProgress] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    jobs: dict[Path, dict[int, SweepJob]] = field(default_factory=dict)


def collect(paths: Iterable[Path]) -> CollectedRuns:
    """Return the runs and sweeps at and below `paths`, each once.

    Raises:
        ConfigError: There is nothing at a path, or nothing that can be reported at any of them.
    """
    collected = CollectedRuns()
    seen: set[str] = set()
    with progress("reading", None, "runs") as noted:
        for path in paths:
            check_folder_exists(path)
            problems, is_new = len(collected.problems), os.path.realpath(path) not in seen
            place = None
            for place in _run_folders(path, seen, collected.problems):
                try:
                    _add(place, collected)
                except UnreadableError as error:
                    collected.problems.append(f"{place} cannot be read: {printable(str(error))}")
                noted(1)
            if is_new and place is None and len(collected.problems) == problems:
                why = f"{path} holds no runs: no folder in it has a config.yaml"
                collected.problems.append(why)
    if not collected.runs and not collected.standings:
        more = f" (and {len(collected.problems) - 1} more)" if len(collected.problems) > 1 else ""
        raise ConfigError(f"nothing to report: {[*collected.problems, 'no path given'][0]}{more}")
    collected.runs = _with_short_names(collected.runs)
    return collected


def check_folder_exists(path: Path) -> None:
    """Refuse a path at which there is no folder."""
    if path.is_dir():
        return
    if path.exists():
        raise ConfigError(f"{path} is a file; name the run directory that it belongs to")
    key, _, rest = str(path).partition("=")
    without = f"; type it without {key}=" if rest and Path(rest).is_dir() else ""
    raise ConfigError(f"there is no folder {path}{without or folder_hint(path)}")


def _run_folders(path: Path, seen: set[str], problems: list[str]) -> Iterator[Path]:
    """Yield run directories and folders of sweeps at and below `path`, each once."""
    left = [path]
    looked = 0
    while left:
        folder = left.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        looked += 1
        if looked > MOST_FOLDERS:
            problems.append(
                f"{path} holds more than {MOST_FOLDERS:,} folders, and the rest was not looked "
                "at; name a folder nearer to the runs"
            )
            return
        is_run = RunDirectory.holds_run(folder)
        if is_run or SweepDirectory.is_at(folder):
            yield folder
        if not is_run:
            left += reversed(_folders(folder, problems))


def _folders(folder: Path, problems: list[str]) -> list[Path]:
    """Return the folders in a folder, 2 before 10."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
        return []
    names.sort(
        key=lambda name: (int(name) if name.isdecimal() and len(name) < 10 else 10**10, name)
    )
    return [folder / name for name in names]


def _add(place: Path, collected: CollectedRuns) -> None:
    """Add a run, or the progress of a sweep and its jobs without a run directory."""
    if RunDirectory.holds_run(place):
        run = _with_job(read_run(place), _jobs(place.resolve().parent, collected))
        analyses = read_analyses(RunDirectory(place).analyses, collected.problems)
        collected.runs.append(replace(run, analyses=tuple(analyses)))
        return
    sweep = SweepDirectory(place)
    jobs = tuple(_jobs(place.resolve(), collected).values())
    request = _read_required(place / SWEEP, lambda _: sweep.read_request())
    collected.standings.append(sweep_progress(sweep, request, jobs))
    for job in jobs:
        if RunDirectory.holds_run(sweep.run(job.number)):
            continue
        if job.outcome != JobState.DONE:
            collected.runs.append(_without_run(sweep, request.command, job))
        else:
            collected.problems.append(f"{sweep.run(job.number)} is gone, though the job was done")


def _with_short_names(runs: list[Run]) -> list[Run]:
    """Return the runs, each called by its path below the folder that all of them share."""
    if len(runs) < 2:
        return runs
    shared = os.path.commonpath([os.path.realpath(run.path) for run in runs])
    return [replace(run, name=os.path.relpath(os.path.realpath(run.path), shared)) for run in runs]


def read_run(path: Path) -> Run:
    """Return the run at `path`; its name is that of its folder.

    Raises:
        UnreadableError: A file is damaged or hostile, or one is missing that this run must have.
    """
    directory = RunDirectory(path)
    settings = dict(flat_items(_read_required(directory.config, read_plain)))
    # Which one was chosen stands among the presets; its place in the config is empty.
    settings.pop("experiment", None)
    environment = _read_optional(directory.environment)
    status, why = _status(directory)
    results = Results()
    if status == FINISHED:
        results = _read_required(directory.results, Results.read)
        why = results.failed
    presets = _read_optional(directory.presets)
    typed = ""
    if directory.overrides.exists():
        typed = _read_required(directory.overrides, lambda file: read_text(file, _MOST_TYPED_BYTES))
    return Run(
        path=path,
        name=path.resolve().name,
        command=str(environment.get("command") or "an unknown command"),
        status=status,
        reason=why,
        settings=settings | {group: str(option) for group, option in presets.items()},
        results=results,
        timing=_read_optional(directory.timing),
        environment=environment,
        typed=frozenset(_key_and_value(line)[0] for line in typed.splitlines()),
    )


def _read_required(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except (OSError, UnreadableError) as error:
        raise UnreadableError(f"{path.name}: {error_reason(error)}") from error


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_required(path, read_json) if path.exists() else {}


def _key_and_value(word: str) -> tuple[str, str]:
    """Return the two sides of what was typed on the command line."""
    key, _, value = word.lstrip("+~").partition("=")
    return key.strip(), value


def _status(directory: RunDirectory) -> tuple[str, str | None]:
    content = _read_optional(directory.status)
    status = content.get("status")
    if status in (FINISHED, *ENDED_EARLY):
        return status, text_or_none(content.get("reason"))
    if is_held(directory.path / LOCK):
        return RUNNING, None
    return STOPPED, "ended without a word: it may have been killed"


def _jobs(sweep: Path, collected: CollectedRuns) -> dict[int, SweepJob]:
    """Return the jobs of a sweep by number; none where the folder is no sweep."""
    if sweep not in collected.jobs:
        collected.jobs[sweep] = {}
        try:
            jobs = SweepDirectory(sweep).jobs() if SweepDirectory.is_at(sweep) else []
            collected.jobs[sweep] = {job.number: job for job in jobs}
        except OSError as error:
            collected.problems.append(f"{sweep}: its jobs cannot be read: {printable(str(error))}")
    return collected.jobs[sweep]


def _with_job(run: Run, jobs: Mapping[int, SweepJob]) -> Run:
    """Add what the sweep knows of a run that is one of its jobs."""
    folder = run.path.resolve()
    job = jobs.get(int(folder.name)) if folder.name.isdecimal() else None
    if job is None:
        return run
    run = replace(run, sweep=folder.parent, number=job.number, overrides=job.overrides)
    words = dict(map(_key_and_value, job.words))
    if (target := words.get("ladder.target")) is not None:
        run = replace(run, settings={**run.settings, "ladder.target": scalar(target)})
    if run.status == STOPPED and job.outcome in (JobState.FAILED, JobState.PRUNED):
        return replace(run, status=job.outcome, reason=text_or_none(job.reason))
    return run


def _without_run(sweep: SweepDirectory, command: str, job: SweepJob) -> Run:
    """Return a job that has no run directory: not begun, or failed before it had one."""
    settings = dict(map(_key_and_value, (*job.words, *job.overrides)))
    return Run(
        path=sweep.run(job.number),
        name=str(job.number),
        command=str(command),
        status=job.outcome,
        reason=text_or_none(job.reason),
        settings={key: scalar(value) for key, value in settings.items()},
        sweep=sweep.path.resolve(),
        number=job.number,
        overrides=job.overrides,
        typed=frozenset(settings),
    )


# --- the progress of a sweep -------------------------------------------------------------------


def sweep_progress(
    sweep: SweepDirectory, request: SweepRequest, jobs: Sequence[SweepJob]
) -> SweepProgress:
    """Return the progress of a sweep, from what is known of its jobs."""
    counts = Counter(job.outcome for job in jobs)
    # The trials of a search become known as they begin.
    unknown = max(0, int(_plausible(request.trials) or 0) - len(jobs))
    left = unknown + counts[JobState.LEFT] + counts[JobState.STOPPED]
    return SweepProgress(
        path=sweep.path,
        command=f"transfer {request.command} -m {shlex.join(request.words)}",
        done=counts[JobState.DONE],
        running=counts[JobState.RUNNING],
        left=left,
        failed=tuple(
            (job.number, " ".join(job.overrides), str(job.reason or "no reason is known"))
            for job in jobs
            if job.outcome == JobState.FAILED
        ),
        pruned=counts[JobState.PRUNED],
        seconds_left=_seconds_left(sweep, jobs, left),
    )


def _seconds_left(sweep: SweepDirectory, jobs: Sequence[SweepJob], left: int) -> float | None:
    """Guess when all is done, if as many jobs run side by side as now (or one), and as long."""
    took = (_plausible(job.seconds) for job in jobs if job.outcome == JobState.DONE)
    known = [seconds for seconds in took if seconds is not None]
    running = [job for job in jobs if job.outcome == JobState.RUNNING]
    if not known or not (left or running):
        return None
    mean = sum(known) / len(known)
    rests = [max(0.0, mean - _running_seconds(sweep, job)) for job in running]
    together = (sum(rests) + left * mean) / max(1, len(running))
    return max([together, *rests])


def _running_seconds(sweep: SweepDirectory, job: SweepJob) -> float:
    """Return for how many seconds a job has been running: its file was written when it began."""
    try:
        return max(0.0, time.time() - (sweep.path / f"job-{job.number}.json").stat().st_mtime)
    except OSError:
        return 0.0


def _plausible(value: Any) -> float | None:
    largest = 1e9  # a larger number of trials or seconds is not believed
    return float(value) if is_number(value) and 0 <= value < largest else None


def best_run_lines(sweep: Path) -> Iterator[str]:
    """Yield the lines with which a sweep ends: its best run, why, and what to type next."""
    try:
        runs = collect([sweep]).runs
    except ConfigError:
        runs = []
    tasks = group_by_task(runs)
    for name, members in tasks.items():
        best, ladder = _best_run(members), ladder_of(members)
        yield from [] if ladder is None else ladder_lines(ladder)
        of_task = f" of {name}" if len(tasks) > 1 else ""
        if best is None:
            yield f"no best run{of_task}: {_why_no_best(members)}"
            continue
        overrides = f" ({printable(' '.join(best.run.overrides))})" if best.run.overrides else ""
        yield f"best run by validation{of_task}: {best.run.path}{overrides}"
        yield from (f"  {reason}" for reason in best_reasons(best))
        for what, line in next_commands(best.run).items():
            if what != "compare":
                yield f"  {what + ':':8} {line}"
    yield f"compare: {CommandLine.current().next_command(f'report {shell_word(sweep)}')}"


def resolve_run(path: str, key: str) -> str:
    """Return the path of a run as it is; for the folder of a sweep, that of its best run."""
    sweep = Path(path).expanduser()
    if not SweepDirectory.is_at(sweep):
        return path
    runs = collect([sweep]).runs
    of_tasks = ((name, _best_run(members)) for name, members in group_by_task(runs).items())
    best_runs = [(name, best) for name, best in of_tasks if best is not None]
    if len(best_runs) > 1:
        named = "; ".join(f"{name}: {best.run.path}" for name, best in best_runs)
        raise ConfigError(
            f"{key}: {path} is a sweep over {len(best_runs)} tasks, whose runs cannot be compared; "
            f"name the best of one ({named})"
        )
    if not best_runs:
        raise ConfigError(
            f"{key}: {path} is a sweep without a best run: {_why_no_best(runs)}; name one of its "
            f"runs ({path}/NUMBER); transfer report {shell_word(sweep)} shows them"
        )
    _, best = best_runs[0]
    value = formats.value(best.choice.metric, best.run.results.by_name[best.choice.measure])
    tie = f", as {formats.several(len(best.tied), 'other')}: {best.decided}" if best.tied else ""
    log.info(
        "%s: took %s, the best of %s of that sweep by %s (%s%s)",
        key, best.run.path, formats.several(best.among, "run"), best.choice.measure, value, tie,
    )  # fmt: skip
    if best.caveat:
        log.warning("%s", best.caveat)
    return str(best.run.path)


def _best_run(runs: Sequence[Run]) -> Best | None:
    return best_run(runs, criterion(learnt_runs(runs)))


def _why_no_best(runs: Sequence[Run]) -> str:
    if learnt_runs(runs):
        return "nothing was measured on a validation split"
    states = Counter(
        "learnt next to nothing" if run.status == FINISHED else run.status for run in runs
    )
    counts = formats.amounts(dict(states))
    return f"no finished run learnt anything{f' ({counts})' if counts else ''}"
