"""Nested values by their full keys."""

from collections.abc import Iterator, Mapping
from typing import Any


def flat_items(node: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `loop.batch` and its value for each value that is no mapping; `above` is a prefix."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from flat_items(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
