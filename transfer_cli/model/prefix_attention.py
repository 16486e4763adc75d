"""Learned keys and values that all queries see through a gate (LLaMA-Adapter; Zhang et al. 2023).

Legend: B batch, H heads of queries, G heads of keys and values, T queries, P learned keys, W width
of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.added import Added
from transfer_cli.model.backbone import INITIAL_STD
from transfer_cli.model.products import PLACE, ProductCounter


class PrefixAttention(Added):
    """tanh(g) softmax(Q K^T / sqrt(W)) V over learned K and V, to be added to an attention.

    It starts at zero: g, one number a head, is 0. K and V belong to no position: keys are not
    rotated, every query sees all of them, and neither masks nor caches know of them. Two softmaxes
    instead of one over both kinds of keys are what leaves the attention as it was (section 3.2).

    The paper makes K and V from a prompt by the block's frozen projections; here they are learned
    as they are, so that an edit of a projection does not reach them.

    Args:
        length: P.
        heads: H.
        kv_heads: G, a divisor of H.
        head_width: W.
    """

    kind = "learned keys and values"
    in_graphs = False

    def __init__(self, length: int, *, heads: int, kv_heads: int, head_width: int) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.empty(kv_heads, length, head_width))
        self.value = nn.Parameter(torch.empty(kv_heads, length, head_width))
        self.gate = nn.Parameter(torch.zeros(heads))
        for parameter in (self.key, self.value):
            nn.init.normal_(parameter, std=INITIAL_STD)

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """Count scores, then sums of values; of both, what is learnt and what it multiplies."""
        _, length, head_width = self.key.shape
        size, trains = self.gate.numel() * length * head_width, counter.trains(self)
        counter.add(PLACE, size, needs_grad=needs_grad, trains=needs_grad or trains)
        counter.add(PLACE, size, needs_grad=needs_grad or trains, trains=needs_grad or trains)
        return needs_grad or trains

    def forward(self, query_BHTW: Tensor) -> Tensor:
        """Return what is added to the mixed values, `[B, H, T, W]`."""
        batch, heads = query_BHTW.shape[:2]
        sharing = heads // self.key.shape[0]
        key, value = (
            learned.to(query_BHTW.dtype).repeat_interleave(sharing, dim=0).expand(batch, -1, -1, -1)
            for learned in (self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query_BHTW, key, value)
        return self.gate.tanh().to(attended.dtype)[:, None, None] * attended
