"""Values from files that anybody may have written: each may be of any kind."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def nested(value: Any, *keys: str) -> Any:
    """Return the value below some keys of nested mappings; None where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def nested_mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping below some keys; an empty one where there is none."""
    below = nested(value, *keys)
    return below if isinstance(below, dict) else {}


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def text_or_none(value: Any) -> str | None:
    """Return a value as text; None where there is none."""
    return None if value is None else str(value)


def error_reason(error: Exception) -> str:
    """Return why a file cannot be read, without its name."""
    return getattr(error, "strerror", None) or str(error)
