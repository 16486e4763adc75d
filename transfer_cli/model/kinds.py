"""Parts of a model that are chosen by their name."""

from collections.abc import Mapping
from typing import TypeVar

from transfer_cli.errors import nearest

Kind = TypeVar("Kind")


def choose(kinds: Mapping[str, Kind], name: str, option: str) -> Kind:
    """Return the kind of that name.

    Raises:
        ValueError: There is none; names the option and the kinds that there are.
    """
    if name not in kinds:
        known = ", ".join(kinds)
        message = f"{option} must be one of {known}; got {name!r}.{nearest(name, kinds)}"
        raise ValueError(message.rstrip("."))
    return kinds[name]
