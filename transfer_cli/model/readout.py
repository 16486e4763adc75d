"""Readouts: from the hidden states of all layers to the input of the heads.

Legend: B batch, T positions, D width, L blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.added import Added


class Readout(nn.Module, ABC):
    """Reduces the L + 1 hidden states to one."""

    layers: tuple[int, ...] | None = None
    """Indices of the hidden states that it reads; None: all."""

    @abstractmethod
    def forward(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """Return `[B, T, D]` from L + 1 tensors of this shape."""


class TopLayer(Readout):
    """The last hidden state."""

    layers = (-1,)

    def forward(self, hidden_states: Sequence[Tensor]) -> Tensor:
        return hidden_states[-1]


class ScalarMix(Readout, Added):
    """h = gamma x sum_j softmax(w)_j H_j, initially the plain mean (Peters et al. 2018).

    Args:
        count: L + 1.
        norm: Whether each hidden state is first normalised to mean 0 and variance 1, the last one
            included (with `pre`, after the final norm).
    """

    keeps_outputs = False
    kind = "a mix of its layers"

    def __init__(self, count: int, *, norm: bool) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(count))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, hidden_states: Sequence[Tensor]) -> Tensor:
        mixed_BTD = torch.zeros_like(hidden_states[0])
        # One at a time: all of them normalised would be a second copy of the hidden states.
        for weight, state_BTD in zip(self.layer_weights(), hidden_states, strict=True):
            if self.norm:
                state_BTD = F.layer_norm(state_BTD, state_BTD.shape[-1:])
            mixed_BTD = mixed_BTD + weight * state_BTD
        return self.gamma * mixed_BTD

    def layer_weights(self) -> Tensor:
        """Return the weight of each hidden state, `[L + 1]`; they sum to 1."""
        return self.weight.softmax(0)
