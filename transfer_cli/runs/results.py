"""`results.json`: what came out of a run, as one record that every command writes and reads.

The file may be a stranger's. What is of the wrong kind in it counts as missing.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.earlier_runs import undeclared_metrics
from transfer_cli.metrics import Metric
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.untrusted import is_number, nested, nested_mapping, text_or_none
from transfer_cli.safe_files import read_json

Measures = Mapping[str, Mapping[str, float]]
"""Numbers by split and name."""


@dataclass(frozen=True)
class Parameters:
    """How many parameters there are, and how many ever trained."""

    total: int | None = None
    trainable: int | None = None


@dataclass(frozen=True)
class Seen:
    """What a run trained on, repetitions included."""

    steps: int | None = None
    tokens: int | None = None
    examples: int | None = None
    skipped_steps: int | None = None


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of steps, those without padding, those of computed states."""

    flops: int | None = None
    flops_real: int | None = None
    flops_of_states: int | None = None
    tokens: int | None = None


_IF_KNOWN = ("examples", "best_step", "parameters", "seen", "cost", "stored_bytes")
"""Keys that are left out where nothing is known."""


@dataclass(frozen=True)
class Results:
    """What came out of a run; a command leaves out what it does not know.

    Args:
        measures: By split and name.
        tables: Counts by split and name, such as `confusion`.
        task: The name of the task; None: it is running text.
        expected: The task's word for the right answer.
        failed: Why it learnt next to nothing.
        more: What else a command, an objective or a later version writes, by key.
    """

    command: str = ""
    presets: Mapping[str, str] = field(default_factory=dict)
    seed: Any = None
    measures: Measures = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    task: str | None = None
    expected: str | None = None
    failed: str | None = None
    examples: Mapping[str, int] = field(default_factory=dict)
    best_step: int | None = None
    parameters: Parameters = Parameters()
    seen: Seen = Seen()
    cost: Cost = Cost()
    stored_bytes: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_name(self) -> dict[str, float]:
        """The numbers that it measured, by `split/measure`."""
        return {
            f"{split}/{name}": float(value)
            for split, measured in self.measures.items()
            for name, value in measured.items()
            if not math.isnan(value)
        }

    @property
    def flops(self) -> int | None:
        """Floating-point operations of its steps, and of states that they found computed."""
        if self.cost.flops is None:
            return None
        return self.cost.flops + (self.cost.flops_of_states or 0)

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        content = asdict(self)
        more, expected = content.pop("more"), content.pop("expected")
        content["task"] = None if self.task is None else {"name": self.task, "expected": expected}
        for key in _IF_KNOWN:
            if isinstance(content[key], dict):
                content[key] = {name: n for name, n in content[key].items() if n is not None}
            if content[key] in (None, {}):
                del content[key]
        return {**content, **more}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Results":
        """Return the record of a file's content."""
        measures = {
            split: {name: value for name, value in measured.items() if is_number(value)}
            for split, measured in _mappings(stored, "measures").items()
        }
        labels, examples = stored.get("labels"), nested_mapping(stored, "examples")
        known = {entry.name for entry in fields(cls)} - {"expected", "more"}
        return cls(
            command=str(stored.get("command") or ""),
            presets={key: str(value) for key, value in nested_mapping(stored, "presets").items()},
            seed=stored.get("seed"),
            measures=measures,
            metrics=_metrics(stored.get("metrics"), measures),
            tables=_mappings(stored, "tables"),
            labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
            task=text_or_none(nested(stored, "task", "name")),
            expected=text_or_none(nested(stored, "task", "expected")),
            failed=text_or_none(stored.get("failed")),
            examples={name: count for name, count in examples.items() if type(count) is int},
            best_step=_count(stored, "best_step"),
            parameters=_counts(Parameters, nested_mapping(stored, "parameters")),
            seen=_counts(Seen, nested_mapping(stored, "seen")),
            cost=_counts(Cost, nested_mapping(stored, "cost")),
            stored_bytes=_count(stored, "stored_bytes"),
            more={key: value for key, value in stored.items() if key not in known},
        )

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Return what a file holds."""
        return cls.from_json(read_json(path))

    def write(self, path: Path) -> None:
        """Write the file."""
        write_json(path, self.as_json())


def merged_metrics(several: Iterable[Iterable[Metric]]) -> tuple[Metric, ...]:
    """Return the metrics of several runs, each name once: the first declaration counts."""
    by_name: dict[str, Metric] = {}
    for metrics in several:
        for metric in metrics:
            by_name.setdefault(metric.name, metric)
    return tuple(by_name.values())


Record = TypeVar("Record", Parameters, Seen, Cost)


def _counts(kind: type[Record], stored: Mapping[str, Any]) -> Record:
    return kind(**{entry.name: _count(stored, entry.name) for entry in fields(kind)})


def _count(stored: Mapping[str, Any], key: str) -> int | None:
    value = stored.get(key)
    return value if type(value) is int else None


def _mappings(stored: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    values = nested_mapping(stored, key).items()
    return {name: value for name, value in values if isinstance(value, dict)}


def _metrics(stored: Any, measures: Measures) -> tuple[Metric, ...]:
    """Return the metrics that a run declares; damaged ones are left out."""
    if not isinstance(stored, list):
        return undeclared_metrics(measures)
    metrics = []
    for record in stored:
        with suppress(ValueError):
            metrics.append(Metric.from_json(record))
    return tuple(metrics)
