"""Position kinds, by name: embeddings, rotated queries and keys, biases of scores.

Legend: B batch, H heads, T positions, S positions including cached ones, E size of an embedding, W
width of a head, F frequencies.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from transfer_cli.model.attention import AttentionInputs, RelativeScores
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.shape import BackboneShape, Rotary, RotaryScaling


class Positions(nn.Module):
    """Base class of position kinds; built from a `BackboneShape`.

    Positions, `[B, T]`, have one row, `[1, T]`, where they are the same in all texts.
    """

    def embed(self, token_BTE: Tensor, position_BT: Tensor) -> Tensor:
        """Return token embeddings with positions added, `[B, T, E]`; by default unchanged."""
        return token_BTE

    def add_to_attention(
        self, inputs: Sequence[AttentionInputs], position_BT: Tensor
    ) -> Sequence[AttentionInputs]:
        """Return the attention inputs of each kind of block with positions; by default unchanged.

        A kind that rotates queries and keys sets `rotate`; a kind that adds to the scores makes
        `attn_mask` a float mask.
        """
        return inputs


class LearnedPositions(nn.Embedding, Positions):
    """An embedding of each position, added to the token's (BERT, GPT-2)."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__(shape.positions, shape.embedding_size)

    def embed(self, token_BTE: Tensor, position_BT: Tensor) -> Tensor:
        summed: Tensor = token_BTE + self(position_BT)
        return summed


class SinusoidalPositions(Positions):
    """Fixed sinusoids, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    table: Tensor

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        # The sinusoids have an RMS of 0.7, new embeddings 0.02: scale them to the same size.
        self.scale = math.sqrt(shape.embedding_size)
        table = sinusoids(shape.positions, shape.embedding_size)
        self.register_buffer("table", table, persistent=False)

    def embed(self, token_BTE: Tensor, position_BT: Tensor) -> Tensor:
        return token_BTE * self.scale + self.table[position_BT]


class RotaryPositions(Positions):
    """Queries and keys turned by angles that grow with the position (Su et al. 2021).

    So a score depends on the distance alone. Pairs of a head's numbers are turned: number m of the
    first half of the rotated ones with number m of the second half.
    """

    frequency: Tensor
    local_frequency: Tensor

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        rotary, self.has_windows = shape.rotary, shape.attention == "window"
        for name, angles in (("frequency", rotary), ("local_frequency", rotary.local)):
            frequency_F = rotary_frequencies(angles, shape.head_size)
            self.register_buffer(name, frequency_F, persistent=False)

    def add_to_attention(
        self, inputs: Sequence[AttentionInputs], position_BT: Tensor
    ) -> Sequence[AttentionInputs]:
        whole = _make_rotation(position_BT, self.frequency)
        if not self.has_windows:
            return [replace(kind, rotate=whole) for kind in inputs]
        without, within = inputs
        local = _make_rotation(position_BT, self.local_frequency)
        return [replace(without, rotate=whole), replace(within, rotate=local)]


def _make_rotation(
    position_BT: Tensor, frequency_F: Tensor
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    # In float32: half precision would round large positions.
    angle_B1TF = position_BT[:, None, :, None].float() * frequency_F.float()
    cos, sin = angle_B1TF.cos(), angle_B1TF.sin()
    cos_B1TR, sin_B1TR = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
    return lambda query_BHTW, key_BHTW: (
        _rotate(query_BHTW, cos_B1TR, sin_B1TR), _rotate(key_BHTW, cos_B1TR, sin_B1TR)
    )  # fmt: skip


def _rotate(states_BHTW: Tensor, cos_B1TR: Tensor, sin_B1TR: Tensor) -> Tensor:
    turning, rest = states_BHTW.tensor_split((cos_B1TR.shape[-1],), dim=-1)
    first, second = turning.chunk(2, dim=-1)
    # Both halves at once: on a GPU, each operation on a single token costs the host a launch.
    turned = torch.cat([second, first], dim=-1) * sin_B1TR + turning * cos_B1TR
    # Put together even with nothing: kernels of attention want whole heads side by side.
    return torch.cat([turned.to(rest.dtype), rest], dim=-1)


class DistanceBias(Positions):
    """A learned bias of each head for each distance (T5; Raffel et al. 2020, section 2.1).

    Distances share a bias in ranges that grow with them; all blocks have the same. In a causal
    model all ranges are of keys up to the query's own position.
    """

    ranges: ClassVar[int] = 32
    farthest: ClassVar[int] = 128
    """The distance from which on all have one bias."""
    looks_ahead: bool
    """Whether half of the ranges are of keys behind their query."""
    bias: nn.Embedding

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.bias = nn.Embedding(self.ranges, shape.heads)
        self.looks_ahead = shape.direction == "bidirectional"

    def add_to_attention(
        self, inputs: Sequence[AttentionInputs], position_BT: Tensor
    ) -> Sequence[AttentionInputs]:
        return [
            replace(kind, attn_mask=self._mask(kind, position_BT), causal=False) for kind in inputs
        ]

    def _mask(self, inputs: AttentionInputs, position_BT: Tensor) -> Tensor:
        """Return floats to add to the scores, broadcast to `[B, H, T, S]`."""
        new, seen = position_BT.shape[1], inputs.attn_mask
        if seen is not None:
            cached = seen.shape[-1] - new
        else:  # one new token sees all cached ones, and has no mask
            cached = int(position_BT[0, 0]) if new == 1 else 0
        place_S = torch.arange(cached + new, device=position_BT.device)
        distance_TS = place_S - place_S[cached:, None]
        bias_1HTS: Tensor = self.bias(self._bucket(distance_TS)).permute(2, 0, 1)[None]
        if inputs.causal:
            seen = distance_TS <= 0
        return bias_1HTS if seen is None else bias_1HTS.masked_fill(~seen, -math.inf)

    def _bucket(self, distance_TS: Tensor) -> Tensor:
        """Return the row of each distance."""
        rows = self.ranges // 2 if self.looks_ahead else self.ranges
        exact, far = rows // 2, distance_TS.abs()
        share = (far.clamp(min=1) / exact).log() / math.log(self.farthest / exact)
        grown = (exact + (share * (rows - exact)).long()).clamp(max=rows - 1)
        row_TS = torch.where(far < exact, far, grown)
        return row_TS + rows * (distance_TS > 0) if self.looks_ahead else row_TS


class RelativeBias(DistanceBias, LearnedPositions):
    """Learned embeddings, and biases of distances to both sides (MPNet, Song et al. 2020)."""

    looks_ahead = True

    def __init__(self, shape: BackboneShape) -> None:
        LearnedPositions.__init__(self, shape)
        self.bias = nn.Embedding(self.ranges, shape.heads)


class RelativePositions(Positions):
    """Distances alone, in the scores of each block (Transformer-XL, Dai et al. 2019, section 3.3).

    score(i, j) = ((q_i + u) k_j + (q_i + v) W_R R_(i-j)) / sqrt(W), with sinusoids R, of which
    dropout takes as much as of embeddings. All blocks share u and v; each has its own W_R. There is
    no longest sequence. It is for causal models: a key is never later than its query.
    """

    initial_std: ClassVar[float] = 0.02

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.width = shape.width
        size = shape.heads * shape.head_size
        self.content, self.position = (
            nn.Parameter(nn.init.normal_(torch.empty(size), std=self.initial_std)) for _ in range(2)
        )
        self.drop = Dropout(shape.dropout)

    def add_to_attention(
        self, inputs: Sequence[AttentionInputs], position_BT: Tensor
    ) -> Sequence[AttentionInputs]:
        keys = inputs[0].earlier + position_BT.shape[1]
        place_S = torch.arange(keys - 1, -1, -1, device=position_BT.device)
        distance_SD = self.drop(distance_encodings(place_S, self.width).to(self.content.dtype))
        relative = RelativeScores(self.content, self.position, distance_SD)
        return [replace(kind, relative=relative) for kind in inputs]


POSITIONS: dict[str, type[Positions]] = {
    "learned": LearnedPositions, "sinusoidal": SinusoidalPositions, "rotary": RotaryPositions,
    "relative_bias": RelativeBias, "bias": DistanceBias, "relative": RelativePositions,
}  # fmt: skip


def count_positions(mask_BT: Tensor, cached: int = 0) -> Tensor:
    """Return the position of each token, `[B, T]`, after `cached` earlier ones."""
    # Counting real tokens gives 0, 1, 2, ... for left and right padding alike.
    return (mask_BT.long().cumsum(1) + (cached - 1)).clamp(min=0)


def positions_in_documents(position_BT: Tensor, document_BT: Tensor) -> Tensor:
    """Return positions that count from 0 in each document, `[B, T]`."""
    begins_BT = torch.ones_like(document_BT, dtype=torch.bool)
    begins_BT[:, 1:] = document_BT[:, 1:] != document_BT[:, :-1]
    first_BT = torch.where(begins_BT, position_BT, 0).cummax(1).values
    return position_BT - first_BT


def rotary_frequencies(rotary: Rotary, head_width: int) -> Tensor:
    """Return the angle a position of each pair of a head's numbers, `[F]`."""
    rotated = rotary.rotated_size(head_width)
    frequency_F = rotary.base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    if rotary.scaling is not None and rotary.scaling.kind == "linear":
        frequency_F = frequency_F / rotary.scaling.factor
    elif rotary.scaling is not None:
        frequency_F = _scale_as_llama3(frequency_F, rotary.scaling)
    return frequency_F.float()


def _scale_as_llama3(frequency_F: Tensor, scaling: RotaryScaling) -> Tensor:
    """Divide the lowest frequencies, leave the highest, blend between them (Llama 3.1)."""
    waves = scaling.original_positions * frequency_F / (2 * math.pi)
    unscaled = (waves - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    unscaled = unscaled.clamp(0, 1)
    return frequency_F * (unscaled + (1 - unscaled) / scaling.factor)


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


def distance_encodings(distance_S: Tensor, width: int) -> Tensor:
    """Return the encodings of distances, `[S, width]`: all sines, then all cosines.

    The frequencies are those of `sinusoids`, whose columns take turns (Dai et al. 2019 keep them
    apart, and so does their code).
    """
    exponent = torch.arange(0, width, 2, device=distance_S.device, dtype=torch.float32) / width
    angle = distance_S[:, None].float() / 10_000**exponent
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]
