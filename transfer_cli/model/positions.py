"""Position kinds, by name: learned and sinusoidal embeddings.

Legend: B batch, T positions, E size of an embedding.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from transfer_cli.model.attention import AttentionInputs

if TYPE_CHECKING:
    from transfer_cli.model.shape import BackboneShape


class Positions(nn.Module):
    """Base class of position kinds; built from a `BackboneShape`."""

    def embed(self, token_BTE: Tensor, position_BT: Tensor) -> Tensor:
        """Return token embeddings with positions added, `[B, T, E]`; by default unchanged."""
        return token_BTE

    def attend(
        self, inputs: Sequence[AttentionInputs], position_BT: Tensor
    ) -> Sequence[AttentionInputs]:
        """Return the attention inputs of each block with positions added; by default unchanged.

        A kind that rotates queries and keys sets `rotate`; a kind that adds to the scores makes
        `attn_mask` a float mask.
        """
        return inputs


class LearnedPositions(nn.Embedding, Positions):
    """An embedding of each position, added to the token's (BERT, GPT-2)."""

    def __init__(self, shape: "BackboneShape") -> None:
        super().__init__(shape.positions, shape.embedding_size)

    def embed(self, token_BTE: Tensor, position_BT: Tensor) -> Tensor:
        """Return the sums, `[B, T, E]`."""
        summed: Tensor = token_BTE + self(position_BT)
        return summed


class SinusoidalPositions(Positions):
    """Fixed sinusoids, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    table: Tensor

    def __init__(self, shape: "BackboneShape") -> None:
        super().__init__()
        # The sinusoids have an RMS of 0.7, new embeddings 0.02: scale them to the same size.
        self.scale = math.sqrt(shape.embedding_size)
        table = sinusoids(shape.positions, shape.embedding_size)
        self.register_buffer("table", table, persistent=False)

    def embed(self, token_BTE: Tensor, position_BT: Tensor) -> Tensor:
        """Return the sums, `[B, T, E]`."""
        return token_BTE * self.scale + self.table[position_BT]


POSITIONS: dict[str, type[Positions]] = {
    "learned": LearnedPositions, "sinusoidal": SinusoidalPositions,
}  # fmt: skip


def count_positions(mask_BT: Tensor, cached: int = 0) -> Tensor:
    """Return the position of each token, `[B, T]`, after `cached` earlier ones."""
    # Counting real tokens gives 0, 1, 2, ... for left and right padding alike.
    return (mask_BT.long().cumsum(1) + (cached - 1)).clamp(min=0)


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the fixed position table `[positions, width]` (Vaswani et al. 2017, section 3.5).

    Column 2i is sin(p / 10000^(2i/width)), column 2i + 1 the cosine; an odd last column is a sine.
    """
    position = torch.arange(positions, dtype=torch.float64)[:, None]
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
    angle = position / 10_000**exponent
    table = torch.empty(positions, width, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : width // 2]
    return table.float()
