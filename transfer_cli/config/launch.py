"""Hands a command line to Hydra and the composed config to a command.

Hydra composes, sweeps and prints; it writes no log and no folder for a single run. The run
directory is ours, and so are the error messages (`config.explain`).
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from transfer_cli.config import schema
from transfer_cli.config.explain import explain
from transfer_cli.config.flags import Request
from transfer_cli.config.foreign import check_config_dir
from transfer_cli.config.literal import quoted
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import ConfigError, TransferError

VERSION_BASE = "1.3"
Task = Callable[[DictConfig], None]


def launch(command: str, request: Request, task: Task, sweep_dir: Path | None = None) -> None:
    """Compose what `request` asks for and call `task` with it; in a sweep, once for each job.

    Raises:
        ConfigError: The config cannot be composed.
    """
    settings = _hydra_settings(request, sweep_dir)
    overrides = [f"{key}={value}" for key, value in settings.items()]
    with _hydra_errors(command, request):
        _refuse_half_overrides(request)
        folder, words = request.config_dir, [*overrides, *request.overrides]
        if folder is not None and folder.is_dir():  # else Hydra says that there is none
            schema.register()
            primary = request.config_name or command
            check_config_dir(folder, primary, words, version_base=VERSION_BASE)
        _call_hydra([*request.hydra_flags, *words], command, task)


def launch_once(command: str, request: Request, task: Task) -> None:
    """Compose what `request` asks for and call `task` with it, once; raises what the task raises.

    Raises:
        ConfigError: The config cannot be composed.
    """
    failed: list[Exception] = []

    def attempt(config: DictConfig) -> None:
        try:
            task(config)
        except Exception as error:  # raised when Hydra is done, which would print and explain it
            failed.append(error)

    launch(command, request, attempt)
    if failed:
        raise failed[0]


def compose(command: str, request: Request, *, return_hydra_config: bool = False) -> DictConfig:
    """Return the config of `command` that `request` asks for; raises whatever Hydra raises."""
    schema.register()
    overrides = list(request.overrides)
    if request.config_dir is not None:
        overrides.append(f"hydra.searchpath=[file://{request.config_dir.resolve()}]")
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return hydra.compose(request.config_name or command, overrides, return_hydra_config)


def _call_hydra(arguments: list[str], command: str, task: Task) -> None:
    schema.register()
    main = hydra.main(config_path=str(conf_dir()), config_name=command, version_base=VERSION_BASE)(
        lambda config: task(config)
    )
    with _process_settings(["transfer", *arguments]):
        main()


@contextmanager
def _process_settings(argv: list[str]) -> Iterator[None]:
    """Set what Hydra reads from the process, and restore it, and the root logger with it.

    HYDRA_FULL_ERROR makes Hydra raise its errors instead of printing them and leaving with 1.
    """
    root = logging.getLogger()
    old_handlers, old_level = list(root.handlers), root.level
    old_argv, old_setting = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    known = HydraConfig.instance()
    old_config = known.cfg
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        known.cfg = old_config  # --cfg leaves what it has shown
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
    except TransferError:
        raise  # said already
    except SystemExit as left:
        # Hydra leaves by itself after --hydra-help, and after naming a --package that is not there.
        if left.code:
            raise ConfigError("Hydra could not show that; see its line above") from left
    except Exception as error:
        raise ConfigError(explain(error, command, request)) from error


def _hydra_settings(request: Request, sweep_dir: Path | None) -> dict[str, str]:
    """Return overrides that keep Hydra from writing and logging, unless the user wants it."""
    settings = {
        "hydra.run.dir": ".",
        "hydra.output_subdir": "null",
        "hydra/job_logging": "none",
        "hydra/hydra_logging": "none",
        # Without a root no logging is set up, whatever a config says: handlers can be any code.
        "hydra.job_logging.root": "null",
        "hydra.hydra_logging.root": "null",
        # Jobs make their own directory under the sweep's; Hydra must not make it first.
        "hydra.sweep.subdir": ".",
    }
    if sweep_dir is not None:
        settings["hydra.sweep.dir"] = quoted(str(sweep_dir))
    for name in ("job_logging", "hydra_logging"):
        if request.value_of(f"hydra/{name}") is not None:
            del settings[f"hydra.{name}.root"]
    return {key: value for key, value in settings.items() if request.value_of(key) is None}


def _refuse_half_overrides(request: Request) -> None:
    """Refuse overrides without a key or value: an empty shell variable, mostly."""
    for word in request.overrides:
        key, equals, value = word.partition("=")
        if not key.strip("+~"):
            raise ConfigError(f"{word}: expected KEY=VALUE, with no space around =")
        if equals and not value:
            raise ConfigError(f"{key}: has no value. For none at all write {key}=null")
