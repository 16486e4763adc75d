"""Reads the records that a run writes."""

import json
from pathlib import Path


def read_metrics(path: Path) -> list[dict[str, float | str]]:
    """Return every record of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
