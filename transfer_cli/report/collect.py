"""From the paths that somebody typed to runs: what is found there, as far as it can be read.

A run may be at work while it is read, may have been killed, or may come from a stranger. Nothing
here waits for one, runs anything of one, or ends because of one.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.config.plain_yaml import read_settings, scalar
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.report.contents import (
    FAILED,
    FINISHED,
    PRUNED,
    RUNNING,
    STOPPED,
    Run,
    SweepProgress,
)
from transfer_cli.report.sweep_progress import sweep_progress
from transfer_cli.report.untrusted import reason, text_or_none
from transfer_cli.runs.analyses import read_analyses
from transfer_cli.runs.directory import LOCK, RunDirectory
from transfer_cli.runs.sweep import SWEEP, JobState, SweepDirectory, SweepJob
from transfer_cli.safe_files import UnreadableError, printable, read_json, read_text

MOST_FOLDERS = 20_000
"""Folders that are looked into below one path; more of them hold something else than runs."""

KILLED = "ended without a word: it may have been killed"
UNKNOWN = "an unknown command"

_MOST_TYPED_BYTES = 2**20

T = TypeVar("T")


@dataclass
class Found:
    """What there is at the paths: also jobs without a run directory, and what cannot be read.

    Args:
        jobs: What each sweep says of its jobs, by number.
    """

    runs: list[Run] = field(default_factory=list)
    standings: list[SweepProgress] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    jobs: dict[Path, dict[int, SweepJob]] = field(default_factory=dict)


def collect(paths: Iterable[Path]) -> Found:
    """Return the runs and sweeps at `paths`, each once.

    Args:
        paths: Run directories, folders of sweeps, and folders that hold any of these.

    Raises:
        ConfigError: There is nothing at a path, or nothing that can be reported at any of them.
    """
    found = Found()
    seen: set[str] = set()
    for path in paths:
        check_there(path)
        problems, is_new = len(found.problems), os.path.realpath(path) not in seen
        place = None
        for place in _places(path, seen, found.problems):
            _take(place, found)
        if is_new and place is None and len(found.problems) == problems:
            found.problems.append(f"{path} holds no runs: no folder in it has a config.yaml")
    if not found.runs and not found.standings:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise ConfigError(f"nothing to report: {found.problems[0]}{more}")
    found.runs = _named(found.runs)
    return found


def check_there(path: Path) -> None:
    """Refuse a path at which there is no folder.

    Raises:
        ConfigError: There is none; the message names one that may be meant.
    """
    if path.is_dir():
        return
    if path.exists():
        raise ConfigError(f"{path} is a file; name the run directory that it belongs to")
    names = _folders(path.parent, []) if path.parent.is_dir() else []
    raise ConfigError(f"there is no folder {path}.{nearest(path.name, (p.name for p in names))}")


# --- finding -----------------------------------------------------------------------------------


def _places(path: Path, seen: set[str], problems: list[str]) -> Iterator[Path]:
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
            names = [each.name for each in entries if each.is_dir() and each.name[0] != "."]
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
        return []
    return [folder / name for name in sorted(names, key=_by_number)]


def _by_number(name: str) -> tuple[int, str]:
    is_number = name.isdecimal() and len(name) < 10
    return (int(name), name) if is_number else (10**10, name)


def _take(place: Path, found: Found) -> None:
    """Add what is at a place: a run, or how a sweep stands and those of its jobs without a run."""
    if RunDirectory.holds_run(place):
        try:
            run = _with_job(read_run(place), _jobs(place.resolve().parent, found))
            analyses = tuple(read_analyses(place, found.problems))
            found.runs.append(replace(run, analyses=analyses))
        except UnreadableError as error:
            found.problems.append(f"{place} cannot be read: {printable(str(error))}")
        return
    sweep = SweepDirectory(place)
    jobs = tuple(_jobs(place.resolve(), found).values())
    try:
        request = sweep.read_request()
    except (OSError, UnreadableError) as error:
        found.problems.append(f"{place} cannot be read: {SWEEP}: {printable(str(error))}")
        return
    found.standings.append(sweep_progress(sweep, request, jobs))
    for job in jobs:
        if RunDirectory.holds_run(sweep.run(job.number)):
            continue
        if job.outcome != JobState.DONE:
            found.runs.append(_without_run(sweep, request.command, job))
        else:
            found.problems.append(f"{sweep.run(job.number)} is gone, though the job was done")


def _named(runs: list[Run]) -> list[Run]:
    """Return the runs, each called by its path below the folder that all of them share."""
    if len(runs) < 2:
        return runs
    places = [os.path.realpath(run.path) for run in runs]
    shared = os.path.commonpath(places)
    return [
        replace(run, name=os.path.relpath(place, shared))
        for run, place in zip(runs, places, strict=True)
    ]


# --- reading a run -----------------------------------------------------------------------------


def read_run(path: Path) -> Run:
    """Return the run at `path`; its name is that of its folder.

    Raises:
        UnreadableError: A file is damaged or hostile, or one is missing that this run must have.
    """
    directory = RunDirectory(path)
    settings = _needed(directory.config, read_settings)
    environment = _optional(directory.environment)
    status, why = _status(directory)
    results: dict[str, Any] = {}
    if status == FINISHED:
        results = _needed(directory.results, read_json)
        why = text_or_none(results.get("failed"))
    presets = _optional(directory.presets)
    return Run(
        path=path,
        name=path.resolve().name,
        command=str(environment.get("command") or UNKNOWN),
        status=status,
        reason=why,
        settings=settings | {group: str(option) for group, option in presets.items()},
        results=results,
        timing=_optional(directory.timing),
        environment=environment,
        typed=frozenset(_typed(directory.overrides)),
    )


def _needed(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except (OSError, UnreadableError) as error:
        raise UnreadableError(f"{path.name}: {reason(error)}") from error


def _optional(path: Path) -> dict[str, Any]:
    return _needed(path, read_json) if path.exists() else {}


def _status(directory: RunDirectory) -> tuple[str, str | None]:
    """Return how far a run has come, and why no further."""
    found = _optional(directory.status)
    said = found.get("status")
    if said in (FINISHED, STOPPED, FAILED, PRUNED):
        return said, text_or_none(found.get("reason"))
    return (RUNNING, None) if _is_at_work(directory.path) else (STOPPED, KILLED)


def _is_at_work(path: Path) -> bool:
    """Return whether a command writes to a run directory: then it holds the lock there."""
    lock = path / LOCK
    if not lock.is_file():
        return False
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True  # held, or on a disk without locks: then what the run said last is believed
    finally:
        os.close(handle)
    return False


def _typed(path: Path) -> Iterator[str]:
    """Yield the keys and groups that were given on the command line."""
    if path.exists():
        for line in _needed(path, lambda each: read_text(each, _MOST_TYPED_BYTES)).splitlines():
            yield line.lstrip("+~").partition("=")[0].strip()


# --- jobs of a sweep ---------------------------------------------------------------------------


def _jobs(sweep: Path, found: Found) -> dict[int, SweepJob]:
    """Return what is known of the jobs of a sweep; nothing where a folder is none."""
    if sweep not in found.jobs:
        found.jobs[sweep] = {}
        try:
            jobs = SweepDirectory(sweep).jobs() if SweepDirectory.is_at(sweep) else []
            found.jobs[sweep] = {job.number: job for job in jobs}
        except OSError as error:
            found.problems.append(f"{sweep}: its jobs cannot be read: {printable(str(error))}")
    return found.jobs[sweep]


def _with_job(run: Run, jobs: Mapping[int, SweepJob]) -> Run:
    """Add what a sweep says of one of its jobs, where the run is one."""
    folder = run.path.resolve()
    job = jobs.get(int(folder.name)) if folder.name.isdecimal() else None
    if job is None:
        return run
    run = replace(run, sweep=folder.parent, number=job.number, overrides=job.overrides)
    if run.status == STOPPED and job.outcome in (JobState.FAILED, JobState.PRUNED):
        return replace(run, status=job.outcome, reason=text_or_none(job.reason))
    return run


def _without_run(sweep: SweepDirectory, command: str, job: SweepJob) -> Run:
    """Return a job that has no run directory: not begun, or failed before it had one."""
    words = [word.lstrip("+~").partition("=") for word in (*job.words, *job.overrides)]
    return Run(
        path=sweep.run(job.number),
        name=str(job.number),
        command=str(command),
        status=job.outcome,
        reason=text_or_none(job.reason),
        settings={key: scalar(value) for key, _, value in words},
        sweep=sweep.path.resolve(),
        number=job.number,
        overrides=job.overrides,
        typed=frozenset(key for key, _, _ in words),
    )
