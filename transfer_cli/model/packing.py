"""Rows of real tokens: what layers that see one token at a time compute, so never padding.

Legend: B batch, T positions, N real tokens.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Turns a padded batch into one row of its real tokens, and back.

    Args:
        rows: Where the real tokens are, `[N]`, counted through the batch row by row.
        batch: B.
        positions: T.
    """

    rows: Tensor
    batch: int
    positions: int

    def pack(self, padded: Tensor) -> Tensor:
        """Return `[1, N, ...]` of `[B, T, ...]`."""
        return padded.flatten(0, 1).index_select(0, self.rows)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return `[B, T, ...]` of `[1, N, ...]`, with 0 at padding."""
        padded = packed.new_zeros(self.batch * self.positions, *packed.shape[2:])
        padded = padded.index_copy(0, self.rows, packed[0])
        return padded.view(self.batch, self.positions, *packed.shape[2:])
