"""Self-attention (Vaswani et al. 2017, section 3.2).

Legend: B batch, H heads, T positions, D width, W width of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.key_values import LayerKeyValues


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence on itself, with biases on all four products.

    Queries, keys and values are one packed matrix. Attention runs through torch's fused kernels.

    Args:
        width: D; a multiple of `heads`.
        heads: H.
        dropout: On the attention probabilities, in training. The fused CPU kernels have none, so a
            value above 0 costs time and memory there.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.packed = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(
        self,
        hidden_BTD: Tensor,
        allowed: Tensor | None,
        *,
        causal: bool,
        kept: LayerKeyValues | None = None,
    ) -> Tensor:
        """Return `[B, T, D]`.

        Args:
            hidden_BTD: The input.
            allowed: `attention_mask` of the batch; None when `causal` says everything.
            causal: Position t sees positions up to t only. Ignored when `allowed` is given.
            kept: Keys and values of positions before these, which are seen too; it takes up those
                of these.
        """
        query, key, value = self._split(hidden_BTD)
        if kept is not None:
            key, value = kept.extend(key, value)
        dropout = self.dropout if self.training else 0.0
        mixed_BHTW = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout,
            is_causal=causal and allowed is None,
        )  # fmt: skip
        out: Tensor = self.output(mixed_BHTW.transpose(1, 2).flatten(2))
        return out

    def weights(self, hidden_BTD: Tensor, allowed: Tensor | None, *, causal: bool) -> Tensor:
        """Return the attention probabilities `[B, H, T, T]`, for inspection; no dropout."""
        query, key, _ = self._split(hidden_BTD)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -math.inf)
        elif causal:
            above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(above, -math.inf)
        return scores.softmax(-1)

    def _split(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Cut before the heads are: gradients of the three are then joined by one copy, not two.
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.packed(hidden_BTD).chunk(3, dim=2)
        )
        return query, key, value


def attention_mask(mask_BT: Tensor, *, causal: bool) -> Tensor:
    """Return which keys each query may see, `[B, 1, T, T]` bool, where there is padding.

    A position always sees itself: a padded row that saw no key at all would be NaN, and NaN times a
    zero mask is still NaN in the backward pass.
    """
    positions = mask_BT.shape[1]
    allowed = mask_BT[:, None, None, :].expand(-1, 1, positions, -1)
    if causal:
        below = torch.ones(positions, positions, dtype=torch.bool, device=mask_BT.device).tril()
        allowed = allowed & below
    itself = torch.eye(positions, dtype=torch.bool, device=mask_BT.device)
    return allowed | itself
