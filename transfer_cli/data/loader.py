"""The data loader of training: each optimizer step's micro-batches, from any step on.

It has no state: step n draws a stream, whose sampler gives the examples. So a resumed run sees the
same batches as one that was never interrupted.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

from transfer_cli.batch import Batch
from transfer_cli.data.mixture import MAIN, Mixture
from transfer_cli.data.sampler import StepSampler, micro_batches, num_micro_batches, shard
from transfer_cli.data.split import Dataset


class PaddingBatch(dict[str, Batch]):
    """A micro-batch of weight 0, which keeps a process in step with the others."""


@dataclass(frozen=True)
class Stream:
    """A source of training batches: a data set, and the sampler of each step's examples."""

    data: Dataset
    sampler: StepSampler


@dataclass(frozen=True, eq=False)
class StepDataLoader:
    """Loads one process's micro-batches of step n, n + 1, ..., without an end.

    Args:
        streams: Sources by name.
        micro_batch: Examples in one forward pass of a process.
        first: Returns the first step; called when an iteration begins.
        mixture: Decides which stream each step draws; None: always "main".
        rank: The number of this process, from 0.
        world_size: Number of processes that share each step's examples.
    """

    streams: Mapping[str, Stream]
    micro_batch: int
    first: Callable[[], int]
    mixture: Mixture | None = None
    _: KW_ONLY
    rank: int = 0
    world_size: int = 1

    def __iter__(self) -> Iterator[list[dict[str, Batch]]]:
        """Yield each step's micro-batches, as `at` returns them."""
        yield from map(self.at, itertools.count(self.first()))

    def at(self, step: int) -> list[dict[str, Batch]]:
        """Return one step's micro-batches, each under the name of its stream.

        Each process has its shard of the step's examples, and as many micro-batches as any other,
        since all take part in every exchange. `PaddingBatch`es make up for missing ones.
        """
        name, visit = (MAIN, step) if self.mixture is None else self.mixture.at(step)
        stream = self.streams[name]
        indices = stream.sampler.indices(visit)
        own = micro_batches(shard(indices, self.rank, self.world_size), self.micro_batch)
        found: list[dict[str, Batch]] = [{name: stream.data.batch(each)} for each in own]
        missing = num_micro_batches(len(indices), self.micro_batch, self.world_size) - len(own)
        padding = [PaddingBatch({name: stream.data.batch(indices[:1])}) for _ in range(missing)]
        return found + padding
