"""Which examples are in which step: a pure function of (seed, step), whoever asks and whenever.

An epoch is a permutation seeded by its number; a step is a slice of it. A loader that can start at
any step needs no memory, which is what makes a resume exact.
"""

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np

from transfer_cli.batch import Batch
from transfer_cli.seeds import derive

Items = TypeVar("Items", np.ndarray, list[np.ndarray])


class Filler(dict[str, Batch]):
    """Examples that only keep a process in step with the others: nothing of them counts."""


class Order:
    """The order in which a data set is visited.

    Args:
        examples: How many there are.
        batch: How many a step takes; the last step of an epoch takes what is left.
        seed: Decides every permutation.

    Raises:
        ValueError: There is nothing to take.
    """

    def __init__(self, examples: int, batch: int, seed: int) -> None:
        if examples < 1 or batch < 1:
            raise ValueError(f"an order needs examples and a batch, got {examples} and {batch}")
        self.examples = examples
        self.batch = batch
        self.steps_per_epoch = -(-examples // batch)
        self._permutation = lru_cache(maxsize=2)(lambda epoch: _permutation(examples, seed, epoch))

    def indices(self, step: int) -> np.ndarray:
        """Return the examples of a step, counted from 0, as int64."""
        epoch, within = divmod(step, self.steps_per_epoch)
        begin = within * self.batch
        found: np.ndarray = self._permutation(epoch)[begin : begin + self.batch]
        return found


def _permutation(examples: int, seed: int, epoch: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(derive(seed, "order", epoch)))
    return generator.permutation(examples)


def in_portions(indices: np.ndarray, portion: int) -> list[np.ndarray]:
    """Cut indices into runs of at most `portion`, in order."""
    return [indices[begin : begin + portion] for begin in range(0, len(indices), portion)]


def share(items: Items, rank: int, count: int) -> Items:
    """Return what one of `count` processes takes of some items; may be nothing."""
    return items[rank::count]


def rounds(items: int, portion: int, count: int) -> int:
    """Return how many portions the busiest of `count` processes has, each taking its share."""
    return math.ceil(math.ceil(items / count) / portion)
