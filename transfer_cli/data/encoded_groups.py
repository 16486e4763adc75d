"""Examples of several sequences each: the choices of a question, the candidates of a turn.

Legend: B examples, C sequences of an example, T positions.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.encoded_task import EncodedRows


class EncodedGroups:
    """Examples with several sequences each, a row an example; batches are `[B, C, T]`.

    Args:
        sequences: All their sequences, those of one example after the other.
        counts: How many sequences each example has, at least one.
        targets: Further keys of a batch, a value for each example.

    Attributes:
        lengths: The length of each example's longest sequence.
    """

    def __init__(
        self,
        examples: Sequence[Any],
        sequences: EncodedRows,
        counts: Sequence[int],
        pad: int,
        targets: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    ) -> None:
        self.examples = examples
        self.example_of = np.arange(len(examples))
        self._sequences = sequences
        self._counts = np.array(counts, dtype=np.int64)
        self._starts = starts = np.cumsum(self._counts) - self._counts
        self._fill = {"tokens": pad, "mask": False, "segment": 0}
        self._targets = {name: np.asarray(values) for name, values in targets.items()}
        self.lengths = np.maximum.reduceat(sequences.lengths, starts)
        self.num_cut = int(np.logical_or.reduceat(sequences.is_cut, starts).sum())

    def add(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a key to all batches, with a value for each example."""
        self._targets[name] = values

    def add_answers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a key to all batches, with a value for each thing that is answered: an example."""
        self.add(name, values)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return what `EncodedRows` does, `[B, C, T]`, with `index` and the keys of `targets`."""
        index_B = np.asarray(indices, dtype=np.int64)
        counts_B = self._counts[index_B]
        place_C = np.arange(counts_B.max())
        is_there_BC = place_C < counts_B[:, None]
        # Any sequence stands in for a missing one, until all of it is padding.
        rows_BC = self._starts[index_B, None] + np.where(is_there_BC, place_C, 0)
        sequences = self._sequences.batch(rows_BC.ravel())
        is_there_BC1 = torch.from_numpy(is_there_BC)[..., None]
        batch = {
            name: value.unflatten(0, rows_BC.shape).where(
                is_there_BC1, torch.tensor(self._fill.get(name, IGNORE), dtype=value.dtype)
            )
            for name, value in sequences.items()
            if name != "index"
        }
        batch["index"] = torch.from_numpy(index_B.copy())
        for name, values in self._targets.items():
            batch[name] = torch.from_numpy(values[index_B])
        return batch
