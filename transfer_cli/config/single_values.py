"""Refuses a list where one value is meant, before Hydra reads it in its own way."""

from collections.abc import Iterable

from transfer_cli.config.describe import declared
from transfer_cli.errors import ConfigError

_ONE_OPTION = {
    "data", "model", "tokenizer", "objective", "optimizer", "schedule", "adaptation",
    "adaptation/plan", "adaptation/layer_scale", "adaptation/penalty",
}  # fmt: skip
"""Groups of which one option is chosen; of two, Hydra would make a mixture."""


def refuse_lists(overrides: Iterable[str], command: str) -> None:
    """Refuse `KEY=[A,B]` for a key that has one value."""
    for word in overrides:
        key, _, value = word.partition("=")
        bare = key.lstrip("+~")
        if value.startswith("[") and value.endswith("]") and takes_one(bare, command):
            inside = value[1:-1]
            cure = f"write {bare}={inside or 'VALUE'}"
            if "," in inside:
                cure = f"for one after the other type -m {bare}={inside}"
            if bare == "devices":
                cure = "write how many, or auto; which ones says CUDA_VISIBLE_DEVICES"
            raise ConfigError(f"{word}: expected one value, not a list; {cure}")


def takes_one(key: str, command: str) -> bool:
    """Return whether a key of a command has one value, as far as its declaration says."""
    found = declared(command).get(key)
    return key in _ONE_OPTION or (found is not None and found.takes_one)
