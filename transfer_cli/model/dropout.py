"""Dropout whose random numbers do not hold a CPU up.

torch draws one 32-bit number an element, on one core: at the tutorial's size that is a sixth of the
time that all matrix products of a step take. Sixteen bits an element, from a generator four times
as fast, do as well.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = 2**16
"""Probabilities are multiples of 1 / 65,536: 0.1 becomes 0.1000061."""

LEAST_ELEMENTS = 2**15
"""Below, to seed a generator takes longer than torch's own way."""


class Dropout(nn.Dropout):
    """Zero elements at random in training, and scale the others so that the mean stays.

    Srivastava et al. 2014, with the scaling in training. The draws follow from torch's generator.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        if not self.training or not self.p:
            return states
        drawn_here = states.device.type == "cpu" and states.numel() >= LEAST_ELEMENTS
        if not drawn_here or torch.compiler.is_compiling():
            return F.dropout(states, self.p)
        dropped: Tensor = _Masked.apply(states, _kept(states, self.p), self.p)  # type: ignore[no-untyped-call]
        return dropped


def _kept(states: Tensor, probability: float) -> Tensor:
    """Return which elements stay, a bool tensor of the shape of `states`."""
    seed = int(torch.randint(2**63 - 1, ()))
    count = states.numel()
    words = np.random.SFC64(seed).random_raw(-(-count // 4))
    draws = torch.from_numpy(words.view(np.int16))[:count].view(states.shape)
    return draws >= _dropped_levels(probability) - LEVELS // 2


def _dropped_levels(probability: float) -> int:
    return min(LEVELS - 1, round(probability * LEVELS))


class _Masked(torch.autograd.Function):
    """Keeps one byte an element for the backward pass, where torch keeps four."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, kept: Tensor, probability: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = LEVELS / (LEVELS - _dropped_levels(probability))
        return kept.to(states.dtype).mul_(states).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = upstream
        (kept,) = ctx.saved_tensors
        return kept.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), None, None
