"""A run's measurements over time: one JSON line a record."""

import json
from collections.abc import Mapping
from pathlib import Path

from transfer_cli.runs.directory import write_text, writing


class MetricsFile:
    """`metrics.jsonl`: each line holds `step`, `kind` and numbers.

    Args:
        path: The file; made when missing.
        after: Records of later steps are removed first: a resumed run writes them again.
    """

    def __init__(self, path: Path, after: int = 0) -> None:
        self._path = path
        if path.exists():
            kept = [
                line for line in path.read_text(encoding="utf-8").splitlines() if _keep(line, after)
            ]
            write_text(path, "".join(f"{line}\n" for line in kept))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Append a record: `kind` is train, validation or test."""
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")


def read_metrics(path: Path) -> list[dict[str, float | str]]:
    """Return every record of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _keep(line: str, after: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= after)
    except (ValueError, KeyError):
        return False  # a line cut off by a crash
