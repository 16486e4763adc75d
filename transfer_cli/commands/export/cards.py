"""The model card of a run, from the files of its directory."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.config.roles import Role, role_of
from transfer_cli.errors import CheckpointError
from transfer_cli.interop.saving import WrittenFolder
from transfer_cli.runs.directory import HUB, RunDirectory
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import mapping
from transfer_cli.safe_files import (
    in_one_line,
    markdown_code,
    markdown_row,
    markdown_text,
    printable,
    read_json,
    read_text,
)

_PATH = re.compile(r"(?<![\w.~-])(?:~|\.\.?)?/[^\s,\[\]{}'\"]*")
"""A path from the root, the home or the current folder, anywhere in a value."""


class _Markdown(str):
    """A text that is Markdown already."""

    __slots__ = ()


_FILTERS: Mapping[str, Callable[[Any], str]] = {
    # No fence of code ends in these two: the one has no backtick, the other one line.
    "json": lambda text: json.dumps(text).replace("`", "\\u0060"),
    "plain": in_one_line,
    "codes": lambda texts: ", ".join(map(markdown_code, texts)),
    "row": lambda cells: markdown_row(map(markdown_text, cells)),
}


def card_of(start: Pretrained, written: WrittenFolder, to: str, length: int) -> str:
    """Return the card of a model that reads `length` tokens of a text.

    How it was trained only the directory of a run can say.
    """
    target = written.target
    shape, vocabulary = start.description.shape, start.description.vocabulary
    what = {
        "kind of model": f"{target.family.name} ({target.architecture})",
        "size": f"{shape.depth} blocks of width {shape.width}, {vocabulary:,} tokens, "
        f"{shape.positions} positions",
        "numbers": "float32",
        "longest input": f"{length:,} tokens, special ones included; a longer text loses its end, "
        + ("never a choice" if target.pipeline == "multiple-choice" else "of two the longer first"),
    }
    run = RunDirectory(start.folder.parent)
    results = None if start.published else _results(run)
    return rendered(
        title=Path(to).name,
        task=target.pipeline,
        architecture=target.architecture,
        what=what,
        labels=written.labels,
        how=_training(run, results) if results else {},
        command=_command(run, results) if results else "",
        measures=results.measures if results else {},
        left_out=written.left_out,
    )


def rendered(measures: Mapping[str, Mapping[str, float]], **values: Any) -> str:
    """Return `card.md` with values, which may come from the run of a stranger."""
    environment = Environment(  # noqa: S701 - Markdown, in which every value is escaped
        loader=PackageLoader("transfer_cli", "commands/export"),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, _Markdown) else markdown_text(value),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: _ready(write) for name, write in _FILTERS.items()}
    names = dict.fromkeys(name for split in measures.values() for name in split)
    rows = [
        [name, *(f"{split[name]:.4g}" if name in split else "" for split in measures.values())]
        for name in names
    ]
    table = {"head": ["measure", *measures], "rows": rows}
    return environment.get_template("card.md").render(values, measures=measures, **table)


def _ready(write: Callable[[Any], str]) -> Callable[[Any], _Markdown]:
    return lambda value: _Markdown(write(value))


def _training(run: RunDirectory, results: Results) -> dict[str, str]:
    presets, timing = _json(run.presets), _json(run.timing)
    environment = _json(run.environment)
    found = {
        "data": presets.get("data"),
        "scheme": presets.get("adaptation"),
        "objective": presets.get("objective"),
        "started from": _started_from(run),
        "seed": results.seed,
        "seen": _filled(
            "{steps:,} steps, {examples:,} examples, {tokens:,} tokens", asdict(results.seen)
        ),
        "parameters that trained": _filled(
            "{trainable:,} of {total:,}", asdict(results.parameters)
        ),
        "seconds": timing.get("seconds"),
        "versions": ", ".join(
            f"{name} {version}" for name, version in mapping(environment, "versions").items()
        ),
    }
    return {name: printable(str(value)) for name, value in found.items() if value not in (None, "")}


def _filled(sentence: str, numbers: Any) -> str | None:
    """Return a sentence with numbers in it; None where they are missing."""
    try:
        return sentence.format_map(numbers)
    except (TypeError, KeyError, ValueError, IndexError, AttributeError):
        return None


def _started_from(run: RunDirectory) -> str | None:
    given = (word.partition("=") for word in _words(run))
    place = next((value for key, _, value in given if key == "init_from"), None)
    return place if place is None or place.startswith(HUB) else Path(place).name


def _command(run: RunDirectory, results: Results) -> str:
    """Return what was typed, with the last part of each path."""
    shown = [_without_place(word) for word in _words(run)]
    return shlex.join(["transfer", results.command or "finetune", *shown])


def _without_place(word: str) -> str:
    key, _, value = word.partition("=")
    if Role.PLACE in role_of(key) and not value.startswith(HUB):
        return f"{key}={Path(value).name}"
    return f"{key}={_PATH.sub(lambda found: Path(found[0]).name, value)}" if value else word


def _words(run: RunDirectory) -> list[str]:
    try:
        return [word for word in read_text(run.overrides).splitlines() if word]
    except (OSError, ValueError):
        return []


def _results(run: RunDirectory) -> Results | None:
    try:
        return Results.read(run.results)
    except (OSError, ValueError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError, CheckpointError):
        return {}
