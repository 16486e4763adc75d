"""A run's measurements over time: one JSON line a record, and how to go back to an earlier time."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from transfer_cli.runs.atomic import writing


class MetricsFile:
    """A file such as `metrics.jsonl`: each line holds `step`, `kind` and numbers."""

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
