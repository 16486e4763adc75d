"""Cached keys and values of earlier positions.

Legend: B batch, H heads, T positions, W width of a head.
"""

import torch
from torch import Tensor


class LayerKVCache:
    """The keys and values of one block.

    Args:
        max_length: Maximum number of positions; their memory is allocated once.
        keep: How many positions stay for the next pass, the last ones; None: all.
    """

    def __init__(self, max_length: int, keep: int | None = None) -> None:
        self.max_length = max_length
        self._keep = keep
        self._filled = 0
        self._kv: list[Tensor] = []
        self._place_1: Tensor | None = None
        self._side_attention: LayerKVCache | None = None
        self.source_kv: list[Tensor] = []
        """The keys and values of what a decoder reads, once there are some."""

    @property
    def length(self) -> int:
        """Number of cached positions that the next pass sees."""
        if self._place_1 is not None:
            return self.max_length - 1
        return self._filled if self._keep is None else min(self._filled, self._keep)

    @property
    def side_attention(self) -> "LayerKVCache":
        """The cache of the attention that an edit has put beside the block."""
        if self._side_attention is None:
            self._side_attention = LayerKVCache(self.max_length, self._keep)
        return self._side_attention

    def extend(self, key_BHTW: Tensor, value_BHTW: Tensor) -> tuple[Tensor, Tensor]:
        """Append up to `max_length` positions; return all cached keys and values."""
        if self._place_1 is not None and self._kv:
            key, value = self._kv
            return (
                key.index_copy_(2, self._place_1, key_BHTW),
                value.index_copy_(2, self._place_1, value_BHTW),
            )
        first, before = self.length, self._filled
        self._filled = first + key_BHTW.shape[2]
        if self._filled > self.max_length:
            raise ValueError(f"{self._filled} positions exceed the cache's {self.max_length}")
        if not self._kv:
            rows, heads, _, width = key_BHTW.shape
            size = (rows, heads, self.max_length, width)
            self._kv = [key_BHTW.new_empty(size), value_BHTW.new_empty(size)]
        for cache, new in zip(self._kv, (key_BHTW, value_BHTW), strict=True):
            if first < before:
                cache[:, :, :first] = cache[:, :, before - first : before].clone()
            cache[:, :, first : self._filled] = new
        keys, values = self._kv
        return keys[:, :, : self._filled], values[:, :, : self._filled]

    def fix_length(self, place_1: Tensor) -> None:
        """See `KVCache.fix_length`."""
        self._place_1 = place_1
        for states in self._kv:
            states[:, :, self._filled :] = 0  # what a mask hides must still be finite
        if self._side_attention is not None:
            self._side_attention.fix_length(place_1)

    def select(self, rows_N: Tensor) -> None:
        """Keep the rows with these numbers alone, in this order; one may be kept several times."""
        self._kv = [_take_rows(states, rows_N, self._filled) for states in self._kv]
        self.source_kv = [_take_rows(s, rows_N, s.shape[2]) for s in self.source_kv]
        if self._side_attention is not None:
            self._side_attention.select(rows_N)

    def fork(self, rows: int, max_length: int, length: int) -> "LayerKVCache":
        """Return a cache of the only row's first `length` positions, `rows` times."""
        new = LayerKVCache(max_length, self._keep)
        if self._kv:
            new.extend(*(states[:, :, :length].expand(rows, -1, -1, -1) for states in self._kv))
        if self._side_attention is not None:
            new._side_attention = self._side_attention.fork(rows, max_length, length)
        new.source_kv = [states.expand(rows, -1, -1, -1) for states in self.source_kv]
        return new


def _take_rows(states_BHTW: Tensor, rows_N: Tensor, filled: int) -> Tensor:
    """Return rows of a cache whose first positions are filled; in place where it can be."""
    if len(rows_N) == len(states_BHTW):
        moved_M = (rows_N != torch.arange(len(rows_N), device=rows_N.device)).nonzero().squeeze(1)
        states_BHTW[moved_M, :, :filled] = states_BHTW[rows_N[moved_M], :, :filled]
        return states_BHTW
    states_NHTW = states_BHTW.new_empty(len(rows_N), *states_BHTW.shape[1:])
    states_NHTW[:, :, :filled] = states_BHTW[rows_N, :, :filled]
    return states_NHTW


class KVCache:
    """The keys and values of every block of a causal model.

    Args:
        padding_B: How many positions at the beginning of each text are padding; None: none are.
        keep: See `LayerKVCache`; for positions that are distances. Not together with padding.
    """

    def __init__(
        self, depth: int, max_length: int, padding_B: Tensor | None = None, keep: int | None = None
    ) -> None:
        self.padding_B = padding_B
        self.place_1: Tensor | None = None
        """Where a pass writes, on its device; None: behind what is cached."""
        self.layers = [LayerKVCache(max_length, keep) for _ in range(depth)]

    @property
    def length(self) -> int:
        """Number of cached positions that the next pass sees."""
        return self.layers[0].length

    def fix_length(self, device: torch.device) -> Tensor:
        """Have each later pass, of one token, compute with `max_length` positions.

        It writes at a place that it reads on its device, so that a CUDA graph of it serves all
        places, and sees what stands up to there. Return the place, `[1]`; who calls moves it.
        Not together with padding, or with `keep`.
        """
        self.place_1 = torch.tensor([self.length], device=device)
        for layer in self.layers:
            layer.fix_length(self.place_1)
        return self.place_1

    def select(self, rows_N: Tensor) -> None:
        """Keep the texts with these numbers alone; see `LayerKVCache.select`."""
        if self.padding_B is not None:
            self.padding_B = self.padding_B[rows_N]
        for layer in self.layers:
            layer.select(rows_N)

    def fork(self, rows: int, max_length: int, length: int | None = None) -> "KVCache":
        """Return a cache of its own for `rows` texts that begin as the only one here does.

        Args:
            length: How many positions they share with it; None: all.
        """
        new = KVCache(0, max_length)
        shared = self.length if length is None else length
        new.layers = [layer.fork(rows, max_length, shared) for layer in self.layers]
        return new
