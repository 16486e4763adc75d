"""What tasks share that answer with a probability for each label."""

from collections.abc import Sequence

import numpy as np

from transfer_cli.errors import CheckpointError, listed
from transfer_cli.tasks.base import Task

DECIMALS = 6
"""Decimals of a probability."""


def check_same_labels(own: Task, other: Task, first: str, path: str) -> None:
    """Refuse to combine with a run of another task, or with other labels; their order may differ.

    Args:
        own: The task of the first run.
        other: The task of the other run.
        first: The name of the first run.
        path: The name of the other run.
    """
    if other.name != own.name:
        raise CheckpointError(
            f"run: {path} is a run of {other.name}, and {first} one of {own.name}"
        )
    lacks = [label for label in own.labels if label not in other.labels]
    beyond = [label for label in other.labels if label not in own.labels]
    if lacks or beyond:
        parts = [
            f"{listed((repr(label[:80]) for label in labels), 5)} only in {where}"
            for labels, where in ((lacks, first), (beyond, path))
            if labels
        ]
        raise CheckpointError(
            f"run: the labels differ, {' and '.join(parts)}; give runs with the same labels"
        )


def mean_by_label(
    labels: Sequence[str], parts: Sequence[tuple[Sequence[str], Sequence[float]]]
) -> list[float]:
    """Return the mean of several runs' numbers for each label, in the order of `labels`.

    Args:
        labels: The names.
        parts: Each run's own order of the same names, and its numbers.
    """
    mean_C = np.zeros(len(labels))
    for theirs, numbers in parts:
        values_C = np.asarray(numbers, dtype=float)
        if theirs != labels:
            values_C = values_C[[theirs.index(label) for label in labels]]
        mean_C += values_C / len(parts)
    found: list[float] = mean_C.tolist()
    return found
