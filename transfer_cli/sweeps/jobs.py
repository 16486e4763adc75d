"""Runs a command as the jobs of a sweep, and records the outcome of each."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from transfer_cli.config.compose import compose, without_hydra_keys
from transfer_cli.config.flags import Request
from transfer_cli.config.literal import quoted
from transfer_cli.config.roles import Role, role_of
from transfer_cli.errors import (
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    PrunedError,
    RunError,
    SweepError,
    TransferError,
    raised_as,
)
from transfer_cli.metrics import Metric
from transfer_cli.runs.atomic import as_run_error
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import SWEEP, JobState, SweepDirectory, SweepJob, SweepRequest
from transfer_cli.safe_files import UnreadableError

log = logging.getLogger(__name__)

ONE_TIME_KEYS = ("resume_strict", "data_changed")
"""Keys of all jobs that hold for one command: the jobs do not keep them."""

SWEEP_ENDING_CODES = (EXIT_STOPPED, EXIT_INTERRUPTED)
"""Exit codes of a job after which no other job of its sweep is begun: somebody wants an end."""


@dataclass
class Jobs:
    """The jobs of a sweep.

    A copy of this is carried to the machine of each job where a cluster runs them.

    Args:
        task: Does its work with a config, where jobs run in this process.
        report: Called as soon as a job has failed, with the error if it ran in this process;
            returns the reason in one line.
        metrics: Returns what a run of a config measures, so that a search knows whether more is
            better.
        try_out: Refuses the config of a job of a command as its run would.
        makes_runs: Whether each job leaves a run directory; only then can a sweep be continued.
        on_cluster: Whether a cluster runs them, so that they leave word in their files alone.
        warned: The warnings of jobs with a process of their own, each with the numbers of the jobs.
    """

    command: str
    task: Callable[[DictConfig], None]
    request: Request
    report: Callable[[SweepJob, Exception | None], str]
    metrics: Callable[[DictConfig], Sequence[Metric]]
    try_out: Callable[[DictConfig, str], None]
    makes_runs: bool = False
    sweep_dir: Path | None = None
    done: list[SweepJob] = field(default_factory=list)
    stopped: TransferError | None = None
    on_cluster: bool = False
    warned: dict[str, list[int]] = field(default_factory=dict)

    @property
    def resumes(self) -> bool:
        """Whether an earlier sweep is continued."""
        return self.request.value_of("resume") == "auto"

    # --- which jobs to run ---------------------------------------------------------------------

    def begin(
        self, folder: Path, jobs: Sequence[Sequence[str]], threads: int, **of_search: Any
    ) -> list[SweepJob]:
        """Write down a sweep, and return the jobs left; one that goes on keeps its `threads`."""
        self.sweep_dir = folder
        directory = SweepDirectory(folder)
        if directory.is_at(folder) and not self.resumes:
            raise RunError(
                f"run.dir: {folder} already holds a sweep; add resume=auto to go on with it, or "
                "choose another folder"
            )
        if (folder / "config.yaml").exists():
            raise RunError(f"run.dir: {folder} holds a run; choose another folder for the sweep")
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        request = SweepRequest(self.command, typed_words(self.request), now, **of_search)
        if directory.is_at(folder):
            with raised_as(RunError, f"{folder / SWEEP} is damaged: ", UnreadableError):
                # A search may ask for more trials now.
                request = replace(directory.read_request(), trials=request.trials)
        with as_run_error(folder):
            directory.write_request(replace(request, threads=request.threads or threads))
        return self._number_jobs(jobs)

    def _number_jobs(self, jobs: Sequence[Sequence[str]]) -> list[SweepJob]:
        """Number jobs, keeping the numbers of known ones; return those that are not done."""
        directory = self.directory
        known = {_identity(job.overrides, job.words): job for job in directory.jobs()}
        following = 1 + max((job.number for job in known.values()), default=-1)
        numbered = []
        common = shared_overrides(jobs)
        for words in map(_without_run_keys, jobs):
            overrides = tuple(word for word in words if word not in common)
            job = known.get(_identity(overrides, words))
            if job is None:
                job = SweepJob(following, overrides, words)
                following += 1
                directory.write_job(job)
            elif set(job.words) != set(words) and job.outcome != JobState.RUNNING:
                # What a resume may change was changed; a run that gets longer is not done.
                job = replace(job, overrides=overrides or job.overrides, words=words, outcome=(
                    job.outcome if _lengths(job.words) == _lengths(words) else JobState.LEFT
                ))  # fmt: skip
                directory.write_job(job)
            numbered.append(job)
        self.done += [job for job in numbered if self._is_done(job)]
        return [job for job in numbered if not self._is_done(job)]

    def _is_done(self, job: SweepJob) -> bool:
        """Return whether nothing is left to do: its run may have been removed since."""
        run = RunDirectory(self.directory.run(job.number))
        return job.outcome == JobState.PRUNED or (
            job.outcome == JobState.DONE and run.read_status() == "finished"
        )

    @property
    def directory(self) -> SweepDirectory:
        """The folder of the sweep that is running."""
        assert self.sweep_dir is not None  # noqa: S101 - `begin` or the first job has set it
        return SweepDirectory(self.sweep_dir)

    # --- doing it ------------------------------------------------------------------------------

    def run(self, job: SweepJob) -> None:
        """Run one job in this process."""
        if self.stopped is not None:
            return
        composed = compose(self.command, self.request, self._overrides_of(job))
        typed = replace(composed.typed, overrides=tuple(without_hydra_keys(job.words)))
        with self.claim_job(job) as claim, typed.as_current():
            if claim is not None:
                self._run_task(job, composed.config)

    def words_of(self, job: SweepJob) -> list[str]:
        """Return what follows the name of the command where a job is a process of its own."""
        return [*self.request.flags, *self._overrides_of(job)]

    def _overrides_of(self, job: SweepJob) -> list[str]:
        """Return the overrides of a job, and those that say where its run is and how to go on."""
        if not self.makes_runs:
            return list(job.words)
        where = quoted(str(self.directory.run(job.number)))
        once = [word for word in self.request.overrides if word.partition("=")[0] in ONE_TIME_KEYS]
        # A cluster may begin a job again, which then goes on.
        resume = ["resume=auto"] if self.resumes or self.on_cluster else []
        return [*job.words, f"run.dir={where}", *resume, *once]

    @contextlib.contextmanager
    def claim_job(self, job: SweepJob) -> Iterator[int | None]:
        """Keep the file of a job up to date while it runs; yield the claim, None if it is taken."""
        if not (self.makes_runs or self.on_cluster):
            self.done.append(job)
            _announce(job)
            yield 0
            return
        directory = self.directory
        directory.path.mkdir(parents=True, exist_ok=True)
        with directory.claim(job.number) as claim:
            if claim is None:
                log.info("job %d: another command or process works on it", job.number)
                yield None
                return
            now = directory.job(job.number)
            if now is not None and self.makes_runs and self._is_done(now):
                self.done.append(now)
                yield None
                return
            self.done.append(job)
            _announce(job)
            began, before = time.monotonic(), job.seconds or 0.0
            directory.write_job(replace(job, outcome=JobState.RUNNING, reason=None))
            try:
                yield claim
            finally:
                job.seconds = round(before + time.monotonic() - began, 3)
                if job.outcome == JobState.LEFT:
                    job.outcome, job.reason = JobState.STOPPED, job.reason or "interrupted"
                directory.write_job(job)

    def _run_task(self, job: SweepJob, config: DictConfig) -> None:
        job.outcome, job.reason = JobState.LEFT, None
        try:
            self.task(config)
        except Exception as error:
            job.outcome, job.reason = JobState.FAILED, str(error)
            if isinstance(error, PrunedError):
                job.outcome = JobState.PRUNED
            elif isinstance(error, TransferError) and error.exit_code in SWEEP_ENDING_CODES:
                self.stopped, job.outcome = error, JobState.STOPPED
            else:
                job.reason = self.report(job, error)
        else:
            job.outcome = JobState.DONE

    def read_outcomes(self, folder: Path) -> None:
        """Read the outcomes of jobs that ran in other processes from their files."""
        self.sweep_dir = folder
        jobs = self.directory.jobs()
        if not any(job.outcome != JobState.LEFT for job in jobs):
            raise SweepError(f"no job has left word in {folder}; see what its launcher wrote")
        self.done = jobs


def _announce(job: SweepJob) -> None:
    log.info("job %d: %s", job.number, " ".join(job.overrides) or "(as it is)")


def typed_words(request: Request) -> tuple[str, ...]:
    """Return the overrides without the folder of the sweep and `resume`."""
    typed = (word for word in request.overrides if not word.startswith("hydra.sweep.dir="))
    return _without_run_keys(typed)


def shared_overrides(jobs: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return the overrides that all jobs have; none of them if there is only one job."""
    sets = [frozenset(words) for words in jobs]
    return frozenset.intersection(*sets) if len(sets) > 1 else frozenset()


def names_run(word: str) -> bool:
    """Return whether an override only says where a run is."""
    return Role.NAMES_RUN in role_of(word.partition("=")[0])


def _without_run_keys(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for word in words if not names_run(word))


def _identity(overrides: Sequence[str], words: Sequence[str]) -> frozenset[str]:
    """Return the overrides that make a job what it is: without those that a resume may change."""
    keys = {word: word.partition("=")[0] for word in words}
    return frozenset(
        word
        for word, key in keys.items()
        if word in overrides or not (Role.EXTENDS in role_of(key) or key.startswith("sweep."))
    )


def _lengths(words: Iterable[str]) -> set[str]:
    keys = ("loop.steps", "loop.epochs", "loop.tokens", "loop.flops", "loop.patience")
    return {word for word in words if word.partition("=")[0] in keys}
