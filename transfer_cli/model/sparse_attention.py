"""Causal attention to some keys alone, without a table of all pairs (Child et al. 2019).

A *part* says which keys some heads see. It computes them by views: queries and keys are cut into
blocks, or gathered, so that torch's own attention has few pairs left to compute. On a GPU those
parts that need a mask even then take `flex_attention`, which skips what nobody sees.

Legend: B batch, H heads, T queries, S keys, W width of a head, N blocks of l positions, M keys that
were gathered.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.model.attention_dropout import attend
from transfer_cli.model.shape import BackboneShape

FLEX_TILE = 128
"""Queries, and keys, of a tile, which it computes or leaves out as a whole."""


@dataclass(frozen=True)
class SparsePart(ABC):
    """Which keys some heads see, by blocks of l: each query at least one, and none behind it."""

    block: int

    name: ClassVar[str]
    """Of a pair of a query and a key that it computes; see `engine.cost`."""
    needs_mask: ClassVar[bool]
    """Whether its views leave pairs that are not seen, other than those of a causal mask."""

    @abstractmethod
    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Return whether queries see keys, given the positions of both, broadcast."""

    def sees_any(
        self, first_query: Tensor, last_query: Tensor, first_key: Tensor, last_key: Tensor
    ) -> Tensor:
        """Return whether some of these queries may see some of these keys, broadcast."""
        return first_key <= last_query

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Return the values, weighted, `[B, H, T, W]`; all that it gets has this shape."""

    @abstractmethod
    def pairs_seen(self, length: int) -> int:
        """Return how many pairs are seen in a text, of one head."""

    @abstractmethod
    def pairs_computed(self, length: int) -> int:
        """Return how many pairs `attend` computes, of one head."""

    def num_blocks(self, length: int) -> int:
        """Return N, the last block perhaps being shorter."""
        return -(-length // self.block)

    def cut(self, states_BHTW: Tensor) -> Tensor:
        """Return `[B, H, N, l, W]`, with zeros after the last position."""
        missing = -states_BHTW.shape[2] % self.block
        cut: Tensor = F.pad(states_BHTW, (0, 0, 0, missing)).unflatten(2, (-1, self.block))
        return cut

    def join(self, states_BHNlW: Tensor, length: int) -> Tensor:
        """Return blocks put together again, `[B, H, T, W]`."""
        return states_BHNlW.flatten(2, 3)[:, :, :length]


class Window(SparsePart):
    """The l positions up to one's own: what is near, wherever blocks begin."""

    name = "window_pair"
    needs_mask = True

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key < self.block)

    def sees_any(
        self, first_query: Tensor, last_query: Tensor, first_key: Tensor, last_key: Tensor
    ) -> Tensor:
        return (first_key <= last_query) & (first_query - last_key < self.block)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Return what blocks of queries make of their own and the previous block of keys."""
        batch, _, length, _ = query.shape
        if length <= self.block:
            return attend(query, key, value, causal=True, dropout=dropout)
        near = [self._with_previous(self.cut(states)) for states in (key, value)]
        # A batch of heads, each of which has N sequences beside each other, as others have heads.
        cut = (states.flatten(0, 1) for states in (self.cut(query), *near))
        mixed = attend(*cut, attn_mask=self._mask(length, query.device), dropout=dropout)
        return self.join(mixed.unflatten(0, (batch, -1)), length)

    def _with_previous(self, blocks_BHNlW: Tensor) -> Tensor:
        previous = F.pad(blocks_BHNlW[:, :, :-1], (0, 0, 0, 0, 1, 0))
        return torch.cat([previous, blocks_BHNlW], dim=3)

    def _mask(self, length: int, device: torch.device) -> Tensor:
        """Return `[N, l, 2 l]`; the first block has none before it."""
        blocks = self.num_blocks(length)
        place = torch.arange(self.block, device=device)[:, None]
        other = torch.arange(-self.block, self.block, device=device)
        first = torch.arange(blocks, device=device)[:, None, None] == 0
        return self.sees(place, other) & ~(first & (other < 0))

    def pairs_seen(self, length: int) -> int:
        beyond = max(0, length - self.block)
        return (length * (length + 1) - beyond * (beyond + 1)) // 2

    def pairs_computed(self, length: int) -> int:
        return length**2 if length <= self.block else 2 * self.num_blocks(length) * self.block**2


class Stride(SparsePart):
    """Every l-th position back from one's own."""

    name = "stride_pair"
    needs_mask = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & ((query - key) % self.block == 0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Return what l sequences of N make of themselves."""
        apart = (self.cut(states).transpose(2, 3).flatten(0, 1) for states in (query, key, value))
        mixed = attend(*apart, causal=True, dropout=dropout).unflatten(0, (len(query), -1))
        return self.join(mixed.transpose(2, 3), query.shape[2])

    def pairs_seen(self, length: int) -> int:
        whole, rest = divmod(length, self.block)
        return (self.block * whole * (whole + 1)) // 2 + rest * (whole + 1)

    def pairs_computed(self, length: int) -> int:
        return self.block * self.num_blocks(length) ** 2


class OwnBlock(SparsePart):
    """The positions of one's own block, up to one's own."""

    name = "block_pair"
    needs_mask = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query // self.block == key // self.block)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Return what N sequences of l make of themselves."""
        batch, _, length, _ = query.shape
        if length <= self.block:
            return attend(query, key, value, causal=True, dropout=dropout)
        apart = (self.cut(states).flatten(0, 1) for states in (query, key, value))
        mixed = attend(*apart, causal=True, dropout=dropout)
        return self.join(mixed.unflatten(0, (batch, -1)), length)

    def pairs_seen(self, length: int) -> int:
        whole, rest = divmod(length, self.block)
        return (whole * self.block * (self.block + 1) + rest * (rest + 1)) // 2

    def pairs_computed(self, length: int) -> int:
        return length**2 if length <= self.block else self.num_blocks(length) * self.block**2


@dataclass(frozen=True)
class Summary(SparsePart):
    """The last positions of each earlier block; in the first block, which has none, one's own.

    The paper lets a query see those of its own block as well, up to its own position. Heads of
    `OwnBlock` see all of these.

    Args:
        block: l, in positions.
        count: How many of each block.
    """

    count: int

    name: ClassVar[str] = "summary_pair"
    needs_mask: ClassVar[bool] = True

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        is_summary = key % self.block >= self.block - self.count
        is_earlier = key // self.block < query // self.block
        return (is_summary & is_earlier) | ((key == query) & (query < self.block))

    def sees_any(
        self, first_query: Tensor, last_query: Tensor, first_key: Tensor, last_key: Tensor
    ) -> Tensor:
        within = first_key % self.block
        # The first key that is one of a summary, and the first query behind its block.
        summary = first_key + (self.block - self.count - within).clamp(min=0)
        behind = first_key - within + self.block
        is_there = (summary <= last_key) & (behind <= last_query)
        is_own = (first_key <= last_query) & (first_query <= last_key)
        return is_there | (is_own & (first_query < self.block))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Return what queries make of the M keys that were gathered."""
        length = query.shape[2]
        first, rest = value[:, :, : self.block], query[:, :, self.block :]
        mixed = [first * F.dropout(torch.ones_like(first[..., :1]), dropout)]
        if length > self.block:
            before = (self.num_blocks(length) - 1) * self.block
            gathered = (
                self.cut(states[:, :, :before])[..., -self.count :, :].flatten(2, 3)
                for states in (key, value)
            )
            place = torch.arange(length - self.block, device=query.device)[:, None]
            of_block = torch.arange(before // self.block, device=query.device)
            mask = of_block.repeat_interleave(self.count) <= place // self.block
            mixed.append(attend(rest, *gathered, attn_mask=mask, dropout=dropout))
        return torch.cat(mixed, dim=2)

    def pairs_seen(self, length: int) -> int:
        whole, rest = divmod(length, self.block)
        blocks_before = self.block * whole * (whole - 1) // 2 + rest * whole
        return min(length, self.block) + blocks_before * self.count

    def pairs_computed(self, length: int) -> int:
        """Return how many; one's own key is the only one, so that there is nothing to compute."""
        after_first = max(0, length - self.block)
        return after_first * (self.num_blocks(length) - 1) * self.count


@dataclass(frozen=True)
class SparseView:
    """What the heads of a block see.

    Args:
        parts: Each is of equally many heads, in this order.
        starts: The first real position of each text, from which its positions count; what is
            before is padding. None: 0.
    """

    parts: tuple[SparsePart, ...]
    starts: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        """Return the values, weighted, `[B, H, T, W]`.

        Of queries after cached keys, which are few, and in a graph, which has one form for all
        lengths, every pair is computed.

        Args:
            query: `[B, H, T, W]`.
            key: `[B, H, S, W]`; the last T are at the queries' positions.
            value: `[B, H, S, W]`.
            dropout: Of the attention probabilities.
        """
        _, heads, length, _ = query.shape
        if length < key.shape[2] or torch.compiler.is_exporting():
            mask = self.mask(heads, length, key.shape[2], query.device)
            return attend(query, key, value, attn_mask=mask, dropout=dropout)
        states = [query, key, value]
        if self.starts is not None:
            # What is before a text comes after it, where no position of it looks.
            states = [_roll_texts(tensor, self.starts) for tensor in states]
        flex_width = 16  # the narrowest head that `flex_attention` takes
        takes_flex = query.is_cuda and query.shape[-1] >= flex_width
        of_parts = (tensor.chunk(len(self.parts), dim=1) for tensor in states)
        mixed = [
            attend_with_flex(part, own_query, own_key, own_value)
            if part.needs_mask and takes_flex and not dropout
            else part.attend(own_query, own_key, own_value, dropout)
            for part, own_query, own_key, own_value in zip(self.parts, *of_parts, strict=True)
        ]
        mixed_BHTW = torch.cat(mixed, dim=1) if len(mixed) > 1 else mixed[0]
        return mixed_BHTW if self.starts is None else _roll_texts(mixed_BHTW, -self.starts)

    def mask(self, heads: int, new: int, seen: int, device: torch.device) -> Tensor:
        """Return which keys the last `new` positions of `seen` see, `[B or 1, H, T, S]`."""
        place_S = torch.arange(seen, device=device)[None, None]
        if self.starts is not None:
            place_S = place_S - self.starts[:, None, None]
        query_T = place_S[..., seen - new :].mT
        is_seen = torch.stack([part.sees(query_T, place_S) for part in self.parts], dim=1)
        is_seen = is_seen & (place_S >= 0)[:, None]
        # So that no row of padding is without a key, see `patterns.attention_mask`.
        is_seen = is_seen | ((query_T == place_S) & (place_S < 0))[:, None]
        return is_seen.repeat_interleave(heads // len(self.parts), dim=1)


def _roll_texts(states_BHTW: Tensor, by_B: Tensor) -> Tensor:
    """Return each text's states with the ones from a position on first, then those before it."""
    length = states_BHTW.shape[2]
    place_BT = (torch.arange(length, device=by_B.device) + by_B[:, None]) % length
    return states_BHTW.gather(2, place_BT[:, None, :, None].expand_as(states_BHTW))


def attend_with_flex(part: SparsePart, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return what `part.attend` does without dropout, by a kernel that skips unseen blocks."""
    mask = _block_mask(part, query.shape[2], query.device)
    mixed: Tensor = _compiled_flex()(query, key, value, block_mask=mask)
    return mixed


@cache
def _compiled_flex() -> Callable[..., Any]:
    # Imported here: it takes two seconds, and nothing but a GPU asks for it.
    from torch.nn.attention.flex_attention import flex_attention

    # At first for one length; from the second one on for all, as texts come in many.
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled


@lru_cache(maxsize=64)
def _block_mask(part: SparsePart, length: int, device: torch.device) -> Any:
    """Return which tiles the kernel computes, without the table of all pairs that torch's has."""
    from torch.nn.attention.flex_attention import BlockMask

    first = torch.arange(0, length, FLEX_TILE, device=device)
    last = (first + FLEX_TILE).clamp(max=length) - 1
    is_computed = part.sees_any(first[:, None], last[:, None], first, last)
    numbers = is_computed.int().argsort(dim=1, descending=True, stable=True).int()[None, None]
    count = is_computed.sum(1).int()[None, None]
    # None counts as a tile whose pairs are all seen: their masks are asked for all the same.
    return BlockMask.from_kv_blocks(
        count, numbers, torch.zeros_like(count), torch.zeros_like(numbers),
        BLOCK_SIZE=FLEX_TILE, seq_lengths=(length, length),
        mask_mod=lambda _batch, _head, query, key: part.sees(query, key),
    )  # fmt: skip


SPARSE_PARTS: dict[str, Callable[[BackboneShape], tuple[SparsePart, SparsePart]]] = {
    "strided": lambda shape: (Window(shape.window), Stride(shape.window)),
    "fixed": lambda shape: (
        OwnBlock(shape.window), Summary(shape.window, shape.summary_size)
    ),
}  # fmt: skip
"""The parts of each pattern: what is near, and what is far."""


def sparse_parts(shape: BackboneShape) -> Sequence[tuple[SparsePart, ...]]:
    """Return the parts of the block at each place, bottom first; none where it sees everything."""
    if not shape.is_sparse:
        return [()] * shape.depth
    parts = SPARSE_PARTS[shape.attention](shape)
    if shape.sparse == "split":
        return [parts] * shape.depth
    return [(parts[place % len(parts)],) for place in range(shape.depth)]
