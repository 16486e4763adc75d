"""The data loader of training: each optimizer step's micro-batches, from any step on.

It has no state: step n draws a stream, whose sampler gives the examples. So a resumed run sees the
same batches as one that was never interrupted.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np
import torch

from transfer_cli.batch import Batch, IdleBatch, micro_batches, shard
from transfer_cli.data.mixture import MAIN, Mixture
from transfer_cli.data.sampler import StepSampler, num_micro_batches
from transfer_cli.data.split import Dataset


@dataclass(frozen=True)
class Stream:
    """A source of training batches: for steps of its own, or for each of the main stream."""

    data: Dataset
    sampler: StepSampler
    joins_main: bool = False


@dataclass(frozen=True, eq=False)
class StepDataLoader:
    """Loads one process's micro-batches of step n, n + 1, ..., without an end.

    Args:
        micro_batch: Examples in one forward pass of a process.
        first: Returns the first step; called when an iteration begins.
        mixture: Decides which stream each step draws; None: always "main".
    """

    streams: Mapping[str, Stream]
    micro_batch: int
    first: Callable[[], int]
    mixture: Mixture | None = None
    _: KW_ONLY
    rank: int = 0
    world_size: int = 1

    def __iter__(self) -> Iterator[list[dict[str, Batch]]]:
        """Yield each step's micro-batches, as `load` returns them."""
        yield from map(self.load, itertools.count(self.first()))

    def load(self, step: int) -> list[dict[str, Batch]]:
        """Return one step's micro-batches: of each a batch under the name of its stream.

        Each process has its shard of the step's examples, and as many micro-batches as any other,
        since all take part in every exchange. `IdleBatch`es make up for missing ones, also of a
        stream that has fewer than another: the last micro-batch is the one that is exchanged.
        """
        drawn, visit = (MAIN, step) if self.mixture is None else self.mixture.draw(step)
        joining = [name for name, stream in self.streams.items() if stream.joins_main]
        names = [drawn, *(joining if drawn == MAIN else ())]
        indices = {name: self.streams[name].sampler.indices(visit) for name in names}
        most = max(
            num_micro_batches(len(examples), self.micro_batch, self.world_size)
            for examples in indices.values()
        )
        batches: list[dict[str, Batch]] = [{} for _ in range(most)]
        for name, examples in indices.items():
            stream = self.streams[name]
            load_batch = partial(_load_batch, stream, stream.sampler.epoch_of(visit))
            parts = micro_batches(shard(examples, self.rank, self.world_size), self.micro_batch)
            for number, micro in enumerate(batches):
                if number < len(parts):
                    micro[name] = load_batch(parts[number])
                elif self.world_size > 1:
                    micro[name] = IdleBatch(load_batch(examples[:1]))
        return batches


def _load_batch(stream: Stream, epoch: int, indices: np.ndarray) -> Batch:
    return {**stream.data.batch(indices), "epoch": torch.full((len(indices),), epoch)}
