"""Chooses classes of modules by name."""

from collections.abc import Mapping
from typing import TypeVar

from transfer_cli.errors import nearest

Kind = TypeVar("Kind")


def choose(kinds: Mapping[str, Kind], name: str, option: str) -> Kind:
    """Return the kind of this name.

    Raises:
        ValueError: The name is unknown; the message lists the option and all names.
    """
    if name not in kinds:
        known = ", ".join(kinds)
        message = f"{option} must be one of {known}; got {name!r}.{nearest(name, kinds)}"
        raise ValueError(message.rstrip("."))
    return kinds[name]
