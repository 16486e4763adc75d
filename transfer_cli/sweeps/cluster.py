"""Runs the jobs of a sweep by submitit: on a cluster under Slurm, or as a try on this machine.

A job there is the same command as here, in its own process. It writes its outcome into its files,
so the sweep may end meanwhile. A job that runs out of time is saved and begun again as often as
`hydra.launcher.max_num_timeout` says.
"""

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transfer_cli.config.schema import LAUNCHERS, LocalLauncher
from transfer_cli.errors import ConfigError, pip_install
from transfer_cli.runs.sweep import JobState, SweepJob
from transfer_cli.sweeps.jobs import Jobs
from transfer_cli.sweeps.local import Shares
from transfer_cli.sweeps.processes import SideBySide

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cluster:
    """Where submitit runs jobs: slurm or local, with the settings of `hydra.launcher`."""

    kind: str
    settings: Mapping[str, Any]

    def run(self, jobs: Jobs, todo: Sequence[SweepJob], shares: Shares | None) -> None:
        """Hand jobs to submitit, and return when all have ended; there each has its own machine."""
        folder = self.settings["submitit_folder"]
        limit = "max_num_timeout"
        repeats = {f"{self.kind}_{limit}": self.settings[limit]} if limit in self.settings else {}
        shared = LocalLauncher.__dataclass_fields__
        executor = _submitit().AutoExecutor(folder=folder, cluster=self.kind, **repeats)
        executor.update_parameters(**{
            name if name in shared else f"{self.kind}_{name}": value
            for name, value in self.settings.items()
            if name not in ("submitit_folder", limit)
        })  # fmt: skip
        jobs.directory.path.mkdir(parents=True, exist_ok=True)
        jobs_there = replace(jobs, on_cluster=True, done=[], warned={})
        submitted = executor.map_array(JobThere(jobs_there), list(todo))
        log.info("%d jobs are with submitit, whose own words are in %s", len(todo), folder)
        for job, submitted_job in zip(todo, submitted, strict=True):
            if (error := submitted_job.exception()) is not None:
                _write_failure(jobs, job, str(error))


@dataclass
class JobThere:
    """What submitit calls on the machine of a job."""

    jobs: Jobs
    _process: SideBySide | None = field(default=None, repr=False)

    def __call__(self, job: SweepJob) -> None:
        """Run a job and return when it has ended."""
        self._process = SideBySide(
            self.jobs, workers=1, gpus=[], gpus_each=1, threads=None, stop_on_error=False
        )
        self._process.run([job])

    def checkpoint(self, job: SweepJob) -> Any:
        """Save the run of a job whose time is up; submitit begins it again, if it may."""
        if self._process is not None:
            self._process.stop()
        return _submitit().helpers.DelayedSubmission(JobThere(replace(self.jobs, done=[])), job)


def chosen_cluster(name: str, settings: Mapping[str, Any]) -> Cluster | None:
    """Return the cluster of the launcher that is chosen, by name; None for this machine."""
    if name == "basic":  # the launcher that is chosen where none is: that of `sweeps.local`
        return None
    if name not in LAUNCHERS:
        raise ConfigError(f"hydra/launcher={name}: must be one of {', '.join(LAUNCHERS)}")
    _submitit()
    known = LAUNCHERS[name].__dataclass_fields__
    given = {key: settings[key] for key in known if settings.get(key) is not None}
    return Cluster(name.removeprefix("submitit_"), given)


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise ConfigError(
            f"hydra/launcher: jobs on a cluster need submitit: {pip_install('slurm')}"
        ) from error


def _write_failure(jobs: Jobs, job: SweepJob, reason: str) -> None:
    """Write down that a job has failed that could not do so itself."""
    known = jobs.directory.job(job.number) or job
    if known.outcome in (JobState.LEFT, JobState.RUNNING):
        last = (reason.strip().splitlines() or [""])[-1]
        jobs.directory.write_job(replace(known, outcome=JobState.FAILED, reason=last))
