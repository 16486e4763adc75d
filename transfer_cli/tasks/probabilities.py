"""What tasks share that answer with a probability for each label."""

from collections.abc import Sequence

import numpy as np

DECIMALS = 6
"""Decimals of a probability."""


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
