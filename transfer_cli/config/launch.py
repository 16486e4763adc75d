"""Hands a command line to Hydra and the composed config to a command.

Hydra composes, sweeps and prints; it writes no log and no folder for a single run. The run
directory is ours, and so are the error messages (`config.explain`).
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from transfer_cli.config import schema
from transfer_cli.config.check import check
from transfer_cli.config.explain import explain
from transfer_cli.config.flags import Request
from transfer_cli.config.foreign import check_config_dir, check_environment
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import (
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    ConfigError,
    SweepError,
    TransferError,
)

VERSION_BASE = "1.3"
_WORD_OF_A_JOB = "job-*.json"

ENDS_SWEEP = (EXIT_STOPPED, EXIT_INTERRUPTED)
"""Exit codes of a job after which no other job of its sweep is begun: somebody wants an end."""

Task = Callable[[DictConfig], None]


@dataclass
class Job:
    """One run of a command: the only one, or one of a sweep.

    Args:
        number: Its place in the sweep, from 0.
        overrides: What tells it from the others.
        error: Why it failed; none when it did not.
    """

    number: int
    overrides: tuple[str, ...]
    error: Exception | None = None


@dataclass
class Jobs:
    """Runs jobs one after the other and remembers what became of each.

    A launcher such as Hydra's for Slurm carries a copy of this to a process of each job. A copy
    writes down what became of its job, for the original to read.

    Args:
        command: The command that every job runs.
        task: Its function.
        multirun: Whether this is a sweep, in which a failed job does not stop the others.
        announce: Called before a job of a sweep starts.
        report: Called as soon as a job of a sweep has failed; returns the reason in one line.
    """

    command: str
    task: Task
    multirun: bool
    announce: Callable[[Job], None]
    report: Callable[[Job], str]
    sweep_dir: Path | None = None
    done: list[Job] = field(default_factory=list)
    stopped: TransferError | None = None
    is_copy: bool = False

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, is_copy=True)

    def run(self, config: DictConfig) -> None:
        """Run one job. Hydra calls this once for each composed config."""
        if self.stopped is not None:
            return
        settings = HydraConfig.get()
        number = int(settings.job.num) if self.multirun else 0
        # As typed: a `${...}` among them belongs to the config, not to this list.
        typed: Any = OmegaConf.to_container(settings.overrides.task, resolve=False)
        job = Job(number, tuple(typed))
        self.done.append(job)
        if self.multirun:
            self.sweep_dir = Path(settings.sweep.dir)
            self.announce(job)
            _give_directory(config, self.sweep_dir / str(number))
        reason = None
        try:
            check_environment(settings)
            check(config, self.command)
            self.task(config)
        except Exception as error:
            job.error = error
            if isinstance(error, TransferError) and error.exit_code in ENDS_SWEEP:
                self.stopped = error
                reason = str(error)
            elif self.multirun:
                reason = self.report(job)
        if self.is_copy and self.sweep_dir is not None:
            content = {"number": number, "overrides": job.overrides, "reason": reason}
            (self.sweep_dir / f"job-{number}.json").write_text(json.dumps(content) + "\n")

    def read_copies(self, sweep_dir: Path) -> None:
        """Learn from their files what became of jobs that ran in other processes.

        Raises:
            SweepError: There is no such file.
        """
        self.sweep_dir = sweep_dir
        found = [json.loads(file.read_text()) for file in sweep_dir.glob(_WORD_OF_A_JOB)]
        if not found:
            raise SweepError(f"no job has left word in {sweep_dir}; see what its launcher wrote")
        for each in sorted(found, key=lambda each: int(each["number"])):
            error = SweepError(each["reason"]) if each["reason"] else None
            self.done.append(Job(each["number"], tuple(each["overrides"]), error))


def launch(request: Request, jobs: Jobs) -> None:
    """Compose what `request` asks for and run `jobs` with it.

    Raises:
        ConfigError: The config cannot be composed.
    """
    settings = _hydra_settings(jobs.command, request)
    overrides = [f"{key}={value}" for key, value in settings.items()]
    with _hydra_errors(jobs.command, request):
        _refuse_half_overrides(request)
        _check_config_dir(request, jobs.command, [*overrides, *request.overrides])
        words = [*request.hydra_flags, *overrides, *request.overrides]
        swept = request.multirun and not request.looks_only
        folder = request.value_of("hydra.sweep.dir") or settings["hydra.sweep.dir"]
        typed = OverridesParser.create().parse_override(f"hydra.sweep.dir={folder}")
        sweep_dir = Path(str(typed.value()))
        for earlier in sweep_dir.glob(_WORD_OF_A_JOB) if swept else ():
            earlier.unlink()
        _call_hydra(words, jobs.command, jobs.run)
    if swept and not jobs.done:
        jobs.read_copies(sweep_dir)


def complete(line: str, command: str, shell: str) -> None:
    """Print the completions of `line`, a command line without the name of the command."""
    os.environ["COMP_LINE"] = line
    _call_hydra(["--shell-completion", f"query={shell}"], command, _do_nothing)


def print_completion_script(shell: str) -> None:
    """Print what a shell has to evaluate to complete `transfer`."""
    _call_hydra(["--shell-completion", f"install={shell}"], "pretrain", _do_nothing)


def compose(command: str, request: Request) -> DictConfig:
    """Return the config of `command` that `request` asks for, to look at.

    Raises:
        Exception: Whatever Hydra raises when it does not compose.
    """
    schema.register()
    searched = []
    if request.config_dir is not None:
        searched = [f"hydra.searchpath=[file://{request.config_dir.resolve()}]"]
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        overrides = [*request.overrides, *searched]
        return hydra.compose(request.config_name or command, overrides=overrides)


def _call_hydra(arguments: list[str], command: str, task: Task) -> None:
    schema.register()
    main = hydra.main(config_path=str(conf_dir()), config_name=command, version_base=VERSION_BASE)(
        lambda config: task(config)
    )
    with _process_settings(["transfer", *arguments]):
        main()


@contextmanager
def _process_settings(argv: list[str]) -> Iterator[None]:
    """Set what Hydra reads from the process, and put it back, and the root logger with it.

    HYDRA_FULL_ERROR makes Hydra raise its errors instead of printing them and leaving with 1.
    """
    root = logging.getLogger()
    old_handlers, old_level = list(root.handlers), root.level
    old_argv, old_setting = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = old_argv
        if old_setting is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = old_setting
        root.handlers[:] = old_handlers
        root.setLevel(old_level)


@contextmanager
def _hydra_errors(command: str, request: Request) -> Iterator[None]:
    """Turn whatever goes wrong while composing into one line."""
    try:
        yield
    except ConfigError:
        raise
    except SystemExit as left:
        # Hydra leaves by itself after --hydra-help, and after naming a --package that is not there.
        if left.code:
            raise ConfigError("Hydra could not show that; see its line above") from left
    except Exception as error:
        raise ConfigError(explain(error, command, request, partial(compose, command))) from error


def _hydra_settings(command: str, request: Request) -> dict[str, str]:
    """Return overrides that keep Hydra from writing and logging, unless the user wants it."""
    folder = request.value_of("run.dir") if request.multirun else None
    root = request.value_of("run.root") or "runs"
    now = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    settings = {
        "hydra.run.dir": ".",
        "hydra.output_subdir": "null",
        "hydra/job_logging": "none",
        "hydra/hydra_logging": "none",
        # Without a root no logging is set up, whatever a config says: handlers can be any code.
        "hydra.job_logging.root": "null",
        "hydra.hydra_logging.root": "null",
        "hydra.sweep.dir": folder or _below(root, f"sweeps/{command}/{now}"),
        # Jobs make their own directory under the sweep's; Hydra must not make it first.
        "hydra.sweep.subdir": ".",
    }
    for name in ("job_logging", "hydra_logging"):
        if request.value_of(f"hydra/{name}") is not None:
            del settings[f"hydra.{name}.root"]
    return {key: value for key, value in settings.items() if request.value_of(key) is None}


def _below(folder: str, path: str) -> str:
    """Return a path in a folder that may have been typed in quotes."""
    quote = folder[-1] if folder[0] in "'\"" and folder[-1] == folder[0] else ""
    return f"{folder.removesuffix(quote)}/{path}{quote}"


def _check_config_dir(request: Request, command: str, overrides: list[str]) -> None:
    folder = request.config_dir
    if folder is not None and folder.is_dir():  # else Hydra says that it is not there
        schema.register()
        name = request.config_name or command
        check_config_dir(folder, name, overrides, version_base=VERSION_BASE)


def _refuse_half_overrides(request: Request) -> None:
    """Refuse overrides without a key or value: an empty shell variable, mostly."""
    for word in request.overrides:
        key, equals, value = word.partition("=")
        if not key.strip("+~"):
            raise ConfigError(f"{word}: expected KEY=VALUE")
        if equals and not value:
            raise ConfigError(f"{key}: has no value. For none at all write {key}=null")


def _give_directory(config: DictConfig, directory: Path) -> None:
    """Make `directory` the run directory, where the command makes one."""
    if OmegaConf.is_dict(config.get("run")):
        config.run.dir = str(directory)


def _do_nothing(config: DictConfig) -> None:
    """Stand in for a command where Hydra only prints."""
