"""Cached keys and values of earlier positions.

Legend: B batch, H heads, T positions, W width of a head.
"""

from torch import Tensor


class LayerKVCache:
    """The keys and values of one block.

    Args:
        max_length: Maximum number of positions; their memory is allocated once.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        """Number of cached positions."""
        self._both: tuple[Tensor, Tensor] | None = None

    def extend(self, key_BHTW: Tensor, value_BHTW: Tensor) -> tuple[Tensor, Tensor]:
        """Append positions; return all cached keys and values.

        Raises:
            ValueError: They exceed `max_length`.
        """
        first, self.length = self.length, self.length + key_BHTW.shape[2]
        if self.length > self.max_length:
            raise ValueError(f"{self.length} positions exceed the cache's {self.max_length}")
        if self._both is None:
            rows, heads, _, width = key_BHTW.shape
            size = (rows, heads, self.max_length, width)
            self._both = key_BHTW.new_empty(size), value_BHTW.new_empty(size)
        for cache, new in zip(self._both, (key_BHTW, value_BHTW), strict=True):
            cache[:, :, first : self.length] = new
        keys, values = self._both
        return keys[:, :, : self.length], values[:, :, : self.length]

    def repeat(self, rows: int) -> None:
        """Repeat the only row `rows` times."""
        if self._both is not None:
            keys, values = (cache.repeat(rows, 1, 1, 1) for cache in self._both)
            self._both = keys, values


class KVCache:
    """The keys and values of every block of a causal model.

    Args:
        depth: Number of blocks.
        max_length: See `LayerKVCache`.
    """

    def __init__(self, depth: int, max_length: int) -> None:
        self.layers = [LayerKVCache(max_length) for _ in range(depth)]

    @property
    def length(self) -> int:
        """Number of cached positions."""
        return self.layers[0].length

    def repeat(self, rows: int) -> None:
        """Repeat the only text `rows` times, for several continuations of one prompt."""
        for layer in self.layers:
            layer.repeat(rows)
