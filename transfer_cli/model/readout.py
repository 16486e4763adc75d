"""Readouts: from the hidden states of all layers to the one that the heads see.

Legend: B batch, T positions, D width, L blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.added import Added

EPSILON = 1e-5


class Readout(nn.Module, ABC):
    """What a model reads of its L + 1 hidden states."""

    layers: tuple[int, ...] | None = None
    """Which of the states it reads, as indices; None: all of them."""

    @abstractmethod
    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return `[B, T, D]` from L + 1 of them."""


class TopLayer(Readout):
    """The readout of most models: the last hidden state."""

    layers = (-1,)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return the last of them, `[B, T, D]`."""
        return states[-1]


class ScalarMix(Readout, Added):
    """h = gamma x sum_j softmax(w)_j H_j, which begins as the plain average (Peters et al. 2018).

    Args:
        states: L + 1.
        norm: Whether each state is brought to mean 0 and variance 1 first, the last one included
            (of `pre`, that is the state after the final norm).
    """

    keeps_outputs = False
    kind = "a mix of its layers"

    def __init__(self, states: int, *, norm: bool) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(states))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return the mix, `[B, T, D]`."""
        mixed_BTD = torch.zeros_like(states[0])
        # One state at a time: all of them normalised would be another copy of the hidden states.
        for share, state_BTD in zip(self.shares(), states, strict=True):
            normed_BTD = (
                F.layer_norm(state_BTD, state_BTD.shape[-1:], eps=EPSILON)
                if self.norm
                else state_BTD
            )
            mixed_BTD = mixed_BTD + share * normed_BTD
        return self.gamma * mixed_BTD

    def shares(self) -> Tensor:
        """Return how much each layer counts, `[L + 1]`; they sum to 1."""
        return self.weight.softmax(0)
