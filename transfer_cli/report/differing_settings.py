"""In what groups of runs differ, in as few words as will do."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from transfer_cli.config.roles import Role, role_of
from transfer_cli.report.contents import Run
from transfer_cli.safe_files import printable

Settings = Mapping[str, Any]

MOST_WORDS = 8
"""A label of more words says no more than its first ones."""

_MOST_CHARACTERS = 60
_DIGITS = 17


def is_setting(key: str) -> bool:
    """Return whether a key of the config can change what a run learns."""
    return Role.SETTING in role_of(key)


def identity(settings: Settings) -> dict[str, str]:
    """Return what tells a run from others but for its seed, each value as a text to compare."""
    return {
        key: canonical(value)
        for key, value in settings.items()
        if value is not None and is_setting(key)
    }


def canonical(value: Any) -> str:
    """Return a text that is equal for equal values: 1 and 1.0 are."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def varying(groups: Sequence[Sequence[Run]]) -> tuple[str, ...]:
    """Return the fewest keys that say in what groups differ.

    What was typed is among them if it differs at all. Of the rest, which presets brought along,
    only what does not follow from the keys before it.
    """
    values = [identity(runs[0].settings) for runs in groups]
    keys = dict.fromkeys(key for each in values for key in each)
    differing = [key for key in keys if len({each.get(key) for each in values}) > 1]
    typed = {key for runs in groups for run in runs for key in run.typed}
    told: list[tuple[str | None, ...]] = [() for _ in values]
    chosen = []
    for key in sorted(differing, key=lambda key: _rank(key, typed)):
        more = [(*known, each.get(key)) for known, each in zip(told, values, strict=True)]
        if key in typed or len(set(more)) > len(set(told)):
            chosen.append(key)
            told = more
    return tuple(chosen)


def _rank(key: str, typed: Iterable[str]) -> tuple[bool, bool, bool, str]:
    """Return a key's place: what was typed, then presets, whole ones before parts of them."""
    return key not in typed, "." in key, "/" in key or "@" in key, key


def shown_values(key: str, values: Sequence[Any]) -> list[str]:
    """Return how the values of a key are written: as short as leaves different ones different.

    Args:
        key: The key.
        values: One for each group.
    """
    if any(isinstance(value, float) for value in values):
        return _numbers(values)
    is_place = "." in key or key == "init_from"
    if is_place and any(isinstance(value, str) and "/" in value for value in values):
        return _places(values)
    return [printable(plain(value)) for value in values]


def plain(value: Any) -> str:
    """Return a value as it would be typed."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}" if math.isfinite(value) else str(value)
    return json.dumps(value, ensure_ascii=False)


def _numbers(values: Sequence[Any]) -> list[str]:
    distinct = len(set(map(canonical, values)))
    for digits in range(3, _DIGITS):
        texts = [
            f"{value:.{digits}g}" if isinstance(value, float) else printable(plain(value))
            for value in values
        ]
        if len(set(texts)) >= distinct:
            break
    return texts


def _places(values: Sequence[Any]) -> list[str]:
    """Return paths by their last parts."""
    paths = [PurePosixPath(value).parts if isinstance(value, str) else () for value in values]
    distinct = len(set(map(canonical, values)))
    for size in range(1, max(map(len, paths)) + 1):
        texts = [
            "/".join(parts[-size:]).replace("//", "/") if parts else plain(value)
            for parts, value in zip(paths, values, strict=True)
        ]
        if len(set(texts)) >= distinct:
            break
    return [printable(text) for text in texts]


def labels(keys: Sequence[str], groups: Sequence[Settings]) -> list[str]:
    """Return what each group is called, no two alike: `adaptation=lora optimizer.lr=0.001`.

    Args:
        keys: In what they differ.
        groups: Their settings.
    """
    columns = {key: shown_values(key, [each.get(key) for each in groups]) for key in keys}
    found: list[str] = []
    for place, settings in enumerate(groups):
        words = [f"{printable(key)}={_cut(columns[key][place])}" for key in keys if key in settings]
        label = " ".join(words[:MOST_WORDS]) + (" ..." if len(words) > MOST_WORDS else "")
        label = label or "(as it is)"
        found.append(label if label not in found else f"{label} #{place + 1}")
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
