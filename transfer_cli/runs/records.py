"""A run's measurements over time: one JSON line a record, and how to go back to an earlier time."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from transfer_cli.runs.atomic import write_text, writing
from transfer_cli.safe_files import parse_json

HIGHER_IS_BETTER = ("accuracy", "macro_f1")
"""Measures, or parts of their names, of which more is better; of all others less is."""


class MetricsFile:
    """A file such as `metrics.jsonl`: each line holds `step`, `kind` and numbers.

    Args:
        path: The file; made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Append a record: `kind` is train, validation or test."""
        line = json.dumps({"kind": kind, "step": step, **values})
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def read_metrics(path: Path) -> list[dict[str, float | str]]:
    """Return every record of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cut(path: Path, size: int) -> None:
    """Shorten a file that grew by appending to the `size` bytes that it once had."""
    if path.exists() and path.stat().st_size > size:
        with writing(path):
            os.truncate(path, size)


def drop_after(path: Path, step: int) -> None:
    """Remove the records of later steps, and a line that a crash cut off."""
    if path.exists():
        lines = path.read_text("utf-8", "replace").splitlines()
        kept = [line for line in lines if _keep(line, step)]
        write_text(path, "".join(f"{line}\n" for line in kept))


def _keep(line: str, step: int) -> bool:
    try:
        return bool(parse_json(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False
