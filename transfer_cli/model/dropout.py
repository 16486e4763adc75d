"""Dropout with fast random numbers on a CPU.

torch draws one 32-bit number an element, on one core: at the tutorial's size that takes a sixth of
the time of all matrix products of a step. Sixteen bits an element, from a generator four times as
fast, suffice; the backward pass draws them again, so that nothing is kept for it.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = 2**16
"""Probabilities are multiples of 1 / 65,536: 0.1 becomes 0.1000061."""

LEAST_ELEMENTS = 2**15
"""Smaller tensors use torch's dropout: seeding the fast generator would take longer."""


class Dropout(nn.Dropout):
    """Inverted dropout (Srivastava et al. 2014); torch's generator seeds the random numbers."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        if not self.training or not self.p:
            return hidden
        is_fast = hidden.device.type == "cpu" and hidden.numel() >= LEAST_ELEMENTS
        if not is_fast or torch.compiler.is_compiling():
            return F.dropout(hidden, self.p)
        dropped: Tensor = _Dropped.apply(hidden, self.p, draw_seed())  # type: ignore[no-untyped-call]
        return dropped


def draw_seed() -> int:
    """Return a seed for `KeepFactors` from torch's generator."""
    return int(torch.randint(2**63 - 1, ()))


class KeepFactors:
    """Draws what dropout multiplies elements with; the same again from the same seed."""

    def __init__(self, probability: float, seed: int) -> None:
        dropped = min(LEVELS - 1, round(probability * LEVELS))
        self._least = dropped - LEVELS // 2
        self._scale = LEVELS / (LEVELS - dropped)
        self._generator = np.random.SFC64(seed)

    def next_like(self, values: Tensor) -> Tensor:
        """Return the factors of the next elements, in the shape and type of `values`."""
        count = values.numel()
        words = self._generator.random_raw(-(-count // 4))
        draws = torch.from_numpy(words.view(np.int16))[:count].view(values.shape)
        # Written as numbers at once: a comparison's booleans would have to be turned into them.
        kept = torch.ge(
            draws, self._least, out=torch.empty_like(values, memory_format=torch.contiguous_format)
        )
        return kept.mul_(self._scale)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, probability: float, seed: int) -> Tensor:
        ctx.drawn_by = probability, seed
        return KeepFactors(probability, seed).next_like(hidden).mul_(hidden)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = upstream
        return KeepFactors(*ctx.drawn_by).next_like(gradient).mul_(gradient), None, None
