"""Learning curves, read from `metrics.jsonl` in bounded time and memory."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transfer_cli.report.untrusted import is_number
from transfer_cli.safe_files import MAX_WHOLE_NUMBER, UnreadableError, read_text

MOST_BYTES = 64 * 2**20
"""More than this of a file is not read: ten million steps take less."""

_TRAIN = re.compile(r'^\{"kind": "train"')
"""How our own records of training begin; they are thinned before they are parsed."""

Curve = tuple[tuple[int, float], ...]
"""Pairs of step and value, the steps rising."""


@dataclass(frozen=True)
class RunCurves:
    """What a run measured over time: its training loss, and validation but for single classes."""

    train: Curve = ()
    validation: Mapping[str, Curve] = field(default_factory=dict)


def read_curves(path: Path, most_points: int) -> RunCurves:
    """Return the curves in a `metrics.jsonl`, each thinned to at most `most_points`.

    A run may be writing to it: what is no record, such as half a line at the end, is passed over.
    Without a file there are no curves.
    """
    try:
        lines = read_text(path, MOST_BYTES).splitlines()
    except (OSError, UnreadableError):
        return RunCurves()
    train: dict[int, float] = {}
    validation: dict[str, dict[int, float]] = {}
    for kind, step, values in _records(_thinned(lines, most_points)):
        if kind == "train" and (loss := _finite(values.get("loss"))) is not None:
            train[step] = loss
        if kind == "validation":
            for name, given in values.items():
                value = _finite(given)
                if value is not None and "/" not in name and name != "step":
                    validation.setdefault(name, {})[step] = value
    return RunCurves(
        thin(sorted(train.items()), most_points),
        {name: thin(sorted(found.items()), most_points) for name, found in validation.items()},
    )


def thin(points: Iterable[tuple[int, float]], most_points: int) -> Curve:
    """Return every 2nd, 4th, 8th ... point and the last, so that there are at most `most_points`.

    With powers of two, curves of different lengths still have steps in common.
    """
    curve = tuple(points)
    stride = _stride(len(curve), most_points)
    kept = curve[::stride]
    return kept if not curve or kept[-1] == curve[-1] else (*kept, curve[-1])


def mean_curve(curves: list[Curve]) -> Curve:
    """Return the mean over several curves, at the steps that all of them have."""
    found = [dict(curve) for curve in curves if curve]
    if not found:
        return ()
    common = set(found[0]).intersection(*found[1:])
    return tuple(
        (step, math.fsum(each[step] for each in found) / len(found)) for step in sorted(common)
    )


def _stride(points: int, most_points: int) -> int:
    stride = 1
    while math.ceil(points / stride) > max(1, most_points - 1):
        stride *= 2
    return stride


def _thinned(lines: list[str], most_points: int) -> Iterator[str]:
    """Yield the lines but for most of those about training, when these are many."""
    train = [place for place, line in enumerate(lines) if _TRAIN.match(line)]
    kept = set(train[:: _stride(len(train), most_points)]) | set(train[-2:])
    passed = set(train) - kept
    return (line for place, line in enumerate(lines) if place not in passed)


def _records(lines: Iterator[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = found.get("step") if isinstance(found, dict) else None
        if isinstance(step, int) and abs(step) <= MAX_WHOLE_NUMBER:
            yield str(found.get("kind")), step, found


def _finite(value: object) -> float | None:
    try:
        return float(value) if is_number(value) and math.isfinite(value) else None
    except OverflowError:
        return None
