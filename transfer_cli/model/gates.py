"""Leaves heads and sub-layers out of a pass, or weighs them, without changing the model.

The factors have no parameters: they are handed to the blocks with what their attention is given.
A sub-layer without its update lets the residual stream pass. What the residual form does to the
stream itself stays: the norms of `post` and `tutorial`.

Legend: L blocks, counted by place: a block that several places share is gated at each by itself.
H heads of queries, B sequences.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

import torch
from torch import Tensor

from transfer_cli.model.attention import Gates
from transfer_cli.model.backbone import Backbone


@contextmanager
def gated(
    backbone: Backbone,
    heads: Tensor,
    *,
    without_attention: Set[int] = frozenset(),
    without_feed_forward: Set[int] = frozenset(),
) -> Iterator[None]:
    """Multiply what blocks compute while the context is active.

    Args:
        backbone: It stays unchanged.
        heads: The factor of each head's mixed values, before the output projection: `[L, H]`, or
            `[L, B, H]` for each sequence of the batch. Other devices' are moved.
        without_attention: The places whose attention does not update the residual stream.
        without_feed_forward: Those whose feed-forward layer, and what is beside it, does not.

    Raises:
        ValueError: There are factors of other places or heads than the model has.
    """
    shape = backbone.shape
    if (heads.shape[0], heads.shape[-1]) != (shape.depth, shape.heads):
        raise ValueError(
            f"heads must be of {shape.depth} places and {shape.heads} heads, got "
            f"{list(heads.shape)}"
        )
    device = backbone.token_embedding.weight.device
    before: Sequence[Gates] | None = backbone.gates
    backbone.gates = [
        Gates(own, float(place not in without_attention), float(place not in without_feed_forward))
        for place, own in enumerate(heads.to(device).unbind())
    ]
    try:
        yield
    finally:
        backbone.gates = before


def all_heads(backbone: Backbone) -> Tensor:
    """Return the factors that leave no head out, `[L, H]`: ones."""
    return torch.ones(backbone.shape.depth, backbone.shape.heads)
