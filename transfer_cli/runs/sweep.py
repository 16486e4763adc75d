"""The folder of a sweep: what was asked for, and what became of each job.

```
SWEEP/
  sweep.json       what was typed, and when
  job-3.json       a job: its overrides, and left | running | done | failed | stopped | pruned
  job-3.log        what it said, if it ran in a process of its own
  3/               its run directory; its TensorBoard curves in a folder named by its overrides
  study.db         the study of a search
  .job-3.lock      held by the command that runs the job
```

Each file has one writer at a time and is replaced whole, so that others can read and several
commands can work on one sweep.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum, auto
from pathlib import Path

from transfer_cli.errors import raised_as
from transfer_cli.runs.atomic import check_inside, write_json
from transfer_cli.runs.locks import held_if_free, is_held
from transfer_cli.safe_files import UnreadableError, check_field_types, escaped, read_json

SWEEP = "sweep.json"
STUDY = "study.db"

_LONGEST_NAME = 200
"""Bytes; a disk takes 255."""

_JOB = re.compile(r"job-(\d+)\.json")


class JobState(StrEnum):
    """What became of a job; of several with the same overrides, the first in this order runs."""

    LEFT = auto()
    STOPPED = auto()
    FAILED = auto()
    RUNNING = auto()
    PRUNED = auto()
    DONE = auto()


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep was asked for.

    Args:
        words: The overrides that were typed, without `resume`.
        began: The time of its start, in ISO 8601.
        trials: Of a search, how many there are to be; None for a grid, whose jobs are all listed.
        threads: On the CPU, of each process of each job, whoever runs beside it.
    """

    command: str
    words: tuple[str, ...]
    began: str
    trials: int | None = None
    objective: str | None = None
    direction: str | None = None
    threads: int | None = None


@dataclass
class SweepJob:
    """What is known of one job, here and in its file.

    Args:
        number: Its place in the sweep, from 0, which is also the name of its run directory.
        overrides: Those that tell it from the other jobs.
        reason: Why it was not done, in one line.
        seconds: How long it has run, up to its last end.
        value: Of a trial, the measure that it reached.
    """

    number: int
    overrides: tuple[str, ...]
    words: tuple[str, ...] = ()
    outcome: JobState = JobState.LEFT
    reason: str | None = None
    seconds: float | None = None
    value: float | None = None


class SweepDirectory:
    """The files of a sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def is_at(path: Path) -> bool:
        """Return whether there is a sweep at `path`."""
        return (path / SWEEP).is_file()

    def write_request(self, request: SweepRequest) -> None:
        """Write what was asked for; the folder is made if it is missing."""
        self.path.mkdir(parents=True, exist_ok=True)
        # Runs look for themselves what is in them.
        places = [path for path in self.path.iterdir() if path.is_symlink() or not path.is_dir()]
        check_inside(self.path, places, "run.dir")
        write_json(self.path / SWEEP, asdict(request))

    def read_request(self) -> SweepRequest:
        """Return what the sweep was asked for."""
        content = read_json(self.path / SWEEP)
        with raised_as(UnreadableError, "it is not what a sweep writes: ", KeyError, TypeError):
            request = SweepRequest(**{**content, "words": tuple(map(str, content["words"]))})
        check_field_types(request)
        return request

    def run(self, number: int) -> Path:
        """Return the run directory of a job."""
        return self.path / str(number)

    def log(self, number: int) -> Path:
        """Return the file of what a job says, if it runs in a process of its own."""
        return self.path / f"job-{number}.log"

    def write_job(self, job: SweepJob) -> None:
        """Write the file of a job."""
        write_json(self._file(job.number), asdict(job))

    def jobs(self) -> list[SweepJob]:
        """Return every job by number; damaged files are ignored.

        A job that is recorded as running while nobody runs it was stopped: its command was killed.
        """
        jobs = [self._read(path) for path in self.path.glob("job-*.json")]
        return sorted((job for job in jobs if job is not None), key=lambda job: job.number)

    def job(self, number: int) -> SweepJob | None:
        """Return one of them, without looking at the others."""
        return self._read(self._file(number))

    def _file(self, number: int) -> Path:
        return self.path / f"job-{number}.json"

    def _read(self, path: Path) -> SweepJob | None:
        if not _JOB.fullmatch(path.name):
            return None
        try:
            content = read_json(path)
            known = {name: content[name] for name in content.keys() & SweepJob.__dataclass_fields__}
            lists = {
                name: tuple(map(str, content.get(name, ()))) for name in ("overrides", "words")
            }
            job = SweepJob(**{**known, **lists})
            job.outcome = JobState(job.outcome)
            check_field_types(job)
        except (OSError, UnreadableError, TypeError, ValueError):
            return None
        if job.outcome == JobState.RUNNING and not self.is_claimed(job.number):
            job.outcome, job.reason = JobState.STOPPED, "ended without a word"
        return job

    @contextmanager
    def claim(self, number: int) -> Iterator[int | None]:
        """Hold a job, as heirs of the claim do; yield this open file, None if it is taken."""
        with held_if_free(self._lock_of(number)) as lock:
            yield None if lock is None else lock.handle

    def is_claimed(self, number: int) -> bool:
        """Return whether some process has the job."""
        return is_held(self._lock_of(number))

    def _lock_of(self, number: int) -> Path:
        return self.path / f".job-{number}.lock"


def keys_in_sweep(run: Path) -> list[str]:
    """Return the keys in which a run differs from other jobs of its sweep; none outside of one."""
    return [word.lstrip("+~").partition("=")[0] for word in _own_overrides(run)]


def sweep_of(run: Path) -> Path | None:
    """Return the folder of the sweep that a run is a job of; None outside of one."""
    is_job = run.name.isdecimal() and SweepDirectory.is_at(run.parent)
    return run.parent if is_job else None


def _own_overrides(run: Path) -> tuple[str, ...]:
    sweep = sweep_of(run)
    job = None if sweep is None else SweepDirectory(sweep).job(int(run.name))
    return () if job is None else job.overrides


def name_in_sweep(run: Path) -> str:
    """Return what tells a run from the other jobs of its sweep, as a folder's name.

    It is "" for a run outside of a sweep.
    """
    words = escaped(" ".join(_own_overrides(run)))
    return words.replace("/", "-").encode()[:_LONGEST_NAME].decode(errors="ignore")
