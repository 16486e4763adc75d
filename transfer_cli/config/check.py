"""What must hold for any composed config, whatever its command."""

import dataclasses
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from transfer_cli.config.schema import COMMANDS
from transfer_cli.errors import ConfigError, at_least, nearest
from transfer_cli.lengths import Length


def check(config: DictConfig, command: str) -> None:
    """Fill in interpolations and refuse keys that do not exist and values that are missing.

    Raises:
        ConfigError: Names the key.
    """
    if OmegaConf.get_type(config) is not COMMANDS[command]:
        raise ConfigError(
            f"this is no config of `{command}`; begin the defaults of your own with `- {command}`"
        )
    _refuse_undeclared(config, "")
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(f"{error.full_key}: cannot be filled in: {problem}") from error
    if missing:
        cure = " ".join(f"{key}=VALUE" for key in missing)
        needs = "needs a value" if len(missing) == 1 else "need values"
        raise ConfigError(f"{', '.join(missing)}: {needs}. Add {cure}")
    _refuse_experiment(config.get("experiment"))
    if "loop" in config:
        check_training(config)


def check_training(config: DictConfig) -> None:
    """Refuse plain values with which no training can work; needs no torch, so it is quick.

    Raises:
        ConfigError: Names the key.
    """
    loop = config.loop
    counts = {
        f"loop.{name}": loop[name]
        for name in ("steps", "batch", "micro_batch", "log_every", "patience", "max_bad_steps")
    }
    counts |= {"plan.steps": config.plan.steps, "forgetting.blocks": config.forgetting.blocks}
    for key, count in counts.items():
        if count is not None:
            at_least(f"{key}:", count, 1, ConfigError)
    for name in ("epochs", "clip"):
        if loop[name] is not None and not loop[name] > 0:
            raise ConfigError(f"loop.{name}: must be above 0, got {loop[name]}")
    if config.checkpoint.minutes is not None and not config.checkpoint.minutes > 0:
        raise ConfigError(f"checkpoint.minutes: must be above 0, got {config.checkpoint.minutes}")
    at_least("checkpoint.keep:", config.checkpoint.keep, 0, ConfigError)
    for key, text in {
        "loop.evaluate_every": loop.evaluate_every,
        "checkpoint.every": config.checkpoint.every,
    }.items():
        try:
            Length.parse_rhythm("1 epoch" if (key, text) == ("checkpoint.every", "auto") else text)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
    if config.get("init", "pretrained") not in ("pretrained", "scratch"):
        raise ConfigError(f"init: must be pretrained or scratch, got {config.init!r}")


def _refuse_experiment(found: Any) -> None:
    """Refuse what is left at `experiment`: a real one changes other keys and leaves none."""
    if isinstance(found, DictConfig):
        raise ConfigError("experiment: its file must begin with the line `# @package _global_`")
    if found is not None:
        raise ConfigError(f"experiment={found}: there is no such experiment")


def _refuse_undeclared(node: DictConfig, key: str) -> None:
    """Refuse keys that `+` added to a node whose keys are declared in `config.schema`."""
    declared = _declared(node)
    for name in map(str, node):
        path = f"{key}.{name}" if key else name
        if declared is not None and name not in declared:
            inside = f" in {key}" if key else ""
            raise ConfigError(f"{path}: no such key{inside}.{nearest(name, declared)}")
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        if isinstance(node[name], DictConfig):
            _refuse_undeclared(node[name], path)


def _declared(node: DictConfig) -> list[str] | None:
    """Return the keys that `node` may have; None when any are allowed."""
    kind = OmegaConf.get_type(node)
    if kind is None or not dataclasses.is_dataclass(kind):
        return None
    return [each.name for each in dataclasses.fields(kind)]
