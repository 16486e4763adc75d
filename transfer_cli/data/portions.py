"""Portions of a split: the rows that pass through a model at once when it is scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.sampler import micro_batches, shard
from transfer_cli.data.split import Split, TextContext

MOST_LANES = 16
"""Lanes in which running text is scored, so that several blocks pass through the model at once."""

LEAST_BLOCKS = 32
"""Blocks of a lane, at least: its first ones are read twice, to have something to remember."""


@dataclass(frozen=True)
class Portion:
    """Rows that pass through a model at once.

    Args:
        rows: Their numbers.
        is_scored: Which of them count; the others are read to be remembered.
        begins: Whether nothing before them is remembered.
    """

    rows: np.ndarray
    is_scored: np.ndarray
    begins: bool = True

    @classmethod
    def of(cls, rows: np.ndarray) -> "Portion":
        """Return a portion of rows that all count."""
        return cls(rows, np.ones(len(rows), dtype=np.bool_))

    def targets_in(self, batch: Batch) -> Batch:
        """Return their batch without targets in rows that do not count."""
        if self.is_scored.all():
            return batch
        next_BT = batch["next_tokens"].clone()
        next_BT[~self.is_scored] = IGNORE
        return {**batch, "next_tokens": next_BT}


def portions_of(
    split: Split, context: TextContext | None, batch: int, world_size: int
) -> list[list[Portion]]:
    """Return the portions of each process, of `batch` rows at most; every row counts once.

    By memory, running text is read in lanes, and which ones there are depends on the text and the
    context alone: so do the measures, and neither on `batch` nor on processes.
    """
    order = np.arange(len(split.data)) if split.order is None else split.order
    if context is None or context.by != "memory":
        whole = [Portion.of(rows) for rows in micro_batches(order, batch)]
        return [shard(whole, rank, world_size) for rank in range(world_size)]
    lanes = _lanes(order, math.ceil(context.tokens / context.stride))
    return [_side_by_side(shard(lanes, rank, world_size), batch) for rank in range(world_size)]


def _lanes(rows: np.ndarray, read_before: int) -> list[Portion]:
    """Cut the blocks of a text into lanes, equally long but for the last one.

    All but the first begin with `read_before` blocks that the lane before has scored.
    """
    count = max(1, min(MOST_LANES, len(rows) // max(LEAST_BLOCKS, 4 * read_before)))
    length = math.ceil((len(rows) + (count - 1) * read_before) / count)
    lanes = [Portion.of(rows[:length])]
    for number in range(1, count):
        blocks = rows[number * (length - read_before) :][:length]
        if len(blocks) > read_before:
            lanes.append(Portion(blocks, np.arange(len(blocks)) >= read_before))
    return lanes


def _side_by_side(lanes: Sequence[Portion], batch: int) -> list[Portion]:
    """Return the n-th blocks of up to `batch` lanes, for each n, then those of the next lanes."""
    portions = []
    for begin in range(0, len(lanes), batch):
        group = lanes[begin : begin + batch]
        for number in range(max(len(lane.rows) for lane in group)):
            there = [lane for lane in group if number < len(lane.rows)]
            rows = np.array([lane.rows[number] for lane in there])
            is_scored = np.array([lane.is_scored[number] for lane in there])
            portions.append(Portion(rows, is_scored, begins=number == 0))
    return portions
