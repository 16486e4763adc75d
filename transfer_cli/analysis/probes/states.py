"""The states that probes read: of every layer, one for each text or each word.

Legend: B batch, T positions, N units (texts or words), K layers, D width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Subject, evenly_spread
from transfer_cli.batch import rows_with_word
from transfer_cli.data.split import Split
from transfer_cli.errors import DataError
from transfer_cli.model.pooling import Pooling, pool
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.seeds import derive

MOST_BYTES = 2**29
"""Of the states of one split: where many layers are wide, fewer units are probed than asked for."""


@dataclass(frozen=True)
class LayersRead:
    """Which of the L + 1 states are read, how, and of how many units of a split at most."""

    layers: Sequence[int]
    pooling: Pooling
    most: int


@dataclass(frozen=True)
class SoughtSplit:
    """A split, with what is to be found in its states.

    Args:
        split: Its batches have `word`, where units are words.
        labels: The number of the label of each unit, in the split's order.
        words: Each word; None: the units are texts.
    """

    split: Split
    labels: Sequence[int]
    words: Sequence[str] | None = None


@dataclass(frozen=True)
class Probed:
    """Units that are probed.

    Args:
        states: `[N, K, D]`, or of one layer `[N, D]`; float32.
        label: `[N]`.
        words: The words; None: the units are texts.
        number: The number of each in its split, `[N]`; empty: they are of none.
    """

    states: Tensor
    label: Tensor
    words: Sequence[str] | None = None
    number: Tensor = field(default_factory=lambda: torch.arange(0))

    def __len__(self) -> int:
        return len(self.label)

    def layer(self, at: int) -> "Probed":
        """Return the same units with the states of one layer, `[N, D]`."""
        return replace(self, states=self.states[:, at])

    def select(self, numbers: Tensor) -> "Probed":
        """Return the units with these numbers."""
        words = None if self.words is None else [self.words[at] for at in numbers.tolist()]
        number = self.number[numbers] if len(self.number) else self.number
        return Probed(self.states[numbers], self.label[numbers], words, number)


PARTS = ("train", "chosen_on", "scored")
Parts = Mapping[str, Probed]
"""`train`, which probes learn from, `chosen_on`, which chooses among them, and `scored`."""


def read_parts(
    subject: Subject, model: TransferModel, splits: Mapping[str, SoughtSplit], selection: LayersRead
) -> Parts:
    """Return the states of all parts, each dimension at mean 0 and variance 1 in `train`.

    Where there is no `chosen_on`, a tenth of the training units are.
    """
    parts = {name: read_states(subject, model, split, selection) for name, split in splits.items()}
    if "chosen_on" not in parts:
        train = parts["train"]
        generator = torch.Generator().manual_seed(derive(subject.seed, "probes", "held out"))
        order_N = torch.randperm(len(train), generator=generator)
        share_held_out = 0.1  # of the training units, where no other units are there to choose by
        held_out = math.ceil(share_held_out * len(train))
        parts["chosen_on"] = train.select(order_N[:held_out])
        parts["train"] = train.select(order_N[held_out:])
    standardise(parts)
    return parts


def read_states(
    subject: Subject, model: TransferModel, sought: SoughtSplit, selection: LayersRead
) -> Probed:
    """Return the states of a split in one pass.

    Of a split with too many units some rows are taken, evenly spread.

    Args:
        subject: Whose batches and precision they are.
        model: It, or one of its shape.
    """
    width = model.backbone.shape.width * (3 if selection.pooling == "concat" else 1)
    most = min(selection.most, max(1, MOST_BYTES // (4 * len(selection.layers) * width)))
    rows, units = len(sought.split.data), len(sought.labels)
    rows_read = evenly_spread(rows, rows if units <= most else max(1, rows * most // units))
    numbers, portions = list[Tensor](), list[Tensor]()
    for row, batch in subject.read_batches(sought.split, rows_read):
        every = Encoding(model, batch).states
        kept = [every[layer] for layer in selection.layers]
        if sought.words is None:
            numbers.append(torch.from_numpy(row))
            vectors = [pool(state, batch["mask"], selection.pooling) for state in kept]
        else:
            at = rows_with_word(batch)
            numbers.append(batch["word"].flatten()[at].cpu())
            vectors = [state.flatten(0, 1)[at] for state in kept]
        portions.append(torch.stack(vectors, 1).float().cpu())
    number_N, order_N = torch.cat(numbers).sort()
    label_N = torch.tensor(sought.labels)[number_N]
    words = None if sought.words is None else [sought.words[at] for at in number_N.tolist()]
    states = torch.cat(portions)
    del portions
    if not bool(states.isfinite().all()):
        raise DataError(
            f"run: states of {subject.opened.path} are not finite, so nothing can learn from them; "
            "try precision=fp32"
        )
    return Probed(states[order_N], label_N, words, number_N)


def standardise(parts: Parts) -> None:
    """Give each dimension mean 0 and variance 1 in `train`, in place."""
    train = parts["train"].states
    for layer in range(train.shape[1]):
        states_ND = train[:, layer].double()
        mean_D, deviation_D = states_ND.mean(0), states_ND.std(0, correction=0)
        # What is the same everywhere says nothing; rounding alone would make it vary.
        rounding = 1e-7
        varies_D = deviation_D > rounding * (mean_D.abs() + 1)
        scale_D = torch.where(varies_D, deviation_D.reciprocal(), 0.0)
        for part in parts.values():
            own_ND = part.states[:, layer]
            own_ND.copy_((own_ND.double() - mean_D) * scale_D)
