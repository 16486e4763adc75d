"""The hyper-parameters of a run: what TensorBoard lists beside its final measures."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.flat import flat
from transfer_cli.config.roles import Role, role_of

MOST_CHARACTERS = 100
"""Of a text: a table's cell shows no more."""

_PATHS = frozenset({"train", "validation", "test", "path"})
"""What options of data and tokenizers are called that name files."""


def hyperparameters(config: DictConfig, presets: Mapping[str, str]) -> dict[str, str | float]:
    """Return the plain values of a config by their keys, and the preset chosen of each group.

    Lists and paths are left out, and so is what only names the run or says where it works.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True)
    found = {key: _shown(value) for key, value in flat(plain) if _is_listed(key, value)}
    return found | {group: _shown(option) for group, option in presets.items()}


def _is_listed(key: str, value: Any) -> bool:
    name = key.rpartition(".")[2]
    is_path = isinstance(value, str) and (name in _PATHS or "/" in value)
    is_plain = not isinstance(value, list) and name != "_target_"
    return is_plain and not is_path and Role.HYPERPARAMETER in role_of(key)


def _shown(value: Any) -> str | float:
    """Return a value as the table can hold it: TensorBoard's writer makes numbers of truth."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int | float) else str(value)[:MOST_CHARACTERS]
