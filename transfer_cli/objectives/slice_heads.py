"""Slices: parts of the examples that heads of their own learn, too.

Legend: B batch, K slices.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.objectives.beside_main_head import BesideMainHead
from transfer_cli.runs.slices import Slice
from transfer_cli.seeds import ExampleNoise


class SliceHeads(BesideMainHead[Objective]):
    """The main loss on each slice, by a head of the slice's own.

    So what is special to a slice has weights to be learnt in, and the backbone learns it; the main
    head answers as before. This is the simplest form of slice-based learning (Chen et al. 2019),
    without its indicator heads and its attention over slices.

    Args:
        parts: The slices, by name.
    """

    def __init__(self, parts: Mapping[str, Slice]) -> None:
        if not parts:
            raise ValueError("parts is empty; give slices, such as parts.short.length=[0,6]")
        self.parts = parts

    @property
    def terms(self) -> Sequence[str]:
        """The names of the slices."""
        return tuple(self.parts)

    def main_of(self, info: TaskInfo) -> Objective:
        """See `BesideMainHead`."""
        if info.main is None:
            raise ConfigError(
                "objective: slices are a further loss; take +objective@losses.slices=slice_heads"
            )
        return info.main

    @property
    def key(self) -> str:
        """The key in a batch of which slices its examples are in, `[B, K]` bool."""
        return f"slices_{self.info.name}"

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Prepare as the main objective does."""
        return self.main.prepare(batch, noise)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets in each slice; 0 where no example is in it."""
        found = {}
        for term, member_B in self._members(batch):
            kept = {key: value[member_B] for key, value in batch.items() if value.dim()}
            found[term] = self.main.counts(kept)["loss"]
        return found

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the loss of each slice's head, summed over its examples."""
        found = {}
        for term, member_B in self._members(batch):
            results = self.beside_main[term].example_results(model, batch, encoded)
            if results is None:
                name = type(self.main).__name__
                raise RunError(f"losses.{self.info.name}: {name} has no loss of single examples")
            found[term] = torch.where(member_B, results.loss, 0).sum()
        return found

    def _members(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        if self.key not in batch:
            raise RunError(
                f"losses.{self.info.name}: slices come with a run's own data; evaluate the main "
                "loss, with slices of its own"
            )
        yield from zip(self.parts, batch[self.key].unbind(1), strict=True)
