"""`resume=RUN`: the run's own config, with what was typed beside it checked against it."""

from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from transfer_cli.commands import choices, datasets
from transfer_cli.config.schema import COMMANDS
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.runs.directory import RunDirectory

EXTENDS = (
    "loop.steps", "loop.epochs", "loop.evaluate_every", "loop.log_every", "loop.micro_batch",
    "loop.patience", "loop.max_bad_steps", "checkpoint.every", "checkpoint.keep", "device",
    "precision", "data_dir", "base",
)  # fmt: skip
"""Keys that a resumed run may change: they make it longer or watch it otherwise."""


def config_to_resume(config: DictConfig, run: RunDirectory, command: str) -> DictConfig:
    """Return the run's own config, with the typed overrides that extend it.

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
    stored.data_dir = datasets.data_dir_of(stored, config)
    overrides = OverridesParser.create().parse_overrides(choices.typed_overrides())
    for override in overrides:
        key = override.key_or_group
        if key in ("resume", "run.dir", "run.root"):
            continue
        if override.is_delete() or override.is_add():
            raise ConfigError(f"resume: {override.input_line} would change the run; leave it out")
        _apply(stored, override, key, run.read_presets())
    return stored


def _apply(stored: DictConfig, override: Override, key: str, presets: Mapping[str, str]) -> None:
    value = override.value()
    if key in presets:
        if presets[key] != str(value):
            raise ConfigError(
                f"resume: {key}={value} contradicts the run's {key}={presets[key]}; leave it out, "
                "or start a new run"
            )
        return
    if key in EXTENDS:
        try:
            OmegaConf.update(stored, key, value)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error
        return
    own: Any = OmegaConf.select(stored, key)
    if own != value:
        raise ConfigError(
            f"resume: {key}={value} contradicts the run's {key}={own}; leave it out, "
            "or start a new run"
        )


def _read(run: RunDirectory, command: str) -> DictConfig:
    """Return the stored config, its plain values checked against the command's schema."""
    try:
        loaded = OmegaConf.load(run.config)
        merged = OmegaConf.merge(OmegaConf.structured(COMMANDS[command]), loaded)
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"resume: {run.config} is no config of {command}: {reason}"
        ) from error
    if not isinstance(merged, DictConfig):
        raise CheckpointError(f"resume: {run.config} is damaged")
    return merged
