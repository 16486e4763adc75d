"""The hyper-parameters of a run: what TensorBoard lists beside its final measures."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

MOST_CHARACTERS = 100
"""Of a text: a table's cell shows no more."""

_ASIDE = frozenset({
    "base", "checkpoint", "data_dir", "device", "devices", "experiment", "forgetting", "init_from",
    "lr_find", "parallel", "plan", "restarts", "resume", "run", "source", "sweep",
    "timeout_minutes",
})  # fmt: skip
"""Keys that name a run, move it or watch it: they change nothing of what it learns."""

_PATHS = frozenset({"train", "validation", "test", "path"})
"""What options of data and tokenizers are called that name files."""


def hyperparameters(config: DictConfig, presets: Mapping[str, str]) -> dict[str, str | float]:
    """Return the plain values of a config by their keys, and the preset chosen of each group.

    Lists and paths are left out, and so is what only names the run or says where it works.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True)
    kept = {key: value for key, value in plain.items() if key not in _ASIDE}
    found = {key: _shown(value) for key, value in _flat(kept, "") if not _is_path(key, value)}
    return found | {group: _shown(option) for group, option in presets.items()}


def _flat(node: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif name != "_target_" and not isinstance(value, list):
            yield f"{above}{name}", value


def _is_path(key: str, value: Any) -> bool:
    named = isinstance(value, str) and key.rpartition(".")[2] in _PATHS
    return named or (isinstance(value, str) and "/" in value)


def _shown(value: Any) -> str | float:
    """Return a value as the table can hold it: TensorBoard's writer makes numbers of truth."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int | float) else str(value)[:MOST_CHARACTERS]
