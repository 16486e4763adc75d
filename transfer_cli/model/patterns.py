"""Attention patterns, by name: which keys the queries of each block see.

Legend: B batch, T positions, S positions including cached ones.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from transfer_cli.errors import ConfigError
from transfer_cli.model.attention import AttentionInputs
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.sparse_attention import SparseView, sparse_parts


class AttentionPattern(nn.Module, ABC):
    """Base class of attention patterns; built from a shape, whose direction it follows.

    Attributes:
        kinds: The number of the kind of block at each of the L places.
    """

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.causal = shape.direction == "causal"
        self.kinds = [0] * shape.depth

    @abstractmethod
    def forward(
        self, mask_BT: Tensor, *, padded: bool, cached: int, prefix_B: Tensor | None = None
    ) -> Sequence[AttentionInputs]:
        """Return the attention inputs of each kind of block.

        Args:
            padded: Whether it is False anywhere.
            cached: Number of earlier positions in the cache; with a cache there is no padding.
            prefix_B: The length of each sequence's prefix, see `prefix_mask`; None: there are no
                prefixes, and the direction decides.
        """


class FullAttention(AttentionPattern):
    """A query sees all real keys; in a causal model only those up to its own position."""

    def forward(
        self, mask_BT: Tensor, *, padded: bool, cached: int, prefix_B: Tensor | None = None
    ) -> Sequence[AttentionInputs]:
        new = mask_BT.shape[1]
        if cached and new == 1:  # sees all keys
            inputs = AttentionInputs(earlier=cached)
        elif cached:
            seen = torch.ones(new, cached + new, dtype=torch.bool, device=mask_BT.device)
            inputs = AttentionInputs(seen.tril(cached), earlier=cached)
        elif prefix_B is not None:
            inputs = AttentionInputs(prefix_mask(mask_BT, prefix_B))
        elif padded:
            inputs = AttentionInputs(attention_mask(mask_BT, causal=self.causal))
        else:
            inputs = AttentionInputs(causal=self.causal)
        return [inputs]


class WindowAttention(FullAttention):
    """In some blocks a query sees only near keys (Beltagy et al. 2020); see `window_mask`.

    The shape says how wide the window is and which blocks see everything.
    """

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__(shape)
        self.window = shape.window
        self.kinds = [int(has_window) for has_window in shape.has_window]

    def forward(
        self, mask_BT: Tensor, *, padded: bool, cached: int, prefix_B: Tensor | None = None
    ) -> Sequence[AttentionInputs]:
        """Return those of blocks without a window, and of blocks with one."""
        (whole,) = super().forward(mask_BT, padded=padded, cached=cached, prefix_B=prefix_B)
        new = mask_BT.shape[1]
        reach = self.window if self.causal else self.window // 2 + 1
        # An exported graph has one form for all lengths.
        if not torch.compiler.is_exporting() and cached + new <= reach:
            return [whole, whole]
        near = window_mask(new, cached, self.window, causal=self.causal, device=mask_BT.device)
        if prefix_B is not None and not cached:
            near = near | near.mT  # a prefix sees as far ahead as back
        seen = whole.attn_mask
        return [whole, AttentionInputs(near if seen is None else seen & near, earlier=cached)]


class SparseAttention(AttentionPattern):
    """Each head, or each block, sees near or far keys alone (Child et al. 2019).

    The shape says which kind, and the rest; see `model.sparse_attention`.
    """

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__(shape)
        parts = sparse_parts(shape)
        self.parts = [*dict.fromkeys(parts)]
        self.kinds = [self.parts.index(of_place) for of_place in parts]

    def forward(
        self, mask_BT: Tensor, *, padded: bool, cached: int, prefix_B: Tensor | None = None
    ) -> Sequence[AttentionInputs]:
        if prefix_B is not None:
            raise ConfigError(
                "model.attention: strided and fixed are causal, so that a prefix cannot see all of "
                "itself; take a model with attention=full or window"
            )
        starts = mask_BT.int().argmax(1) if padded else None
        # On a GPU the host would wait for the answer, and a graph has one form for all texts.
        can_ask = mask_BT.device.type == "cpu" and not torch.compiler.is_compiling()
        if starts is not None and can_ask and not starts.any():
            starts = None
        return [
            AttentionInputs(sparse=SparseView(parts, starts), earlier=cached)
            for parts in self.parts
        ]


PATTERNS: dict[str, type[AttentionPattern]] = {
    "full": FullAttention, "window": WindowAttention,
    "strided": SparseAttention, "fixed": SparseAttention,
}  # fmt: skip


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


def hide_other_documents(
    inputs: Sequence[AttentionInputs], document_BT: Tensor, key_document_BS: Tensor
) -> Sequence[AttentionInputs]:
    """Return attention inputs with which a query sees keys of its own document alone."""
    if inputs[0].sparse is not None:
        raise ConfigError(
            "model.attention: strided and fixed see a row as one text; take "
            "data.documents=cross and loop.pack=false, or a model with attention=full or window"
        )
    return _restrict_keys(inputs, (document_BT[:, :, None] == key_document_BS[:, None, :])[:, None])


def hide_padding(
    inputs: Sequence[AttentionInputs], padding_B: Tensor, length: int
) -> Sequence[AttentionInputs]:
    """Return attention inputs with which no query sees the first keys of a text, its padding.

    `length` is the number of keys, S.
    """
    if inputs[0].sparse is not None:
        return [
            replace(kind, sparse=kind.sparse and replace(kind.sparse, starts=padding_B))
            for kind in inputs
        ]
    place_S = torch.arange(length, device=padding_B.device)
    return _restrict_keys(inputs, (place_S >= padding_B[:, None])[:, None, None])


def hide_unwritten(
    inputs: Sequence[AttentionInputs], place_1: Tensor, length: int
) -> Sequence[AttentionInputs]:
    """Return attention inputs with which a query sees keys up to a place, of `length` keys."""
    return _restrict_keys(
        inputs, (torch.arange(length, device=place_1.device) <= place_1)[None, None, None]
    )


def _restrict_keys(inputs: Sequence[AttentionInputs], seen: Tensor) -> Sequence[AttentionInputs]:
    """Return attention inputs with which a query sees no other keys, `[B, 1, T, S]`."""

    def narrowed(kind: AttentionInputs) -> AttentionInputs:
        here = seen.tril() if kind.causal else seen
        if kind.attn_mask is None:
            return replace(kind, attn_mask=here, causal=False)
        if kind.attn_mask.dtype == torch.bool:
            return replace(kind, attn_mask=kind.attn_mask & here)
        return replace(kind, attn_mask=kind.attn_mask.masked_fill(~here, -math.inf))

    return [narrowed(kind) for kind in inputs]


def window_mask(
    new: int, cached: int, window: int, *, causal: bool, device: torch.device
) -> Tensor:
    """Return which keys the last `new` positions see, `[T, S]`.

    In a causal model the last `window` ones, itself included; else those at a distance of up to
    half a window on either side.
    """
    seen = torch.ones(new, cached + new, dtype=torch.bool, device=device)
    if causal:
        return seen.tril(cached).triu(cached + 1 - window)
    return seen.tril(cached + window // 2).triu(cached - window // 2)


def prefix_mask(mask_BT: Tensor, prefix_B: Tensor) -> Tensor:
    """Return which keys each query sees, `[B, 1, T, T]` bool: the prefix, and what stands before.

    Positions of the prefix see all of it and nothing else (Raffel et al. 2020, section 3.2.1).
    """
    place_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    in_prefix_BT = (place_T < prefix_B[:, None]) & mask_BT
    return attention_mask(mask_BT, causal=True) | in_prefix_BT[:, None, None, :]
