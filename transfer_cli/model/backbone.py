"""Embeddings and blocks: tokens in, the hidden states of every layer out.

Legend: B batch, T positions, D width, L blocks.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from transfer_cli.model.attention import attention_mask
from transfer_cli.model.block import Activation, Block, Residual
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.key_values import KeyValues, LayerKeyValues, later_mask
from transfer_cli.model.new_rows import NewRows

Direction = Literal["auto", "causal", "bidirectional"]
PositionKind = Literal["learned", "sinusoidal"]
Pooler = Literal["none", "tanh", "gelu", "relu"]

INITIAL_STD = 0.02

MAX_SIZE = 2**24
"""Of a width, an inner layer or a longest sequence: a hundred times what anybody has trained."""

MAX_DEPTH = 10_000
"""The deepest Transformers have 1000 blocks. Each is some dozen Python objects, even on paper."""


@dataclass(frozen=True)
class BackboneShape:
    """Everything about a backbone but its vocabulary.

    Args:
        width: D, the size of a hidden state.
        heads: Attention heads; divide `width`.
        depth: L, the number of blocks.
        feedforward: Size of the inner layer of a block's feed-forward part.
        positions: Longest sequence.
        dropout: After the embeddings and on every sub-layer's output.
        attention_dropout: On attention probabilities.
        activation: relu, gelu (exact) or gelu_tanh.
        residual: pre, post or tutorial (see `model.block`).
        position_kind: learned, or sinusoidal (fixed; Vaswani et al. 2017, section 3.5).
        direction: causal, bidirectional, or auto: as the objective needs.
        embedding_norm: A norm on the embeddings; none: only with `post`.
        output_bias: Whether language-model logits have a bias.
        tie_output: Whether they use the token embedding as their matrix.
        segments: Kinds of segment that have an embedding of their own (BERT has 2); 0 for none.
        output_transform: Whether they see LN(gelu(W h + b)) instead of h (BERT).
        embedding_width: Size of the embeddings, where it is not `width`: a linear layer then brings
            them to it (ELECTRA, Clark et al. 2020).
        epsilon: Added to the variance in every LayerNorm. BERT's 1e-12 is nothing in half
            precision.
        pooler: What models of this kind put between the state of the classification token and a
            classifier: nothing, or a linear layer of `width` with this activation (BERT: tanh).
    """

    width: int
    heads: int
    depth: int
    feedforward: int
    positions: int
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Activation = "gelu"
    residual: Residual = "pre"
    position_kind: PositionKind = "learned"
    direction: Direction = "auto"
    embedding_norm: bool | None = None
    output_bias: bool = True
    tie_output: bool = True
    output_transform: bool = False
    segments: int = 0
    embedding_width: int | None = None
    epsilon: float = 1e-5
    pooler: Pooler = "none"

    def __post_init__(self) -> None:
        """Raise ValueError where a value cannot work."""
        for name in ("width", "heads", "depth", "feedforward", "positions"):
            most = MAX_DEPTH if name == "depth" else MAX_SIZE
            _check_size(name, getattr(self, name), 1, most)
        if self.width % self.heads:
            raise ValueError(
                f"heads ({self.heads}) must divide width ({self.width}); "
                f"the nearest that does is {_nearest_divisor(self.width, self.heads)}"
            )
        _check_size("segments", self.segments, 0, MAX_SIZE)
        _check_size("embedding_width", self.embedding_size, 1, MAX_SIZE)
        if self.embedding_size != self.width and self.tie_output and not self.output_transform:
            raise ValueError(
                f"embedding_width ({self.embedding_size}) is not width ({self.width}), so tied "
                "logits need output_transform, which brings states to it"
            )
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be in (0, 1), got {self.epsilon}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name, kind in (
            ("activation", Activation),
            ("residual", Residual),
            ("position_kind", PositionKind),
            ("direction", Direction),
            ("pooler", Pooler),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(kind))}; "
                    f"got {getattr(self, name)!r}"
                )

    def least_bytes(self, vocabulary: int) -> int:
        """Return how much memory the largest matrices take in float32."""
        embeddings = self.embedding_size * (vocabulary + self.positions)
        blocks = self.depth * self.width * (4 * self.width + 2 * self.feedforward)
        return 4 * (embeddings + blocks)

    @property
    def embedding_size(self) -> int:
        """The size of an embedding."""
        return self.width if self.embedding_width is None else self.embedding_width

    @property
    def has_embedding_norm(self) -> bool:
        """Whether the embeddings are normalised before their dropout."""
        return self.residual == "post" if self.embedding_norm is None else self.embedding_norm


class Backbone(nn.Module):
    """A Transformer without heads.

    Args:
        shape: Everything but the vocabulary; its direction must be settled.
        vocabulary: Number of tokens.

    Raises:
        MemoryError: This machine cannot hold its weights.
    """

    position_table: Tensor
    new_rows: NewRows | None
    """What an adaptation adds to the embeddings of a few tokens; nothing at birth."""

    def __init__(self, shape: BackboneShape, vocabulary: int) -> None:
        super().__init__()
        if shape.direction == "auto":
            raise ValueError("direction must be causal or bidirectional before a model is built")
        _check_memory(shape.least_bytes(vocabulary))
        self.shape = shape
        self.vocabulary = vocabulary
        self.causal = shape.direction == "causal"
        size = shape.embedding_size
        self.token_embedding = nn.Embedding(vocabulary, size)
        self.register_module("new_rows", None)
        if shape.position_kind == "learned":
            self.position_embedding = nn.Embedding(shape.positions, size)
        else:
            table = sinusoids(shape.positions, size)
            self.register_buffer("position_table", table, persistent=False)
        if shape.segments:
            self.segment_embedding = nn.Embedding(shape.segments, size)
        if shape.has_embedding_norm:
            self.embedding_norm = nn.LayerNorm(size, eps=shape.epsilon)
        if size != shape.width:
            self.embedding_projection = nn.Linear(size, shape.width)
        self.drop = Dropout(shape.dropout)
        self.blocks = nn.ModuleList(
            Block(
                shape.width,
                shape.heads,
                shape.feedforward,
                activation=shape.activation,
                residual=shape.residual,
                dropout=shape.dropout,
                attention_dropout=shape.attention_dropout,
                epsilon=shape.epsilon,
            )
            for _ in range(shape.depth)
        )
        if shape.residual == "pre":
            self.final_norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.initialise()

    def initialise(self) -> None:
        """Draw weights from N(0, 0.02^2); norms stay the identity, biases 0.

        With `pre`, the two products that write into the residual stream of a block start smaller,
        by 1/sqrt(2 L), so that the stream's size does not grow with depth (Radford et al. 2019).
        """
        self.apply(initialise_plain)
        for block in self.blocks:
            self._shrink_outputs(block)  # type: ignore[arg-type]

    def recompute(self, blocks: bool) -> None:  # noqa: FBT001 - the only thing it is told
        """Keep of each block only what goes into it for the backward pass, or all as usual."""
        for block in self.blocks:
            block.recomputed = blocks  # type: ignore[assignment]

    def redraw_top(self, blocks: int) -> None:
        """Draw the weights of the topmost blocks anew, as at birth, and the final norm's.

        What an adaptation has put into them stays as it is.
        """
        for block in list(self.blocks)[-blocks:]:
            parts = (
                block.attention_norm, block.attention, block.feed_forward_norm, block.feed_forward
            )  # fmt: skip
            for part in parts:
                part.apply(_redraw)  # type: ignore[union-attr]
            self._shrink_outputs(block)  # type: ignore[arg-type]
        if self.shape.residual == "pre":
            _redraw(self.final_norm)

    def _shrink_outputs(self, block: Block) -> None:
        if self.shape.residual != "pre":
            return
        std = INITIAL_STD / math.sqrt(2 * self.shape.depth)
        nn.init.normal_(block.attention.output.weight, std=std)
        nn.init.normal_(block.feed_forward.output.weight, std=std)

    def forward(
        self,
        tokens_BT: Tensor,
        mask_BT: Tensor,
        segment_BT: Tensor | None = None,
        *,
        padded: bool = True,
        kept: KeyValues | None = None,
    ) -> list[Tensor]:
        """Return L + 1 hidden states, each `[B, T, D]`: the embeddings, then after every block.

        With `pre` the last one has passed the final norm. States at padded positions are finite and
        mean nothing.

        Args:
            tokens_BT: Token numbers.
            mask_BT: True at real tokens.
            segment_BT: See `embed`.
            padded: Whether `mask_BT` is False anywhere; without padding attention is faster. A
                batch tells (`batch.is_padded`); the mask may lie on a device that takes long to
                ask.
            kept: What is known of positions before these (causal models, without padding); what
                is found out about these is added. The states are of these alone.

        Raises:
            ValueError: The sequences are longer than the model's positions, or `kept` is given to
                a bidirectional model.
        """
        before = 0 if kept is None else kept.length
        if before + tokens_BT.shape[1] > self.shape.positions:
            raise ValueError(
                f"a sequence of {before + tokens_BT.shape[1]} tokens is longer than the model's "
                f"{self.shape.positions} positions"
            )
        if kept is not None and not self.causal:
            raise ValueError("what a bidirectional model computes changes with later tokens")
        causal = self.causal
        allowed = attention_mask(mask_BT, causal=causal) if padded else None
        if before:
            allowed, causal = later_mask(tokens_BT.shape[1], before, tokens_BT.device), False
        states = [self.embed(tokens_BT, mask_BT, segment_BT, before=before)]
        for block, layer in zip(self.blocks, self._layers(kept), strict=True):
            states.append(block(states[-1], allowed, causal=causal, kept=layer))
        if self.shape.residual == "pre":
            states[-1] = self.final_norm(states[-1])
        return states

    def _layers(self, kept: KeyValues | None) -> Sequence[LayerKeyValues | None]:
        return [None] * len(self.blocks) if kept is None else kept.layers

    def embed(
        self,
        tokens_BT: Tensor,
        mask_BT: Tensor,
        segment_BT: Tensor | None = None,
        *,
        before: int = 0,
    ) -> Tensor:
        """Return the hidden states before the first block, `[B, T, D]`.

        A model with segments takes a missing `segment_BT` for zeros; one without ignores it. Of
        more kinds than it has, the surplus counts as the last. `before` tokens stand before these.
        """
        # Counting real tokens gives 0, 1, 2, ... on either side of which the padding lies.
        position_BT = (mask_BT.long().cumsum(1) + (before - 1)).clamp(min=0)
        token_BTD = self.token_embedding(tokens_BT)
        if self.new_rows is not None:
            token_BTD = token_BTD + self.new_rows(tokens_BT)
        if self.shape.position_kind == "learned":
            summed = token_BTD + self.position_embedding(position_BT)
        else:
            # Fixed sinusoids have an RMS of 0.7, fresh embeddings 0.02: bring them level.
            scale = math.sqrt(self.shape.embedding_size)
            summed = token_BTD * scale + self.position_table[position_BT]
        if self.shape.segments:
            segment_BT = torch.zeros_like(tokens_BT) if segment_BT is None else segment_BT
            kind_BT = segment_BT.clamp(max=self.shape.segments - 1)
            summed = summed + self.segment_embedding(kind_BT)
        if self.shape.has_embedding_norm:
            summed = self.embedding_norm(summed)
        dropped: Tensor = self.drop(summed)
        if self.shape.embedding_size != self.shape.width:
            dropped = self.embedding_projection(dropped)
        return dropped


def _check_size(name: str, value: int, least: int, most: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value}")


def _check_memory(size_bytes: int) -> None:
    """Refuse a model before memory is taken for it: a system may kill others to make room."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if torch.get_default_device().type == "cpu" and size_bytes > there:
        raise MemoryError(
            f"the weights take {size_bytes / 2**30:,.0f} GiB, and there are {there / 2**30:,.0f}"
        )


def initialise_plain(module: nn.Module) -> None:
    """Draw the weights of linear and embedding modules from N(0, 0.02^2), set their biases to 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _redraw(module: nn.Module) -> None:
    initialise_plain(module)
    if isinstance(module, nn.LayerNorm):
        module.reset_parameters()


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


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = (n for n in range(1, number + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(n - wanted))
