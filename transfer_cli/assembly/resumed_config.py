"""`resume=RUN` and `resume=auto`: the run's own config, with what was typed checked against it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from transfer_cli.config.flat import flat
from transfer_cli.config.roles import Role, role_of
from transfer_cli.config.stored import read_stored
from transfer_cli.errors import CheckpointError, ConfigError, FinishedError
from transfer_cli.runs.directory import RunDirectory

AUTO = "auto"
"""The value of `resume` with which the same command begins a run and goes on with it."""


def find_run(config: DictConfig) -> RunDirectory | None:
    """Return the run that `resume` says to go on with; None where a new one begins.

    Raises:
        ConfigError: `auto`, and nothing says where the run would be.
        CheckpointError: There is no such run.
    """
    if config.resume is None:
        return None
    if config.resume != AUTO:
        return RunDirectory.open(Path(config.resume).expanduser(), "resume")
    if config.run.dir is None:
        raise ConfigError(
            "resume: auto goes on with the run in run.dir; add run.dir=FOLDER, the same each time"
        )
    path = Path(config.run.dir).expanduser()
    return RunDirectory(path) if RunDirectory.holds_run(path) else None


def config_to_resume(
    config: DictConfig, run: RunDirectory, command: str, typed: Sequence[str]
) -> DictConfig:
    """Return the run's own config, with the typed overrides that extend it.

    Args:
        config: The config of the command at work.
        run: The run.
        command: The command.
        typed: The overrides that were typed for it.

    Raises:
        CheckpointError: The run is of another command, or its files are damaged.
        ConfigError: An override contradicts the run; the message names it.
    """
    if run.read_command() != command:
        raise CheckpointError(
            f"resume: {run.path} is a run of {run.read_command()}: "
            f"type transfer {run.read_command()} resume={run.path}"
        )
    stored = _read(run, command)
    overrides = OverridesParser.create().parse_overrides(list(typed))
    for override in overrides:
        role = role_of(override.key_or_group)
        if Role.NAMES_RUN in role:
            continue
        if Role.EXTENDS in role and not override.is_delete():
            _extend(stored, override)
        elif config.resume != AUTO:
            _refuse_contradiction(stored, override, run.read_presets())
    if config.resume == AUTO:
        # The whole command was typed again, so that all of it can be compared.
        _refuse_another(_values(config), _values(stored))
    return stored


def refuse_finished(config: DictConfig, run: RunDirectory, command: str) -> None:
    """End at once where a finished run is asked to go on and is not made longer.

    Args:
        config: What `config_to_resume` returned.
        run: The run.
        command: Its command.

    Raises:
        FinishedError: There is nothing to do.
    """
    before = _read(run, command)
    same = all(config.loop[key] == before.loop[key] for key in ("steps", "epochs", "patience"))
    if same and run.read_status() == "finished":
        raise FinishedError(
            f"resume: {run.path} is finished; to go on, give it more loop.steps or loop.epochs"
        )


def _extend(stored: DictConfig, override: Override) -> None:
    try:
        OmegaConf.update(stored, override.key_or_group, override.value())
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.key_or_group}: {str(error).splitlines()[0]}") from error


def _refuse_contradiction(
    stored: DictConfig, override: Override, presets: Mapping[str, str]
) -> None:
    """Refuse an override that is not what the run was begun with."""
    if override.is_delete() or override.is_add():
        raise ConfigError(f"resume: {override.input_line} would change the run; leave it out")
    key, value = override.key_or_group, override.value()
    own: Any = presets[key] if key in presets else OmegaConf.select(stored, key)
    if own != (str(value) if key in presets else value):
        raise ConfigError(
            f"resume: {key}={value} contradicts the run's {key}={own}; leave it out, "
            "or start a new run"
        )


def _refuse_another(typed: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a command that is not the one that began the run."""
    for key in sorted(typed.keys() | own.keys()):
        free = Role.OTHERS | Role.EXTENDS | Role.NAMES_RUN
        if not role_of(key) & free and typed.get(key) != own.get(key):
            raise ConfigError(
                f"resume: {key}={typed.get(key)} contradicts the run's {key}={own.get(key)}; "
                "type what it was begun with, or choose another run.dir"
            )


def _values(config: DictConfig) -> dict[str, Any]:
    """Return the plain values of a config by their full keys, as they would be stored."""
    return dict(flat(json.loads(json.dumps(OmegaConf.to_container(config, resolve=True)))))


def _read(run: RunDirectory, command: str) -> DictConfig:
    """Return the stored config, its plain values checked against the command's schema."""
    return read_stored(run.config, command, "resume")
