"""The families that are read and written: ours, and those that a plugin adds."""

from typing import TypeVar

from transfer_cli.errors import ConfigError
from transfer_cli.interop.bert import Bert, Electra, Roberta
from transfer_cli.interop.distilbert import DistilBert
from transfer_cli.interop.family import Family
from transfer_cli.interop.gpt2 import Gpt2

_families: dict[str, Family] = {
    family.model_type: family for family in (Roberta(), Bert(), DistilBert(), Electra(), Gpt2())
}
"""An export takes the first that fits; so whoever asks for more comes first."""

_Kind = TypeVar("_Kind", bound=type[Family])


def families() -> dict[str, Family]:
    """Return all families by their `model_type`, in the order in which an export tries them."""
    return dict(_families)


def register_family(kind: _Kind) -> _Kind:
    """Add a family after those that are there; a decorator for classes of a plugin.

    Raises:
        ConfigError: Another family has its `model_type`.
    """
    there = _families.get(kind.model_type)
    if there is not None and _path(type(there)) != _path(kind):
        raise ConfigError(
            f"{_path(kind)}: model_type {kind.model_type!r} is that of {_path(type(there))}; "
            "a family needs one of its own"
        )
    _families[kind.model_type] = kind()
    return kind


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
