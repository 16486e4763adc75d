"""In what groups of runs differ, in as few words as will do."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from transfer_cli.config.roles import Role, role_of
from transfer_cli.report.contents import Run
from transfer_cli.report.formats import ALL_DIGITS, plain
from transfer_cli.safe_files import printable

Settings = Mapping[str, Any]

_ALWAYS_TOLD = frozenset({"init_from", "optimizer.lr"})
"""Keys that are told though a preset explains them: each scheme brings its own rate, and some begin
with a model of another kind."""

MOST_WORDS = 8
"""A label of more words says no more than its first ones."""

_MOST_CHARACTERS = 60


def is_setting(key: str) -> bool:
    """Return whether a key of the config can change what a run learns."""
    return Role.SETTING in role_of(key)


def names_teachers(key: str) -> bool:
    """Return whether a key names runs that a run learns from, such as `losses.rest.teachers`."""
    return key.rpartition(".")[2] == "teachers"


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

    What was typed is among them if it differs at all, and so is the learning rate. Of the rest,
    which presets brought along, only what does not follow from the keys before it.
    """
    values = [identity(runs[0].settings) for runs in groups]
    keys = dict.fromkeys(key for each in values for key in each)
    differing = [key for key in keys if len({each.get(key) for each in values}) > 1]
    typed = {key for runs in groups for run in runs for key in run.typed}
    # Each seed may have teachers of its own.
    told = {key for key in typed if not names_teachers(key)} | _ALWAYS_TOLD
    # What was typed, then presets, each before its parts.
    differing.sort(key=lambda key: (key not in typed, "." in key, "/" in key or "@" in key, key))
    known: list[tuple[str | None, ...]] = [()] * len(values)
    chosen = []
    for key in differing:
        more = [(*found, each.get(key)) for found, each in zip(known, values, strict=True)]
        if key in told or len(set(more)) > len(set(known)):
            chosen.append(key)
            known = more
    return tuple(chosen)


def shown_values(key: str, values: Sequence[Any]) -> list[str]:
    """Return how groups' values of a key are written: different ones differ, in few characters."""
    ways = [[plain(value) for value in values]]
    is_place = "." in key or key == "init_from"
    if any(isinstance(value, float) for value in values):
        ways = [[plain(value, digits) for value in values] for digits in range(3, ALL_DIGITS)]
    elif is_place and any(isinstance(value, str) and "/" in value for value in values):
        parts = [PurePosixPath(value).parts if isinstance(value, str) else () for value in values]
        sizes = range(1, max(map(len, parts)) + 1)
        ways = [["/".join(each[-size:]).replace("//", "/") for each in parts] for size in sizes]
    distinct = len(set(map(canonical, values)))
    texts = next((way for way in ways if len(set(way)) >= distinct), ways[-1])
    return [printable(text or plain(value)) for text, value in zip(texts, values, strict=True)]


def labels(keys: Sequence[str], groups: Sequence[Settings]) -> list[str]:
    """Return names of groups that differ in some keys: `adaptation=lora optimizer.lr=0.001`."""
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
