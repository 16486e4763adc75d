"""`resume=RUN` and `resume=auto`: the run's own config, with what was typed checked against it."""

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from transfer_cli.config.check_training import LENGTHS
from transfer_cli.config.dialled import keys_found_by_rule
from transfer_cli.config.flat import flat_items
from transfer_cli.config.literal import path_override
from transfer_cli.config.roles import Role, role_of
from transfer_cli.config.schema import LoopConfig
from transfer_cli.config.stored import read_stored
from transfer_cli.earlier_runs import typed_with_old_defaults
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, FinishedError
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import SweepDirectory

AUTO = "auto"
"""The value of `resume` with which the same command begins a run and resumes it."""

_UNDECIDED = {
    "data.text": None, "data.label": None, "data.header": None, "student.layers": None,
    "loop.compile": AUTO, "tokenizer.size": AUTO,
}  # fmt: skip
"""Keys that are found out where they have this value: a run has what it began with."""


def find_run(resume: str | None, run_dir: str | None) -> RunDirectory | None:
    """Return the run that `resume` names; None where a new one begins."""
    if resume is None:
        return None
    if resume != AUTO:
        path = Path(resume).expanduser()
        if SweepDirectory.is_at(path):
            raise CheckpointError(
                f"resume: {path} is a sweep; type the command that began it again, with run.dir= "
                f"and resume=auto, or name one of its runs, such as {path / '0'}"
            )
        return RunDirectory.open(path, "resume")
    if run_dir is None:
        raise ConfigError(
            "resume: auto goes on with the run in run.dir; add run.dir=FOLDER, the same each time"
        )
    path = Path(run_dir).expanduser()
    return RunDirectory(path) if RunDirectory.holds_run(path) else None


def config_to_resume(
    config: DictConfig, run: RunDirectory, command: str, typed: Sequence[str]
) -> DictConfig:
    """Return the run's own config, with the typed overrides that extend it."""
    if run.read_command() != command:
        raise CheckpointError(
            f"resume: {run.path} is a run of {run.read_command()}: "
            f"type transfer {run.read_command()} {path_override('resume', run.path)}"
        )
    stored = read_stored(run.config, command, "resume")
    overrides = OverridesParser.create().parse_overrides(list(typed))
    for override in overrides:
        key = override.key_or_group
        role = role_of(key)
        if role & (Role.NAMES_RUN | Role.OTHERS):
            continue
        if key == "precision" and override.value() == "auto":
            continue  # what auto came to is what a run goes on with, on any machine
        if Role.EXTENDS in role and not override.is_delete():
            try:
                OmegaConf.update(stored, key, override.value())
            except OmegaConfBaseException as error:
                raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error
        elif config.resume != AUTO:
            _refuse_change(override, run.read_presets().get(key), OmegaConf.select(stored, key))
    if stored.precision == "auto":
        # The run began when the word was stored, which was float32 on every CPU.
        stored.precision = device_and_precision(stored.device, "auto").kind
    if config.resume == AUTO:
        # The same command was typed again, so all of its config can be compared.
        now, then = (
            dict(flat_items(json.loads(json.dumps(OmegaConf.to_container(settings, resolve=True)))))
            for settings in (config, stored)
        )
        typed_keys = {override.key_or_group for override in overrides}
        _refuse_other_command(
            typed_with_old_defaults(now, then, typed_keys),
            then,
            keys_found_by_rule(config, typed_keys),
        )
    return stored


def refuse_finished(loop: LoopConfig, run: RunDirectory, command: str) -> None:
    """End at once where a finished run is resumed and `loop` makes it no longer."""
    before = read_stored(run.config, command, "resume").loop
    same = all(
        getattr(loop, key) == before.get(key) for key in (*LENGTHS, "epochs", "minutes", "patience")
    )
    if same and run.read_status() == "finished":
        raise FinishedError(
            f"resume: {run.path} is finished; to go on, give it more loop.steps, loop.epochs, "
            "loop.tokens, loop.flops or loop.minutes, whichever it has"
        )


def _refuse_change(override: Override, preset: str | None, stored: Any) -> None:
    """Refuse an override of another option or value than the run was begun with."""
    if override.is_delete() or override.is_add():
        raise ConfigError(f"resume: {override.input_line} would change the run; leave it out")
    key, value = override.key_or_group, override.value()
    if preset is not None:
        stored, value = preset, str(value)
    if stored != value:
        raise ConfigError(
            f"resume: {key}={value} contradicts the run's {key}={stored}; leave it out, "
            "or start a new run"
        )


def _refuse_other_command(
    typed: Mapping[str, Any], stored: Mapping[str, Any], by_rule: Set[str] = frozenset()
) -> None:
    """Refuse a command that is not the one that began the run; what rules decided stays."""
    for key in sorted((typed.keys() | stored.keys()) - by_rule):
        free = Role.OTHERS | Role.EXTENDS | Role.NAMES_RUN
        is_found = key in _UNDECIDED and typed.get(key) == _UNDECIDED[key]
        # A rule depends on the model.
        is_found = is_found or (key == "optimizer.lr" and isinstance(typed.get(key), str))
        if not (is_found or role_of(key) & free) and typed.get(key) != stored.get(key):
            raise ConfigError(
                f"resume: {key}={typed.get(key)} contradicts the run's {key}={stored.get(key)}; "
                "type what it was begun with, or choose another run.dir"
            )
