"""Runs the jobs of a sweep on this machine: each in a process of its own, or all in this one."""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.runs.environment import available_cores, num_processes, visible_gpus
from transfer_cli.runs.sweep import JobState, SweepJob
from transfer_cli.sweeps.jobs import Jobs
from transfer_cli.sweeps.processes import SECONDS_BETWEEN_LOOKS, SideBySide

log = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True)
class Shares:
    """How the jobs of a sweep share this machine, and its GPUs if they are not on the CPU."""

    settings: SweepConfig
    processes: int
    gpus: Sequence[str]

    @property
    def workers(self) -> int:
        """How many jobs run at once."""
        if not self.settings.isolate:
            return 1
        if self.settings.workers != AUTO:
            return int(self.settings.workers)
        return max(1, len(self.gpus) // self.processes)

    @property
    def threads(self) -> int:
        """How many threads each process of each job has on the CPU.

        The last job has no more than the others, though nothing runs beside it: sums are made in
        another order with another number of threads.
        """
        typed = os.environ.get("OMP_NUM_THREADS")
        if typed is not None:
            first, _, _ = typed.partition(",")
            return int(first)
        return max(1, available_cores() // (self.workers * self.processes))


def shares_of(sweep: Any, devices: int | str, device: str) -> Shares:
    """Return how the jobs of a sweep share this machine, by the keys of one of them."""
    return Shares(
        settings_of(sweep),
        max(1, num_processes(devices, device)),
        [] if device == "cpu" else visible_gpus(),
    )


def run_here(jobs: Jobs, todo: Sequence[SweepJob], shares: Shares | None) -> None:
    """Run jobs here, and return when all have ended; without shares one by one, in this process."""
    stop_on_error = shares is not None and shares.settings.on_error == "stop"
    if shares is None or not shares.settings.isolate:
        _run_serially(jobs, todo, stop_on_error=stop_on_error)
        return
    SideBySide(
        jobs,
        workers=min(shares.workers, max(1, len(todo))),
        gpus=shares.gpus,
        gpus_each=shares.processes,
        threads=jobs.directory.read_request().threads,
        stop_on_error=stop_on_error,
    ).run(todo)


def _run_serially(jobs: Jobs, todo: Sequence[SweepJob], *, stop_on_error: bool) -> None:
    def is_elsewhere(job: SweepJob) -> bool:
        return jobs.makes_runs and jobs.directory.is_claimed(job.number)

    for job in sorted(todo, key=is_elsewhere):
        if is_elsewhere(job):
            log.info("job %d: waiting for the command or process that works on it", job.number)
        while is_elsewhere(job):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        jobs.run(job)
        if stop_on_error and any(job.outcome == JobState.FAILED for job in jobs.done):
            return


def settings_of(node: Any) -> SweepConfig:
    """Return the checked `sweep` node of a config as the class that declares it."""
    at_least("sweep.trials:", node.trials, 1, ConfigError)
    if node.workers != AUTO and (not str(node.workers).isdecimal() or int(node.workers) < 1):
        raise ConfigError(
            f"sweep.workers: must be auto or a whole number from 1, got {node.workers!r}"
        )
    if not node.isolate and node.workers not in (AUTO, "1"):
        raise ConfigError(
            "sweep.isolate: one process has one job at a time; leave sweep.workers out, or "
            "sweep.isolate"
        )
    plain: Any = OmegaConf.to_object(node)
    settings: SweepConfig = plain
    return settings
