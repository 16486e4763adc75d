"""Presets of one's own below `--config-dir`, which may be plain: keys, and options by name."""

import re
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.plain import ChosenOptions, PlainKeys

_SCHEME = "own"
_WHOLE = "experiment"
"""The group whose keys are those of a whole config."""

_ADAPTATION_KEYS = (
    "edits", "plan", "layer_scale", "penalty", "frozen_eval", "schedule_per", "store",
)  # fmt: skip
"""Keys of a scheme that stand below `adaptation`; others, such as `losses`, stand beside it."""


def search_path(folder: Path) -> str:
    """Return a folder as Hydra's search path has it, so that its files are read by this module."""
    SourcesRegistry.instance().register(OwnFolder)
    return f"{_SCHEME}://{folder.resolve()}"


class OwnFolder(FileConfigSource):
    """A folder of configs, in which schemes and experiments may be plain."""

    @staticmethod
    def scheme() -> str:
        """See `ConfigSource`."""
        return _SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a config; what is plain gets the list of defaults and the package it means."""
        result = super().load_config(config_path)
        group = config_path.partition("/")[0] if "/" in config_path else ""
        if group not in ("adaptation", _WHOLE) or not isinstance(result.config, DictConfig):
            return result
        values: Any = OmegaConf.to_container(result.config)
        if "defaults" in values:
            values["defaults"] = [_relative(entry, group) for entry in values["defaults"] or ()]
            result.config = OmegaConf.create(values)
        elif "_target_" not in values and not result.header.get("package"):
            keys = PlainKeys("finetune", Path(self.path))
            result.config = OmegaConf.create(_hydra_preset(keys, values, group))
            result.header = {"package": "_global_"}
        return result


def _relative(entry: Any, group: str) -> Any:
    """Return an entry of defaults, in which `override /adaptation/edits` means our own edits."""
    if not isinstance(entry, dict):
        return entry
    return {re.sub(rf"^override /{group}/(\w+)$", r"override \1", k): v for k, v in entry.items()}


def _hydra_preset(keys: PlainKeys, values: dict[str, Any], group: str) -> dict[str, Any]:
    """Return a plain preset as Hydra composes it."""
    if group != _WHOLE:
        inside = {name: values.pop(name) for name in _ADAPTATION_KEYS if name in values}
        values = {group: inside, **values}
    added: list[Any] = [] if group == _WHOLE else [f"full@{group}"]
    overrides: list[Any] = []  # come last
    config = OmegaConf.create()
    for part in keys.parts(values):
        if isinstance(part, ChosenOptions):
            is_new = part.typed.startswith(("objective@", "data@streams"))
            place = f"@{part.place}" if "/" in part.group else part.typed.removeprefix(part.group)
            entry = f"{'' if is_new else 'override '}/{part.group}{place}"
            many = part.group == "adaptation/edits"
            names = [name for name in part.names if name != "null"]
            chosen = {entry: names if many else next(iter(names), None)}
            (added if is_new else overrides).append(chosen)
        else:
            OmegaConf.update(config, part[0], part[1], force_add=True)
    whole: Any = OmegaConf.to_container(config)
    return {"defaults": [*added, *overrides, "_self_"], **whole}
