"""Probes with one hidden layer: of all layers and seeds at once.

Legend: N units (texts or words), B batch, K layers, S seeds, D width, H hidden units, C labels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis.probes.states import Probed
from transfer_cli.optim.eager import AdamW
from transfer_cli.progress import progress
from transfer_cli.seeds import derive

HIDDEN = 100
LEARNING_RATE = 1e-3
BATCH = 64
MOST_EPOCHS = 100
PATIENCE = 5
"""Epochs without a lower loss on validation after which a probe has ended."""

_PORTION = 1024


class MLPProbes(NamedTuple):
    """A probe for each seed and layer: `first` `[S, K, D, H]`, `second` `[S, K, H, C]`, biases."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor

    @classmethod
    def initial(cls, seeds: Sequence[int], layers: int, width: int, classes: int) -> "MLPProbes":
        """Return probes as `nn.Linear` begins, each seed with numbers of its own."""
        sizes = ((width, HIDDEN), (1, HIDDEN), (HIDDEN, classes), (1, classes))
        fans = (width, width, HIDDEN, HIDDEN)
        by_kind: list[list[Tensor]] = [[] for _ in sizes]
        for seed in seeds:
            generator = torch.Generator().manual_seed(derive(seed, "mlp probe"))
            for tensors, size, fan_in in zip(by_kind, sizes, fans, strict=True):
                bound = fan_in**-0.5
                tensor = torch.empty(layers, *size).uniform_(-bound, bound, generator=generator)
                tensors.append(tensor)
        return cls(*(torch.stack(tensors) for tensors in by_kind))

    def logits(self, states_SKBD: Tensor) -> Tensor:
        """Return `[S, K, B, C]`; states may lack the first dimension."""
        hidden_SKBH = (states_SKBD @ self.first + self.first_bias).relu()
        return hidden_SKBH @ self.second + self.second_bias

    def predicted(self, states_NKD: Tensor) -> Tensor:
        """Return the likeliest label, `[S, K, N]`."""
        with torch.no_grad():
            parts = states_NKD.split(_PORTION)
            return torch.cat([self.logits(part.transpose(0, 1)).argmax(-1) for part in parts], -1)

    def losses(self, units: Probed) -> Tensor:
        """Return the mean loss of each, `[S, K]`."""
        sums_SK = self.first.new_zeros(self.first.shape[:2])
        with torch.no_grad():
            for states, label in zip(
                units.states.split(_PORTION), units.label.split(_PORTION), strict=True
            ):
                logits_SKNC = self.logits(states.transpose(0, 1))
                label_SKN = label.expand(logits_SKNC.shape[:-1])
                sums_SK += _losses(logits_SKNC, label_SKN, "none").view_as(label_SKN).sum(-1)
        return sums_SK / len(units.label)


def fit_probes(train: Probed, validation: Probed, classes: int, seeds: Sequence[int]) -> MLPProbes:
    """Return Adam's probes of standardised states, each with the best weights on other units."""
    layers, width = train.states.shape[1:]
    probes = MLPProbes.initial(seeds, layers, width, classes)
    for parameter in probes:
        parameter.requires_grad_()
    optimizer = AdamW(probes, lr=LEARNING_RATE, weight_decay=0.0)
    best = [parameter.detach().clone() for parameter in probes]
    lowest_SK = torch.full((len(seeds), layers), float("inf"))
    waited_SK = torch.zeros_like(lowest_SK, dtype=torch.int64)
    with progress("mlp probes", None, " epochs") as more:
        for epoch in range(MOST_EPOCHS):
            _epoch(probes, train, optimizer, [derive(seed, "mlp order", epoch) for seed in seeds])
            loss_SK = probes.losses(validation)
            better_SK = (loss_SK < lowest_SK) & (waited_SK < PATIENCE)
            lowest_SK = torch.where(better_SK, loss_SK, lowest_SK)
            for kept, current in zip(best, probes, strict=True):
                kept[better_SK] = current.detach()[better_SK]
            ended_SK = waited_SK >= PATIENCE
            waited_SK = torch.where(better_SK, 0, waited_SK + 1).masked_fill(ended_SK, PATIENCE)
            more(1)
            if bool((waited_SK >= PATIENCE).all()):
                break
    return MLPProbes(*best)


def _epoch(
    probes: MLPProbes, train: Probed, optimizer: torch.optim.Optimizer, seeds: Sequence[int]
) -> None:
    order_SN = torch.stack([
        torch.randperm(len(train.label), generator=torch.Generator().manual_seed(seed))
        for seed in seeds
    ])  # fmt: skip
    for at_SB in order_SN.split(BATCH, dim=1):
        logits_SKBC = probes.logits(train.states[at_SB].transpose(1, 2))
        label_SKB = train.label[at_SB][:, None].expand(logits_SKBC.shape[:-1])
        loss = _losses(logits_SKBC, label_SKB, "sum")
        optimizer.zero_grad()
        # The probes share nothing, so the gradient of the sum is each one's own.
        (loss / at_SB.shape[1]).backward()
        optimizer.step()


def _losses(logits_SKNC: Tensor, label_SKN: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(logits_SKNC.flatten(0, 2), label_SKN.flatten(), reduction=reduction)
