"""Answers of a command as JSON lines, for other programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transfer_cli.errors import ConfigError
from transfer_cli.runs.atomic import write_text
from transfer_cli.terminal import flush_out

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


def check_ending(key: str, output: str, known: Sequence[str], otherwise: str = "") -> None:
    """Refuse a file whose ending promises what is not written; one without an ending is fine.

    Args:
        key: Begins the message.
        output: The file.
        known: The endings of what is written.
        otherwise: Ends the message.
    """
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
        flush_out(text)
    else:
        write_text(Path(output).expanduser(), text)
