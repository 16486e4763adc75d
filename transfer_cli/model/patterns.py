"""Attention patterns, by name: which keys the queries of each block see.

Legend: B batch, T positions, S positions including cached ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from transfer_cli.model.attention import AttentionInputs

if TYPE_CHECKING:
    from transfer_cli.model.shape import BackboneShape


class AttentionPattern(nn.Module, ABC):
    """Base class of attention patterns; built from a shape, whose direction it follows."""

    def __init__(self, shape: "BackboneShape") -> None:
        super().__init__()
        self.causal = shape.direction == "causal"
        self.depth = shape.depth

    @abstractmethod
    def forward(self, mask_BT: Tensor, *, padded: bool, cached: int) -> Sequence[AttentionInputs]:
        """Return the attention inputs of every block, bottom first; blocks may share one object.

        Args:
            mask_BT: True at real tokens.
            padded: Whether it is False anywhere.
            cached: Number of earlier positions in the cache; with a cache there is no padding.
        """


class FullAttention(AttentionPattern):
    """A query sees all real keys; in a causal model only those up to its own position."""

    def forward(self, mask_BT: Tensor, *, padded: bool, cached: int) -> Sequence[AttentionInputs]:
        """Return the same inputs for every block."""
        if cached:
            inputs = AttentionInputs(cached_causal_mask(mask_BT.shape[1], cached, mask_BT.device))
        elif padded:
            inputs = AttentionInputs(attention_mask(mask_BT, causal=self.causal))
        else:
            inputs = AttentionInputs(causal=self.causal)
        return [inputs] * self.depth


PATTERNS: dict[str, type[AttentionPattern]] = {"full": FullAttention}


def attention_mask(mask_BT: Tensor, *, causal: bool) -> Tensor:
    """Return which keys each query sees, `[B, 1, T, T]` bool, in a padded batch.

    A position always sees itself: a padded row without a key would be NaN, and NaN times a zero
    mask is still NaN in the backward pass.
    """
    positions = mask_BT.shape[1]
    attn_mask = mask_BT[:, None, None, :].expand(-1, 1, positions, -1)
    if causal:
        below = torch.ones(positions, positions, dtype=torch.bool, device=mask_BT.device).tril()
        attn_mask = attn_mask & below
    itself = torch.eye(positions, dtype=torch.bool, device=mask_BT.device)
    return attn_mask | itself


def cached_causal_mask(new: int, cached: int, device: torch.device) -> Tensor | None:
    """Return which keys the last `new` positions see, `[T, S]`; None if they see all keys."""
    if new == 1:
        return None
    return torch.ones(new, cached + new, dtype=torch.bool, device=device).tril(cached)
