"""Attention with dropout on a CPU, a few sequences at a time.

torch's fused attention for a CPU has no dropout; what it does instead keeps three tables of
probabilities of the whole batch for the backward pass, most of a step's memory. Here the backward
pass computes them again (Dao et al. 2022), in pieces that stay in the processor's cache, and of
each piece no more positions than its longest sequence has.

Legend: B batch, H heads, T queries, S keys, W width of a head.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.model.dropout import KeepFactors, draw_seed

CHUNK = 2**18
"""Most scores of a piece, 1 MiB of them; but all of one head and sequence."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """Return the values, weighted, `[B, H, T, W]`; see `AttentionInputs` and `Packing`."""
    if dropout and _is_for_cpu(query, value, attn_mask):
        attn_mask = causal_mask(query, key) if causal else attn_mask
        return attend_with_dropout(query, key, value, attn_mask, dropout, lengths)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal
    )


def causal_mask(query_BHTW: Tensor, key_BHSW: Tensor) -> Tensor:
    """Return which keys queries see that see none behind them, `[T, S]`."""
    shape = query_BHTW.shape[2], key_BHSW.shape[2]
    return torch.ones(shape, dtype=torch.bool, device=query_BHTW.device).tril()


def _is_for_cpu(query: Tensor, value: Tensor, attn_mask: Tensor | None) -> bool:
    return (
        query.device.type == "cpu"
        and query.dtype == value.dtype
        and query.dtype in {torch.float32, torch.float64}
        and not (attn_mask is not None and attn_mask.requires_grad)
        and not torch.compiler.is_compiling()
    )


def attend_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout: float,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """Return what torch's attention does, `[B, H, T, W]`, with probabilities dropped out.

    Args:
        query: `[B, H, T, W]`.
        key: `[B, H, S, W]`; the last T are at the queries' positions.
        value: `[B, H, S, W]`.
        attn_mask: Broadcast to `[B, H, T, S]`, bool or floats; each query sees at least one key.
        dropout: The probability of being dropped; torch's generator seeds the draws.
        lengths: Of each sequence of queries; what comes after is padding, and 0 in what is
            returned. None: there is no padding.
    """
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            none = torch.zeros(attn_mask.shape, dtype=query.dtype)
            attn_mask = none.masked_fill_(~attn_mask, -math.inf)
        attn_mask = attn_mask.broadcast_to(*query.shape[:3], key.shape[2])
    mixed: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        query, key, value, attn_mask, dropout, draw_seed(), lengths
    )
    return mixed


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, dropout, seed, lengths = inputs
        ctx.save_for_backward(*tensors)
        ctx.arguments = dropout, seed, lengths
        query, key, value, attn_mask = tensors
        factors, mixed = KeepFactors(dropout, seed), torch.zeros_like(query)
        for piece in _pieces(query, key, lengths):
            probabilities = piece.probabilities(query, key, attn_mask)
            dropped = probabilities.mul_(factors.next_like(probabilities))
            mixed[piece.queries] = dropped @ value[piece.keys]
        return mixed

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = upstream
        query, key, value, attn_mask = ctx.saved_tensors
        dropout, seed, lengths = ctx.arguments
        factors = KeepFactors(dropout, seed)
        for_query, for_key, for_value = map(torch.zeros_like, (query, key, value))
        for piece in _pieces(query, key, lengths):
            probabilities = piece.probabilities(query, key, attn_mask)
            kept = factors.next_like(probabilities)
            here = gradient[piece.queries].contiguous()
            for_value[piece.keys] = (probabilities * kept).mT @ here
            # Of a softmax: p * (g - sum of p * g).
            scores = kept.mul_(here @ value[piece.keys].mT).mul_(probabilities)
            scores.addcmul_(probabilities, scores.sum(-1, keepdim=True), value=-1)
            scores.mul_(1 / math.sqrt(query.shape[-1]))
            for_query[piece.queries] = scores @ key[piece.keys]
            for_key[piece.keys] = scores.mT @ query[piece.queries]
        return for_query, for_key, for_value, None, None, None, None


@dataclass(frozen=True)
class _Piece:
    """Some sequences, or heads of one, up to the longest sequence's length."""

    sequences: slice
    heads: slice
    new: slice
    seen: slice

    @property
    def queries(self) -> tuple[slice, ...]:
        return self.sequences, self.heads, self.new

    @property
    def keys(self) -> tuple[slice, ...]:
        return self.sequences, self.heads, self.seen

    def probabilities(self, query: Tensor, key: Tensor, attn_mask: Tensor | None) -> Tensor:
        # Where heads are an inner dimension, a product of copies is three times as fast.
        scores = query[self.queries].contiguous() @ key[self.keys].mT.contiguous()
        scores.mul_(1 / math.sqrt(query.shape[-1]))
        if attn_mask is not None:
            scores.add_(attn_mask[*self.queries, self.seen])
        return scores.softmax(-1)


def _pieces(query: Tensor, key: Tensor, lengths: Sequence[int] | None) -> Iterator[_Piece]:
    batch, heads, positions, _ = query.shape
    before = key.shape[2] - positions
    fitting = max(1, CHUNK // (positions * key.shape[2]))
    sequences, some_heads = max(1, fitting // heads), min(heads, fitting)
    for first in range(0, batch, sequences):
        length = positions if lengths is None else max(lengths[first : first + sequences])
        for head in range(0, heads, some_heads):
            yield _Piece(
                slice(first, first + sequences), slice(head, head + some_heads),
                slice(length), slice(before + length),
            )  # fmt: skip
