"""A learnt mix of layers, gamma sum_k softmax(a)_k H_k, and where its centre is.

Learnt as in the papers, with Adam until validation gets worse (Peters et al. 2018; Tenney et al.
2019): at the very minimum of a penalised loss the shares would say more about the penalty, which
one layer alone evades best, or an amplified difference of layers, than about the layers.

Legend: N units (texts or words), B batch, K layers, D width, C labels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis.probes.linear import Given
from transfer_cli.optim.eager import AdamW
from transfer_cli.seeds import derive

RATE = 1e-3
SHARE_RATE = 1e-2
"""That of the shares, which are few, and would else stay where they begin."""

BATCH = 64
MOST_EPOCHS = 100
PATIENCE = 5
"""Epochs without a lower loss on validation after which it has ended."""

_PORTION = 4096


def learnt_shares(train: Given, stopped_on: Given, classes: int, seed: int) -> Tensor:
    """Return the share of each layer, `[K]`; they sum to 1, and begin equal.

    Args:
        train: Standardised states `[N, K, D]`.
        stopped_on: Others, which stop it.
        classes: C.
        seed: Of the order.
    """
    layers, width = train.states.shape[1:]
    raw_K = torch.zeros(layers, requires_grad=True)
    gamma = torch.ones((), requires_grad=True)
    weight_CD = torch.zeros(classes, width, requires_grad=True)
    bias_C = torch.zeros(classes, requires_grad=True)
    groups: list[dict[str, Any]] = [{"params": [raw_K], "lr": SHARE_RATE}]
    optimizer = AdamW(
        [*groups, {"params": [weight_CD, bias_C, gamma]}],
        lr=RATE, weight_decay=0.0,
    )  # fmt: skip

    def loss(states_BKD: Tensor, label_B: Tensor) -> Tensor:
        mixed_BD = gamma * torch.einsum("bkd,k->bd", states_BKD, raw_K.softmax(0))
        return F.cross_entropy(F.linear(mixed_BD, weight_CD, bias_C), label_B, reduction="sum")

    best_K, lowest, waited = raw_K.detach().clone(), float("inf"), 0
    for epoch in range(MOST_EPOCHS):
        generator = torch.Generator().manual_seed(derive(seed, "mix", epoch))
        for at_B in torch.randperm(len(train.label), generator=generator).split(BATCH):
            optimizer.zero_grad()
            (loss(train.states[at_B], train.label[at_B]) / len(at_B)).backward()
            optimizer.step()
        with torch.no_grad():
            portions = zip(stopped_on.states.split(_PORTION), stopped_on.label.split(_PORTION),
                           strict=True)  # fmt: skip
            found = sum(float(loss(*portion)) for portion in portions)
        waited += 1
        if found < lowest:
            best_K, lowest, waited = raw_K.detach().clone(), found, 0
        if waited == PATIENCE:
            break
    return best_K.softmax(0)
