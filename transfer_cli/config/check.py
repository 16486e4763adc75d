"""Checks what must hold for any composed config."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from transfer_cli.config import commands
from transfer_cli.config.budgets import check_budget
from transfer_cli.config.check_beams import check_beams
from transfer_cli.config.check_training import check_training
from transfer_cli.config.commands import CHOICES, DECLARED_KEYS
from transfer_cli.config.flat import flat_items
from transfer_cli.config.part_values import check_values
from transfer_cli.config.schema import COMMANDS
from transfer_cli.earlier_runs import with_new_names
from transfer_cli.errors import (
    ConfigError,
    above_zero,
    at_least,
    between,
    count_or_auto,
    did_you_mean,
    one_of,
)

MAX_NUMBER = 2**62
"""Bound of all numbers in a config: torch and numpy compute with 64 bits."""

_MINUTES_OF_A_YEAR = 365 * 24 * 60


def check_config(config: DictConfig, command: str) -> None:
    """Resolve interpolations, refuse what cannot be, and freeze the config: it is composed.

    Keys that do not exist are refused, and values that are missing. What is decided later goes into
    a copy (`config.decided.with_values`).
    """
    if OmegaConf.get_type(config) is not COMMANDS[command]:
        raise ConfigError(
            f"this is no config of `{command}`; begin the defaults of your own with `- {command}`"
        )
    _rename_moved(config)
    _refuse_undeclared(config, "")
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        OmegaConf.resolve(config)
    except InterpolationToMissingValueError:
        plain: Any = OmegaConf.to_container(config, resolve=False)
        missing = sorted(key for key, value in flat_items(plain) if str(value) == "???")
    except OmegaConfBaseException as error:
        raise ConfigError(_resolution_problem(error)) from error
    if missing:
        places = dict(commands.ALL[command].positionals)
        cure = " ".join(f"{key}=VALUE" for key in missing)
        if set(missing) <= set(places):
            cure = f"{cure}, or type transfer {command} {' '.join(places.values())}"
        needs = "needs a value" if len(missing) == 1 else "need values"
        raise ConfigError(f"{', '.join(missing)}: {needs}. Add {cure}")
    values: Any = OmegaConf.to_container(config)
    _check_numbers(values)
    _check_processes(values)
    check_values(values)
    _check_generation(values)
    _check_choices(config, command)
    # A real experiment changes other keys and leaves nothing here.
    experiment = config.get("experiment")
    if isinstance(experiment, DictConfig):
        raise ConfigError("experiment: its file must begin with the line `# @package _global_`")
    if experiment is not None:
        raise ConfigError(f"experiment={experiment}: there is no such experiment")
    if "loop" in config:
        check_training(config)
        check_budget(config)
    OmegaConf.set_readonly(config, True)  # noqa: FBT003 - takes no keyword


def _resolution_problem(error: OmegaConfBaseException) -> str:
    """Return why a value could not be computed: the words of a rule that refused, if one did."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConfigError):
        cause = cause.__cause__ or cause.__context__
    problem = str(error).partition("\n")[0]
    return str(cause) if cause else f"{error.full_key}: cannot be filled in: {problem}"


def _rename_moved(config: DictConfig) -> None:
    """Give classes that an own file names as earlier versions called them their names of today."""
    written: Any = OmegaConf.to_container(config, resolve=False)
    before = dict(flat_items(written))
    for key, value in flat_items(with_new_names(written)):
        if before.get(key) != value:
            OmegaConf.update(config, key, value, force_add=True)


def _check_numbers(node: Any) -> None:
    for key, values in flat_items(node):
        for value in values if isinstance(values, list) else [values]:
            most = math.inf if key == "loop.flops" else MAX_NUMBER  # no tensor holds these
            if isinstance(value, int | float) and not -most < value < most:
                raise ConfigError(f"{key}: must be a number below {most:.0e}, got {value}")


def _check_processes(values: Mapping[str, Any]) -> None:
    """Refuse what is typed of several processes and cannot be."""
    if "timeout_minutes" in values:
        above_zero("timeout_minutes:", values["timeout_minutes"], ConfigError)
        between("timeout_minutes:", values["timeout_minutes"], 0, _MINUTES_OF_A_YEAR, ConfigError)
    restarts = values.get("restarts", 0)
    at_least("restarts:", restarts, 0, ConfigError)
    if restarts and values["resume"] != "auto":
        raise ConfigError(
            "restarts: a run that starts again has to go on where it was; give resume=auto and "
            "run.dir=..., or leave restarts out"
        )
    count_or_auto("devices", values.get("devices", 1))


def _check_generation(values: Mapping[str, Any]) -> None:
    """Refuse what is typed of texts that a model writes and cannot be."""
    for key, node in (("", values), ("objective", values.get("objective"))):
        if isinstance(node, Mapping) and "beams" in node:
            check_beams(node, key)
    most = (values.get("evaluation") or {}).get("generate")
    if most is not None:
        at_least("evaluation.generate:", most, 1, ConfigError)


def _check_choices(config: DictConfig, command: str) -> None:
    """Refuse plain values that are none of the words that their key takes."""
    if OmegaConf.select(config, "cost.energy") == "False":  # an `off` without quotes, to YAML
        config.cost.energy = "off"
    for place, words in CHOICES.items():
        *scope, typed_key = place.split()
        section, _, name = DECLARED_KEYS.get(typed_key, typed_key).rpartition(".")
        node = OmegaConf.select(config, section) if section else config
        is_plain = node is not None and dataclasses.is_dataclass(OmegaConf.get_type(node))
        value = node.get(name) if is_plain and scope in ([], [command]) else None
        if value is None or "..." in words:
            continue
        if value in ("true", "on", "false", "off") and "false" in words.split():
            node[name] = value = value in ("true", "on")
        for word in value if isinstance(value, ListConfig) else [value]:
            one_of(typed_key, str(word).lower() if word in (True, False) else word, words.split())


def _refuse_undeclared(node: DictConfig, key: str) -> None:
    """Refuse keys that `+` added to a node whose keys are declared in `config.schema`."""
    kind = OmegaConf.get_type(node)
    declared = None
    if dataclasses.is_dataclass(kind):
        declared = [field.name for field in dataclasses.fields(kind)]
    for name in map(str, node):
        path = f"{key}.{name}" if key else name
        if declared is not None and name not in declared:
            inside = f" in {key}" if key else ""
            raise ConfigError(f"{path}: no such key{inside}.{did_you_mean(name, declared)}")
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        if isinstance(node[name], DictConfig):
            _refuse_undeclared(node[name], path)
