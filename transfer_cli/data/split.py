"""A split: a data set to score, its order, and the size of its text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from transfer_cli.batch import Batch


@dataclass(frozen=True)
class TextStats:
    """The size of the text whose tokens are scored, for perplexity by word and bits by byte.

    Args:
        words: Its words; 0 if undefined.
        size_bytes: Its size in UTF-8; 0 if undefined.
    """

    words: int = 0
    size_bytes: int = 0


class Dataset(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def batch(self, indices: np.ndarray) -> Batch:
        """Return the examples with these numbers, padded to the longest."""


@dataclass(frozen=True)
class Split:
    """A data set to score.

    Args:
        name: train, validation or test.
        data: The examples.
        text: Words and bytes of the text; none for labelled data.
        order: The order of evaluation, for example by length; None: by number.
        example_of: The number of the example that each row is a window of; None: rows are examples.
        scorer: Returns measures that are no sums over rows, from each row's predictions by number.
    """

    name: str
    data: Dataset
    text: TextStats = TextStats()
    order: np.ndarray | None = None
    example_of: np.ndarray | None = None
    scorer: Callable[[Mapping[int, Mapping[str, Any]]], dict[str, float]] | None = None


def some_of(split: Split, count: int) -> Split:
    """Return a split that scores `count` examples, evenly spread, or all if there are fewer.

    Words and bytes are known for complete texts only, so measures by word or byte are left out.
    """
    of = split.example_of
    total = len(split.data) if of is None else len(np.unique(of))
    if count >= total:
        return split
    spread = np.linspace(0, total - 1, count).astype(np.int64)
    rows = spread if of is None else np.flatnonzero(np.isin(of, spread))
    return replace(split, text=TextStats(), order=rows)
