"""The sampler: which examples are in which step, a pure function of (seed, step).

An epoch is a permutation seeded by its number; a step is a slice of it. So a loader can start at
any step without state, which makes a resume exact.

Texts of similar length can share a batch, which then has little padding: half of a random batch of
short questions is padding.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from transfer_cli.batch import micro_batches
from transfer_cli.data.split import WeightedSource
from transfer_cli.seeds import derive

POOL_BATCHES = 50
"""Maximum number of batches in a pool of examples that is sorted by length and cut into batches.

More would save little padding.
"""

LEAST_POOLS = 8
"""Minimum number of pools in an epoch; with fewer, few examples would always meet the same ones."""


class StepSampler:
    """Samples the examples of each step; an epoch has every example once.

    Args:
        batch: Examples of a step; the last step of an epoch takes the rest.
        seed: Decides every permutation.
        lengths: The length of each example in tokens, for batches of similar length; None: a batch
            is drawn from all examples.
        sources: Whose examples follow each other, to be drawn in proportion to their weights; see
            `weighted_order`; none: an epoch has every example once.

    Raises:
        ValueError: There are no examples, or not a length for each example.
    """

    def __init__(
        self,
        examples: int,
        batch: int,
        seed: int,
        lengths: np.ndarray | None = None,
        sources: Sequence[WeightedSource] = (),
    ) -> None:
        if examples < 1 or batch < 1:
            raise ValueError(f"a sampler needs examples and a batch, got {examples} and {batch}")
        if lengths is not None and len(lengths) != examples:
            raise ValueError(f"a sampler of {examples} examples got {len(lengths)} lengths")
        self.examples = examples
        self.batch = batch
        self.steps_per_epoch = -(-examples // batch)
        self._seed = seed
        self._lengths = lengths
        self._sources = sources
        self._epoch = lru_cache(maxsize=2)(self._epoch_order)

    def indices(self, step: int) -> np.ndarray:
        """Return the examples of a step, counted from 0, as int64."""
        epoch = self.epoch_of(step)
        begin = (step - epoch * self.steps_per_epoch) * self.batch
        examples: np.ndarray = self._epoch(epoch)[begin : begin + self.batch]
        return examples

    def epoch_of(self, step: int) -> int:
        """Return how many epochs are over before a step's."""
        return step // self.steps_per_epoch

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """Return the examples of an epoch in their order."""
        generator = np.random.Generator(np.random.Philox(derive(self._seed, "order", epoch)))
        if self._sources:
            return generator.permutation(weighted_order(self._sources, self._seed, epoch))
        order = generator.permutation(self.examples)
        if self._lengths is None:
            return order
        # The last step, which may be short, takes the rest.
        cut = len(order) - len(order) % self.batch
        batches = _by_length(order[:cut], self._lengths, self.batch).reshape(-1, self.batch)
        generator.shuffle(batches)
        return np.concatenate([batches.ravel(), order[cut:]])


class LaneSampler(StepSampler):
    """Samples the blocks of running text that continue those of the step before.

    The text is cut into `batch` lanes of equal length, but for one block; each step has the next
    block of each lane, in the order of lanes. So the n-th example of a step, of a process or of a
    micro-batch is always of the same lane. Each epoch begins with the first block of each lane.
    """

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """Return the blocks of an epoch, step by step; every epoch is the same."""
        lanes = np.array_split(np.arange(self.examples), self.batch)
        first_B = np.array([lane[:1].sum() for lane in lanes])  # of an empty lane 0
        length_B = np.array([len(lane) for lane in lanes])
        step_N1 = np.arange(self.steps_per_epoch)[:, None]
        blocks: np.ndarray = (first_B + step_N1)[step_N1 < length_B]
        return blocks


def weighted_order(sources: Sequence[WeightedSource], seed: int, epoch: int) -> np.ndarray:
    """Return the examples of an epoch of weighted sources, one source after the other.

    There are as many as all sources have. Of each come so many as its weight says, from where the
    epoch before has ended: it is passed over in one order, then in another one.
    """
    begins = np.cumsum([0, *(source.size for source in sources)])
    orders = [begins[:0]]
    for number, (source, count) in enumerate(zip(sources, quotas(sources), strict=True)):
        first, end = epoch * count, (epoch + 1) * count
        for visit in range(first // source.size, -(-end // source.size)):
            drawn = derive(seed, "source", number, visit)
            order = np.random.Generator(np.random.Philox(drawn)).permutation(source.size)
            done = visit * source.size
            orders.append(begins[number] + order[max(0, first - done) : end - done])
    return np.concatenate(orders)


def quotas(sources: Sequence[WeightedSource]) -> list[int]:
    """Return how many examples of an epoch are from each source; the largest remainders go up."""
    total = sum(source.size for source in sources)
    weights = np.array([source.weight for source in sources])
    weights = weights / weights.sum() * total
    counts = np.floor(weights).astype(int)
    rest = np.argsort(counts - weights, kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return [int(count) for count in counts]


def _by_length(order: np.ndarray, lengths: np.ndarray, batch: int) -> np.ndarray:
    """Sort each pool of examples by length."""
    pool_batches = min(POOL_BATCHES, max(1, len(order) // batch // LEAST_POOLS))
    pools = micro_batches(order, pool_batches * batch)
    return np.concatenate(
        [order[:0], *(pool[np.argsort(lengths[pool], kind="stable")] for pool in pools)]
    )


def num_micro_batches(items: int, size: int, world_size: int) -> int:
    """Return the number of micro-batches of the process with the largest shard."""
    return math.ceil(math.ceil(items / world_size) / size)
