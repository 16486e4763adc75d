"""What scoring finds, in the terms of a run's `results.json` and `items.jsonl`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transfer_cli.metrics import Metric
from transfer_cli.runs.items import Item


@dataclass(frozen=True)
class Findings:
    """The results of a split.

    Args:
        split: Its name.
        measures: By name.
        metrics: Their declarations.
        items: What was said of each example.
        lines: What to print besides, in words.
        labels: Names of the labels.
        task: The task's name and its word for the right answer.
        tables: Counts by name.
        details: Further facts, kept as they are.
    """

    split: str
    measures: Mapping[str, float]
    metrics: Sequence[Metric]
    items: Sequence[Item]
    lines: Sequence[str]
    labels: Sequence[str] = ()
    task: Mapping[str, str] | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
