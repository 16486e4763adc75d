"""Runs the jobs of a sweep on this machine: each in a process of its own, or all in this one."""

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError, at_least, one_of
from transfer_cli.runs.environment import cores, processes_of, visible_gpus
from transfer_cli.runs.sweep import JobState, SweepJob
from transfer_cli.sweep.jobs import Jobs
from transfer_cli.sweep.processes import (
    SECONDS_BETWEEN_LOOKS,
    SideBySide,
)

log = logging.getLogger(__name__)

AUTO = "auto"


def run_here(jobs: Jobs, todo: Sequence[SweepJob], config: DictConfig) -> None:
    """Run jobs on this machine, and return when all have ended.

    Args:
        jobs: The sweep.
        todo: The jobs.
        config: That of one of them, which says how all are run.
    """
    if not jobs.makes_runs:
        _run_in_this_process(jobs, todo)
        return
    settings = settings_of(config.sweep)
    stops = settings.on_error == "stop"
    if not settings.isolate:
        _run_in_this_process(jobs, todo, stops=stops)
        return
    SideBySide(
        jobs,
        workers=min(side_by_side(settings, config), max(1, len(todo))),
        gpus=_gpus(config),
        gpus_each=_processes(config),
        threads=jobs.directory.read_request().threads,
        stops=stops,
    ).run(todo)


def _run_in_this_process(jobs: Jobs, todo: Sequence[SweepJob], *, stops: bool = False) -> None:
    def is_elsewhere(job: SweepJob) -> bool:
        return jobs.makes_runs and jobs.directory.is_claimed(job.number)

    for job in sorted(todo, key=is_elsewhere):
        if is_elsewhere(job):
            log.info("job %d: waiting for the command or process that works on it", job.number)
        while is_elsewhere(job):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        jobs.run(job)
        if stops and jobs.done[-1].outcome == JobState.FAILED:
            return


def settings_of(node: DictConfig) -> SweepConfig:
    """Return the `sweep` node of a config as the class that declares it."""
    one_of("sweep.on_error", node.on_error, ("continue", "stop"))
    one_of("sweep.direction", node.direction, (AUTO, "minimize", "maximize"))
    one_of("sweep.sampler", node.sampler, ("tpe", "random"))
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
    found: Any = OmegaConf.to_object(node)
    settings: SweepConfig = found
    return settings


def side_by_side(settings: SweepConfig, config: DictConfig) -> int:
    """Return how many jobs of a sweep run at once on this machine."""
    if not settings.isolate:
        return 1
    if settings.workers != AUTO:
        return int(settings.workers)
    return max(1, len(_gpus(config)) // _processes(config))


def threads_each(settings: SweepConfig, config: DictConfig) -> int:
    """Return how many threads each process of each job of a sweep has on the CPU.

    The last job has no more than the others, though nothing runs beside it: sums are made in
    another order with another number of threads.
    """
    typed = os.environ.get("OMP_NUM_THREADS")
    if typed is not None:
        first, _, _ = typed.partition(",")
        return int(first)
    return max(1, cores() // (side_by_side(settings, config) * _processes(config)))


def _processes(config: DictConfig) -> int:
    return max(1, processes_of(config.devices, config.device))


def _gpus(config: DictConfig) -> list[str]:
    return [] if config.device == "cpu" else visible_gpus()
