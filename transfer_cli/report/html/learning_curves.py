"""Learning curves, read from `metrics.jsonl` in bounded time and memory."""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transfer_cli.report.untrusted import is_number
from transfer_cli.safe_files import MAX_WHOLE_NUMBER, UnreadableError, read_text

MOST_BYTES = 64 * 2**20
"""More than this of a file is not read: ten million steps take less."""

_TRAIN = '{"kind": "train"'
"""How our own records of training begin; they are thinned before they are parsed."""

Curve = tuple[tuple[int, float], ...]
"""Pairs of step and value, the steps rising."""


def read_curves(path: Path, most_points: int) -> Mapping[str, Curve]:
    """Return the curves in a `metrics.jsonl`, each thinned to at most `most_points`.

    They are `train/loss` and `validation/NAME`, but for single classes. A run may be writing to the
    file: what is no record, such as half a line at the end, is skipped. Without a file there are no
    curves.
    """
    try:
        lines = read_text(path, MOST_BYTES).splitlines()
    except (OSError, UnreadableError):
        return {}
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for kind, step, values in _records(_thinned(lines, most_points)):
        for name in {"train": ["loss"], "validation": values.keys() - {"step"}}.get(kind, ()):
            value = values.get(name)
            if "/" not in name and is_number(value) and abs(value) <= sys.float_info.max:
                found[f"{kind}/{name}"][step] = float(value)
    return {name: thin(sorted(points.items()), most_points) for name, points in found.items()}


def thin(points: Iterable[tuple[int, float]], most_points: int) -> Curve:
    """Return every 2nd, 4th, 8th ... point and the last, so that there are at most `most_points`.

    With powers of two, curves of different lengths still have steps in common.
    """
    curve = tuple(points)
    stride = _stride(len(curve), most_points)
    kept = curve[::stride]
    return kept if kept[-1:] == curve[-1:] else (*kept, curve[-1])


def mean_curve(curves: Iterable[Curve]) -> Curve:
    """Return the mean over several curves, at the steps that all of them have."""
    found = [dict(curve) for curve in curves if curve]
    common = set.intersection(*map(set, found)) if found else set()
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
    train = [place for place, line in enumerate(lines) if line.startswith(_TRAIN)]
    left_out = {*train} - {*train[:: _stride(len(train), most_points)], *train[-2:]}
    return (line for place, line in enumerate(lines) if place not in left_out)


def _records(lines: Iterator[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = found.get("step") if isinstance(found, dict) else None
        if isinstance(step, int) and abs(step) <= MAX_WHOLE_NUMBER:
            yield str(found.get("kind")), step, found
