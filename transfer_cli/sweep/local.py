"""The launcher of jobs on this machine: each in a process of its own, or all in this one."""

import logging
import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from transfer_cli.config.literal import quoted
from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError, at_least, one_of
from transfer_cli.runs.environment import cores
from transfer_cli.runs.sweep import JobState, SweepJob
from transfer_cli.sweep.jobs import ONCE, Jobs
from transfer_cli.sweep.processes import (
    SECONDS_BETWEEN_LOOKS,
    SideBySide,
    processes_of,
    visible_gpus,
)

log = logging.getLogger(__name__)

AUTO = "auto"

_OF_THE_SWEEP = (
    "hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep.",
    "hydra.mode",
)  # fmt: skip


class Local(Launcher):
    """Runs the jobs of a sweep here."""

    jobs: ClassVar[Jobs]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take what Hydra hands to a launcher."""
        self._context = hydra_context
        self._task = task_function
        self._config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a job for each list of overrides, and come back when all have ended."""
        if not job_overrides:
            return []
        setup_globals()
        if not self.jobs.makes_runs:
            numbered = enumerate(job_overrides, start=initial_job_idx)
            self._run_here([SweepJob(number, (), tuple(words)) for number, words in numbered])
            return []
        config = self._composed(job_overrides[0])
        settings = settings_of(config.sweep)
        todo = self.jobs.choose(job_overrides, initial_job_idx)
        stops = settings.on_error == "stop"
        if not settings.isolate:
            self.jobs.chosen = {job.number: job for job in todo}
            self._run_here(todo, stops=stops)
            return []
        SideBySide(
            self.jobs,
            self._words_of,
            workers=min(side_by_side(settings, config), max(1, len(todo))),
            gpus=_gpus(config),
            gpus_each=_processes(config),
            threads=self.jobs.directory.read_request().threads,
            stops=stops,
        ).run(todo)
        return []

    def _composed(self, words: Sequence[str]) -> DictConfig:
        return self._context.config_loader.load_sweep_config(self._config, list(words))

    def _run_here(self, todo: Sequence[SweepJob], *, stops: bool = False) -> None:
        for job in sorted(todo, key=self._is_elsewhere):
            if self._is_elsewhere(job):
                log.info("job %d: waiting for the command or process that works on it", job.number)
            while self._is_elsewhere(job):
                time.sleep(SECONDS_BETWEEN_LOOKS)
            config = self._composed(job.words)
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = job.number
            run_job(
                hydra_context=self._context,
                task_function=self._task,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
            if stops and self.jobs.done[-1].outcome == JobState.FAILED:
                return

    def _is_elsewhere(self, job: SweepJob) -> bool:
        return self.jobs.makes_runs and self.jobs.directory.is_claimed(job.number)

    def _words_of(self, job: SweepJob) -> list[str]:
        typed: Any = self.jobs.request.overrides
        hydras = [
            word
            for word in typed
            if word.lstrip("+~").startswith(("hydra.", "hydra/"))
            and not word.lstrip("+~").startswith(_OF_THE_SWEEP)
        ]
        where = quoted(str(self.jobs.directory.run(job.number)))
        resume = ["resume=auto"] if self.jobs.resumes else []
        resume += [word for word in typed if word.partition("=")[0] in ONCE]
        return [*self.jobs.request.flags, *job.words, *hydras, f"run.dir={where}", *resume]


def settings_of(node: DictConfig) -> SweepConfig:
    """Return the `sweep` node of a config as the class that declares it.

    Raises:
        ConfigError: A value is not allowed; the message names its key.
    """
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
