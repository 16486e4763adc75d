"""Self-attention (Vaswani et al. 2017, section 3.2).

Legend: B batch, H heads, T queries, S keys, D width, W width of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.kv_cache import LayerKVCache

if TYPE_CHECKING:
    from transfer_cli.model.shape import BackboneShape


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of a block's attention besides its hidden states.

    Args:
        attn_mask: Broadcast to `[B, H, T, S]`: True where a query sees a key, or floats that
            are added to the scores. None: `causal` decides.
        causal: Position t sees only positions up to t. Not together with `attn_mask`.
        kv_cache: Keys and values of earlier positions, which queries also see; the pass appends
            its own.
        rotate: The position kind's rotation of queries and keys, `[B, H, T, W]` each.
    """

    attn_mask: Tensor | None = None
    causal: bool = False
    kv_cache: LayerKVCache | None = None
    rotate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence on itself, with biases in all four projections.

    The input projection packs queries, keys and values. Attention uses torch's fused kernels.
    Dropout, in training, applies to the attention probabilities. The fused CPU kernels do not
    support it, so a value above 0 costs time and memory there.
    """

    def __init__(self, shape: "BackboneShape") -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.attention_dropout
        self.packed = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.on_probabilities: Callable[[Tensor], None] | None = None
        """Called with the attention probabilities `[B, H, T, S]` of a pass; see `captures`."""

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`."""
        query, key, value = self._split(hidden_BTD)
        if inputs.rotate is not None:
            query, key = inputs.rotate(query, key)
        if inputs.kv_cache is not None:
            key, value = inputs.kv_cache.extend(key, value)
        dropout = self.dropout if self.training else 0.0
        if self.on_probabilities is None:
            mixed_BHTW = F.scaled_dot_product_attention(
                query, key, value, attn_mask=inputs.attn_mask, dropout_p=dropout,
                is_causal=inputs.causal,
            )  # fmt: skip
        else:
            probabilities_BHTS = _probabilities(query, key, inputs)
            self.on_probabilities(probabilities_BHTS)
            mixed_BHTW = F.dropout(probabilities_BHTS, dropout) @ value
        out: Tensor = self.output(mixed_BHTW.transpose(1, 2).flatten(2))
        return out

    def _split(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Split before the heads: the backward pass then joins three gradients by one copy, not two.
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.packed(hidden_BTD).chunk(3, dim=2)
        )
        return query, key, value


def _probabilities(query_BHTW: Tensor, key_BHSW: Tensor, inputs: AttentionInputs) -> Tensor:
    """Return the attention probabilities `[B, H, T, S]`, which fused kernels do not materialise."""
    scores = query_BHTW @ key_BHSW.transpose(-2, -1) / math.sqrt(query_BHTW.shape[-1])
    attn_mask = inputs.attn_mask
    if inputs.causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores.softmax(-1)
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -math.inf).softmax(-1)
    return (scores + attn_mask).softmax(-1)
