"""The paths that are typed: looked at before what takes seconds to import, and written to.

What a config or a sweep's preset names is looked at by the command itself, in the same words.
"""

import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transfer_cli.config.models import expand_short_name, listed_models
from transfer_cli.data.readers import check_readable
from transfer_cli.errors import ConfigError, DataError, RunError, raised_as
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import HUB, check_is_folder, check_model_folder
from transfer_cli.safe_files import in_one_line
from transfer_cli.terminal import write_out

STANDARD_OUTPUT = "-"


def check_output(output: str | None, key: str = "output") -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if output is None or output == STANDARD_OUTPUT:
        return
    path = Path(output).expanduser()
    if path.is_dir():
        raise ConfigError(f"{key}: {output} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{key}: there is no folder {path.parent}; make it, or name another")


def check_not_read(output: str | None, inputs: Iterable[str], key: str = "output") -> None:
    """Refuse a file to write that is one of those to read."""
    if output is None or output == STANDARD_OUTPUT:
        return
    place, *others = (Path(name).expanduser().resolve() for name in (output, *inputs))
    if place in others:
        raise ConfigError(f"{key}: {output} is the input, and would be lost; name another")


def check_ending(key: str, output: str, known: Sequence[str], otherwise: str = "") -> None:
    """Refuse a file whose ending promises what is not written; one without an ending is fine."""
    path = Path(output).expanduser()
    is_other = path.exists() and not path.is_file()  # a device, a pipe or a folder
    if path.suffix and path.suffix.lower() not in known and not is_other:
        raise ConfigError(
            f"{key}: {path.suffix!r} of {output} is not an ending of what is written, which are "
            f"{', '.join(known)}{otherwise}"
        )


def write_json_lines(output: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON line for each row, to a file, at once, or to standard output."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    if output == STANDARD_OUTPUT:
        write_out(text)
    else:
        write_text(Path(output).expanduser(), text)


_PLAIN_VALUE = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"|([^\s'\"\\(){}\[\]$,=]+)")
"""A value that says what it is without Hydra."""


def check_paths(overrides: Iterable[str], command: str, *, multirun: bool) -> None:
    """Refuse paths at which there is nothing, or something else."""
    looks = _CHECKS_OF_COMMAND.get(command, _CHECKS)
    last = dict(word.partition("=")[::2] for word in overrides)
    if looks is _TRAINING_CHECKS and "resume" in last:
        last = {"resume": last["resume"]}  # a run that is finished needs nothing else
    if "data.train" not in last:  # then the others name no files, but splits, or a share
        last = {key: value for key, value in last.items() if not key.startswith("data.")}
    if last.get("output_format") == "glue":  # its output may be a folder, and `predict` looks at it
        last.pop("output", None)
    for key, value in last.items():
        for path in _plain_values(value, multirun=multirun) if key in looks else ():
            looks[key](path, key)


def check_new(to: Path, key: str = "to") -> None:
    """Refuse a folder to write that is there already."""
    if to.exists() or to.is_symlink():
        raise RunError(f"{key}: {to} is there already; choose a new folder")


def _plain_values(text: str, *, multirun: bool) -> Iterator[str]:
    """Yield the values of an override, but none that Hydra would change or refuse."""
    words = [text]
    if text.startswith("[") or (multirun and not text.startswith(("'", '"'))):
        words = text.removeprefix("[").removesuffix("]").split(",")
    for word in words:
        plain = _PLAIN_VALUE.fullmatch(word.strip())
        value = next(filter(None, plain.groups()), "") if plain else ""
        if value not in ("", "null", "auto", "???"):
            yield value


def _check_model(path: str, key: str) -> None:
    if not expand_short_name(path).startswith(HUB):
        check_model_folder(Path(path).expanduser(), key, listed_models())


def _check_folder(path: str, key: str) -> None:
    check_is_folder(Path(path).expanduser(), key)


def _check_file(path: str, key: str) -> None:
    place = Path(path).expanduser()
    if key == "input" and " " in path and "/" not in path and not place.exists():
        raise ConfigError(
            f"{key}: there is no file {in_one_line(path)!r}; texts come from a file, or from "
            "standard input, a line each: echo TEXT | transfer predict RUN -"
        )
    if path == STANDARD_OUTPUT or glob.has_magic(path) or "://" in path:
        return
    if place.is_file() or place.is_dir() or not place.exists():  # else a device or a pipe
        with raised_as(DataError, f"{key}: ", DataError):
            check_readable(place)


def _check_data(path: str, key: str) -> None:
    # A folder may be a table in several files, or texts beside each other.
    if not path.startswith(HUB) and not Path(path).expanduser().is_dir():
        _check_file(path, key)


def _check_new_path(path: str, key: str) -> None:
    check_new(Path(path).expanduser(), key)


_CHECKS: Mapping[str, Callable[[str, str], None]] = {
    "run": _check_model, "init_from": _check_model, "base": _check_folder, "input": _check_file,
    "to": _check_new_path, "output": check_output, "each": check_output,
    "data.train": _check_data, "data.validation": _check_data, "data.test": _check_data,
}  # fmt: skip
_TRAINING_CHECKS = {**_CHECKS, "resume": _check_folder}
"""Elsewhere `resume` says whether to go on."""

_RUN_WRITING_CHECKS = {**_CHECKS, "output": _check_new_path}
_CHECKS_OF_COMMAND = {
    "pretrain": _TRAINING_CHECKS, "finetune": _TRAINING_CHECKS,
    "score": _RUN_WRITING_CHECKS, "analyze": _RUN_WRITING_CHECKS,
    "evaluate": {**_CHECKS, "input": _check_data}, "predict": {**_CHECKS, "input": _check_data},
}  # fmt: skip
