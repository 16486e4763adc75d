"""What attention has computed of earlier positions, kept so that it is not computed again.

Legend: B batch, H heads, T positions, W width of a head.
"""

from torch import Tensor


class LayerKeyValues:
    """The keys and values of one block.

    Args:
        room: Positions that there will ever be; memory for them is taken once.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.length = 0
        """Positions that are known."""
        self._both: tuple[Tensor, Tensor] | None = None

    def extend(self, key_BHTW: Tensor, value_BHTW: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions; return the keys and values of all that are known now.

        Raises:
            ValueError: There is no room for them.
        """
        first, self.length = self.length, self.length + key_BHTW.shape[2]
        if self.length > self.room:
            raise ValueError(f"{self.length} positions, and room for {self.room}")
        if self._both is None:
            rows, heads, _, width = key_BHTW.shape
            size = (rows, heads, self.room, width)
            self._both = key_BHTW.new_empty(size), value_BHTW.new_empty(size)
        for cache, new in zip(self._both, (key_BHTW, value_BHTW), strict=True):
            cache[:, :, first : self.length] = new
        keys, values = self._both
        return keys[:, :, : self.length], values[:, :, : self.length]

    def repeat(self, rows: int) -> None:
        """Make `rows` copies of the one row that there is."""
        if self._both is not None:
            keys, values = (cache.repeat(rows, 1, 1, 1) for cache in self._both)
            self._both = keys, values


class KeyValues:
    """The keys and values of every block of a causal model, for texts that grow on their right.

    Args:
        depth: Blocks.
        room: See `LayerKeyValues`.
    """

    def __init__(self, depth: int, room: int) -> None:
        self.layers = [LayerKeyValues(room) for _ in range(depth)]

    @property
    def length(self) -> int:
        """Positions that are known."""
        return self.layers[0].length

    def repeat(self, rows: int) -> None:
        """Make `rows` copies of the one text that there is: they begin alike."""
        for layer in self.layers:
            layer.repeat(rows)
