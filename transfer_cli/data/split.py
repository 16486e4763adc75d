"""What is scored: a data set, in an order, with what is known of its text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from transfer_cli.batch import Batch


@dataclass(frozen=True)
class TextStats:
    """What a split's measures need beyond its sums.

    Args:
        words: Words of exactly the text whose tokens are scored; 0 where that is not defined.
        size_bytes: Its size in UTF-8; 0 where that is not defined.
    """

    words: int = 0
    size_bytes: int = 0


NO_TEXT = TextStats()


class Dataset(Protocol):
    """Examples that can be asked for by number."""

    def __len__(self) -> int: ...

    def batch(self, indices: np.ndarray) -> Batch:
        """Return the examples with these numbers, padded to the longest."""


@dataclass(frozen=True)
class Split:
    """A data set to score, with what its measures need.

    Args:
        name: train, validation or test.
        data: The examples.
        text: Words and bytes of the text; none for labelled data.
        order: The order to go through it in, for example by length; none: as it lies.
        example_of: The number of the example that each row is a window of; none: of its own.
        scorer: Measures what is no sum over rows, from what was predicted for each, by number.
    """

    name: str
    data: Dataset
    text: TextStats = NO_TEXT
    order: np.ndarray | None = None
    example_of: np.ndarray | None = None
    scorer: Callable[[Mapping[int, Mapping[str, Any]]], dict[str, float]] | None = None


def some_of(split: Split, count: int) -> Split:
    """Return a split of which so many examples are scored, evenly spread; all where there are less.

    Words and bytes are known of a whole text alone, so what is counted by them is not measured.
    """
    of = split.example_of
    total = len(split.data) if of is None else len(np.unique(of))
    if count >= total:
        return split
    spread = np.linspace(0, total - 1, count).astype(np.int64)
    rows = spread if of is None else np.flatnonzero(np.isin(of, spread))
    return replace(split, text=NO_TEXT, order=rows)
