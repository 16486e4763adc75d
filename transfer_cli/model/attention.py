"""Attention of a sequence on itself, and on another (Vaswani et al. 2017, section 3.2).

Legend: B batch, H heads of queries, G heads of keys and values, T queries, S keys, D width, W width
of a head.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.attention_dropout import attend, causal_mask
from transfer_cli.model.kv_cache import LayerKVCache
from transfer_cli.model.norms import build_norm
from transfer_cli.model.packing import Packing, pack, unpack
from transfer_cli.model.products import CROSS_PAIR, DISTANCE, REMEMBERED, SOURCE, ProductCounter
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.sparse_attention import SparseView


@dataclass(frozen=True)
class Gates:
    """Factors of what a block computes, 1 where nothing is left out; see `model.probes`.

    Args:
        heads: Of each head's mixed values, before the output projection: `[H]`, or `[B, H]` for
            each sequence of the batch.
        attention: Of the attention's update of the residual stream.
        feed_forward: Of the update by the feed-forward layer and what is beside it.
    """

    heads: Tensor
    attention: float = 1.0
    feed_forward: float = 1.0


@dataclass(frozen=True)
class RelativeScores:
    """What is added to scores for the distances from queries to keys (Dai et al. 2019).

    Args:
        content: u, `[H * W]`, added to queries that meet keys.
        position: v, `[H * W]`, added to queries that meet distances.
        distances: The encodings of S - 1, ..., 1, 0, `[S, D]`.
    """

    content: Tensor
    position: Tensor
    distances: Tensor


@dataclass(frozen=True)
class SourceText:
    """A text that a decoder reads.

    Args:
        tokens: `[B, S]`.
        mask: True at real tokens, `[B, S]`.
        padded: Whether it is False anywhere.
        packing: How the states are packed; None: they are `[B, S, D]`.
        states: What the encoder has made of it; None: nothing yet.
    """

    tokens: Tensor
    mask: Tensor
    padded: bool = True
    packing: Packing | None = None
    states: Tensor | None = None


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of a block's attention besides its hidden states.

    Args:
        attn_mask: Broadcast to `[B, H, T, S]`: True where a query sees a key, or floats that
            are added to the scores. None: `causal` decides.
        causal: Position t sees only positions up to t. Not together with `attn_mask`.
        kv_cache: Keys and values of earlier positions, which queries also see; the pass appends
            its own.
        rotate: The position kind's rotation of queries, `[B, H, T, W]`, and keys, `[B, G, T, W]`.
        packing: How the hidden states were packed, `[1, N, D]`; None: they are `[B, T, D]`.
        sparse: What each head sees, which is computed without a table of all pairs; then there is
            no mask, and `causal` is False. None: the two decide.
        earlier: The number of keys before those at the queries' own positions.
        relative: What the position kind adds to the scores; only without later keys. None: nothing.
        memory: The states of earlier positions, `[B, M, D]`, which queries also see.
        probe: What looks at the pass, or changes it; None: nothing does.
        place: The number of the block among the L that a pass goes through, from 0.
        source: What a decoder's block reads beside its own states.
    """

    attn_mask: Tensor | None = None
    causal: bool = False
    kv_cache: LayerKVCache | None = None
    rotate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    packing: Packing | None = None
    sparse: SparseView | None = None
    earlier: int = 0
    relative: RelativeScores | None = None
    memory: Tensor | None = None
    probe: "Probe | None" = None
    place: int = 0
    source: SourceText | None = None

    @property
    def gates(self) -> Gates | None:
        """Factors of what the block computes; None: nothing is multiplied."""
        if self.probe is None or self.probe.gates is None:
            return None
        return self.probe.gates[self.place]


@dataclass(frozen=True)
class Projections:
    """What a block's attention computes with: all as it is multiplied, normed and rotated.

    Args:
        query: `[B, H, T, W]`.
        key: `[B, G, S, W]`.
        value: `[B, G, S, W]`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    inputs: AttentionInputs


@dataclass(frozen=True)
class Probe:
    """What looks at a pass from inside, or changes it, at named sites; see `model.probes`.

    Sites of blocks are told apart by place: one that several places share is visited at each.

    Args:
        embeddings: Returns what is taken for the embeddings of the tokens, given these.
        gates: Factors of what the block at each of the L places computes.
        projections: Gets a place and what its attention computes with.
        probabilities: Gets a place and its attention probabilities, `[B, H, T, S]`, before dropout.
            They are materialised, instead of fused kernels: outputs agree up to rounding.
    """

    embeddings: Callable[[Tensor], Tensor] | None = None
    gates: Sequence[Gates] | None = None
    projections: Callable[[int, Projections], None] | None = None
    probabilities: Callable[[int, Tensor], None] | None = None


class Attention(nn.Module):
    """Multi-head attention.

    Consecutive heads of queries may share a head of keys and values (Ainslie et al. 2023); the
    cache holds the shared ones. Attention uses torch's fused kernels, or on a CPU with dropout,
    which applies to the attention probabilities in training, those of `attention_dropout`.
    """

    output: nn.Linear
    rows: tuple[int, int, int]
    """How many rows of its input projections make queries, keys and values."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.head_width = shape.head_size
        self.group_size = shape.heads // shape.kv_heads
        self.dropout = shape.attention_dropout
        wide, narrow = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.rows = wide, narrow, narrow
        # Kernels divide scores by the root.
        self.query_scale = 1.0 if shape.scaled_scores else math.sqrt(shape.head_size)

    @property
    def projections(self) -> Mapping[str, Mapping[str, slice]]:
        """The input projections by name: which of their rows make `query`, `key` and `value`."""
        raise NotImplementedError

    def _split_heads(self, states_BTN: Tensor) -> Tensor:
        by_head: Tensor = states_BTN.unflatten(2, (-1, self.head_width)).transpose(1, 2)
        return by_head

    def _project_output(self, mixed_BHTW: Tensor, inputs: AttentionInputs) -> Tensor:
        out: Tensor = self.output(pack(mixed_BHTW.transpose(1, 2).flatten(2), inputs.packing))
        return out

    def _scale_query(self, query_BHTW: Tensor) -> Tensor:
        return query_BHTW if self.query_scale == 1 else query_BHTW * self.query_scale

    def _attend_grouped(
        self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        """Return what `_attend` does, of keys and values that heads of queries may share."""
        if self.group_size == 1:
            return self._attend(query, key, value, inputs)
        can_group = inputs.attn_mask is None or inputs.attn_mask.shape[1] == 1
        can_group = can_group and not inputs.causal and inputs.sparse is None
        can_group = can_group and (inputs.probe is None or inputs.probe.probabilities is None)
        if query.shape[2] == 1 and can_group:
            # Of one token, heads that share keys are like so many tokens: nothing is copied.
            grouped_BGTW = query.unflatten(1, (-1, self.group_size)).squeeze(3)
            return self._attend(grouped_BGTW, key, value, inputs).reshape(query.shape)
        key, value = (heads.repeat_interleave(self.group_size, dim=1) for heads in (key, value))
        return self._attend(query, key, value, inputs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if inputs.probe is not None and inputs.probe.probabilities is not None:
            probabilities_BHTS = masked_scores(query, key, inputs).softmax(-1)
            inputs.probe.probabilities(inputs.place, probabilities_BHTS)
            return F.dropout(probabilities_BHTS, dropout) @ value
        return attend_seen(query, key, value, inputs, dropout)


class SelfAttention(Attention):
    """Attention of a sequence on itself; the input projection packs queries, keys and values."""

    query_norm: nn.Module | None
    key_norm: nn.Module | None
    prefix: nn.Module | None
    """Maps queries to what is added to the mixed values; None without an edit."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__(shape)
        wide, has_bias = self.rows[0], shape.biases in ("all", "qkv")
        self.packed = nn.Linear(shape.width, sum(self.rows), bias=has_bias)
        self.output = nn.Linear(wide, shape.width, bias=shape.biases == "all")
        if shape.projects_distances:
            self.distance = nn.Linear(shape.width, wide, bias=False)
        if shape.query_key_norm:
            self.query_norm = build_norm(shape, shape.head_size)
            self.key_norm = build_norm(shape, shape.head_size)
        else:
            self.query_norm = self.key_norm = None
        self.register_module("prefix", None)

    @property
    def projections(self) -> Mapping[str, Mapping[str, slice]]:
        ends = itertools.accumulate(self.rows, initial=0)
        slices = [slice(*pair) for pair in itertools.pairwise(ends)]
        return {"packed": dict(zip(("query", "key", "value"), slices, strict=True))}

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`, or packed as the hidden states are."""
        query, key, value = self._project_inputs(hidden_BTD, inputs)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if inputs.rotate is not None:
            query, key = inputs.rotate(query, key)
        query = self._scale_query(query)
        if inputs.kv_cache is not None:
            key, value = inputs.kv_cache.extend(key, value)
        scored = query
        if inputs.relative is not None:
            scored, inputs = self._add_relative_scores(query, inputs, inputs.relative)
        if inputs.probe is not None and inputs.probe.projections is not None:
            inputs.probe.projections(inputs.place, Projections(scored, key, value, inputs))
        mixed_BHTW = self._attend_grouped(scored, key, value, inputs)
        if self.prefix is not None:
            mixed_BHTW = mixed_BHTW + self.prefix(query)
        if inputs.gates is not None:
            mixed_BHTW = mixed_BHTW * inputs.gates.heads.to(mixed_BHTW.dtype)[..., None, None]
        return self._project_output(mixed_BHTW, inputs)

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """Count projections, distances, pairs and learnt keys; see `CountsProducts`."""
        counter.count(self.packed, REMEMBERED, needs_grad=False)
        needs_grad = counter.count(self.packed, unit, needs_grad=needs_grad)
        needs_grad = needs_grad or counter.trains(self.query_norm, self.key_norm)
        width = self.rows[0]
        if hasattr(self, "distance"):
            trains = counter.count(self.distance, DISTANCE, needs_grad=False)
            for pair in counter.pairs:
                counter.add(pair, width // len(counter.pairs), needs_grad=needs_grad, trains=trains)
            needs_grad = needs_grad or trains
        counter.add_attention(width, needs_grad=needs_grad)
        if self.prefix is not None:
            needs_grad = counter.count(self.prefix, unit, needs_grad=needs_grad)
        return counter.count(self.output, unit, needs_grad=needs_grad)

    def _project_inputs(
        self, hidden_BTD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values; of a memory, its keys and values first."""
        projected = unpack(self.packed(hidden_BTD), inputs.packing)
        query, key, value = self._split_projections(projected)
        if inputs.memory is None:
            return query, key, value
        _, earlier_key, earlier_value = self._split_projections(self.packed(inputs.memory))
        return query, torch.cat([earlier_key, key], 2), torch.cat([earlier_value, value], 2)

    def _add_relative_scores(
        self, query_BHTW: Tensor, inputs: AttentionInputs, relative: RelativeScores
    ) -> tuple[Tensor, AttentionInputs]:
        """Return queries with u, and attention inputs whose mask holds (q + v) W_R R."""
        u_H1W, v_H1W = (
            bias.to(query_BHTW.dtype).view(-1, 1, self.head_width)
            for bias in (relative.content, relative.position)
        )
        distance_HWS = self.distance(relative.distances).unflatten(1, (-1, self.head_width))
        scores_BHTS = (query_BHTW + v_H1W) @ distance_HWS.permute(1, 2, 0)
        scores_BHTS = _relative_shift(scores_BHTS / math.sqrt(self.head_width))
        seen = inputs.attn_mask
        if seen is None and scores_BHTS.shape[2] > 1:
            seen = torch.ones_like(scores_BHTS[0, 0], dtype=torch.bool).tril()
        if seen is not None and seen.dtype == torch.bool:
            scores_BHTS = scores_BHTS.masked_fill(~seen, -math.inf)
        elif seen is not None:
            scores_BHTS = scores_BHTS + seen
        else:
            # On a GPU, torch's fused attention ends the process where a mask does not begin at a
            # multiple of 16 bytes, and a part of another tensor need not.
            scores_BHTS = scores_BHTS.clone(memory_format=torch.contiguous_format)
        return query_BHTW + u_H1W, replace(inputs, attn_mask=scores_BHTS, causal=False)

    def _split_projections(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Split before the heads: the backward pass then joins three gradients by one copy, not two.
        query, key, value = map(self._split_heads, projected.split(self.rows, dim=2))
        return query, key, value


class CrossAttention(Attention):
    """Attention of a decoder's states on those that the encoder has made of a source.

    It has no positions. A pass with a cache computes keys and values once.
    """

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__(shape)
        wide, narrow, _ = self.rows
        has_bias = shape.biases in ("all", "qkv")
        self.query = nn.Linear(shape.width, wide, bias=has_bias)
        self.key_value = nn.Linear(shape.width, 2 * narrow, bias=has_bias)
        self.output = nn.Linear(wide, shape.width, bias=shape.biases == "all")

    @property
    def projections(self) -> Mapping[str, Mapping[str, slice]]:
        wide, narrow, _ = self.rows
        keys, values = slice(0, narrow), slice(narrow, 2 * narrow)
        return {"query": {"query": slice(0, wide)}, "key_value": {"key": keys, "value": values}}

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`, or packed as the hidden states are."""
        source, cache = inputs.source, inputs.kv_cache
        if source is None or source.states is None:
            raise ValueError("a decoder reads a source, and it is not encoded")
        query = self._split_heads(unpack(self.query(hidden_BTD), inputs.packing))
        key_value = [] if cache is None else cache.source_kv
        if not key_value:
            projected = unpack(self.key_value(source.states), source.packing)
            key_value = [*map(self._split_heads, projected.chunk(2, dim=2))]
            if cache is not None:
                cache.source_kv = key_value
        seen_B11S = source.mask[:, None, None] if source.padded else None
        key, value = key_value
        query = self._scale_query(query)
        mixed_BHTW = self._attend_grouped(query, key, value, AttentionInputs(seen_B11S))
        return self._project_output(mixed_BHTW, inputs)

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """Count projections, and pairs of a query and a token of the source."""
        keys = counter.count(self.key_value, SOURCE + unit, needs_grad=counter.source_needs_grad)
        needs_grad = counter.count(self.query, unit, needs_grad=needs_grad) or keys
        counter.add(CROSS_PAIR, 2 * self.rows[0], needs_grad=needs_grad, trains=needs_grad)
        return counter.count(self.output, unit, needs_grad=needs_grad)


def attend_seen(
    query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs, dropout: float = 0.0
) -> Tensor:
    """Return the values, weighted, `[B, H, T, W]`, of what queries see."""
    if inputs.sparse is not None:
        return inputs.sparse.attend(query, key, value, dropout)
    lengths = None if inputs.packing is None else inputs.packing.lengths
    return attend(
        query, key, value, attn_mask=inputs.attn_mask, causal=inputs.causal, dropout=dropout,
        lengths=lengths,
    )  # fmt: skip


def masked_scores(query_BHTW: Tensor, key_BHSW: Tensor, inputs: AttentionInputs) -> Tensor:
    """Return what a softmax makes attention probabilities of, `[B, H, T, S]`.

    It is -inf where a query does not see a key. Fused kernels do not materialise it.
    """
    scores = query_BHTW @ key_BHSW.transpose(-2, -1) / math.sqrt(query_BHTW.shape[-1])
    attn_mask = inputs.attn_mask
    if inputs.causal:
        attn_mask = causal_mask(query_BHTW, key_BHSW)
    if inputs.sparse is not None:
        _, heads, new, seen = scores.shape
        attn_mask = inputs.sparse.mask(heads, new, seen, scores.device)
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -math.inf)
    return scores + attn_mask


def _relative_shift(scores_BHTS: Tensor) -> Tensor:
    """Return scores by key, where column c holds those of the distance S - 1 - c.

    Right for keys up to a query's own position; what stands at later ones means nothing. The rows
    of a matrix with a column more, read T numbers later, are each shifted by one place more
    (Dai et al. 2019, appendix B).
    """
    queries = scores_BHTS.shape[2]
    flat_BHN = F.pad(scores_BHTS, (1, 0)).flatten(2)
    return flat_BHN[..., queries:].view_as(scores_BHTS)
