"""Answers of a command as JSON lines, for other programs."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transfer_cli.errors import ConfigError
from transfer_cli.runs.atomic import write_text
from transfer_cli.terminal import flush_out

STANDARD_OUTPUT = "-"


def check_output(output: str | None, key: str = "output") -> None:
    """Refuse a file that cannot be written, before anything is computed.

    Raises:
        ConfigError: It is a folder, or in none; the message begins with `key`.
    """
    if output is None or output == STANDARD_OUTPUT:
        return
    path = Path(output).expanduser()
    if path.is_dir():
        raise ConfigError(f"{key}: {output} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{key}: there is no folder {path.parent}; make it, or name another")


def write_json_lines(output: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON line for each row, to a file, at once, or to standard output."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    if output == STANDARD_OUTPUT:
        flush_out(text)
    else:
        write_text(Path(output).expanduser(), text)
