"""Rows of real tokens, so that padding is not computed.

Legend: B batch, T positions, N real tokens, R rows, L places in a row.
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
        lengths: The positions of each sequence up to its last real token; None on a device, which
            would have to be asked for them.
    """

    rows: Tensor
    batch: int
    positions: int
    lengths: tuple[int, ...] | None = None

    @classmethod
    def from_mask(cls, mask_BT: Tensor, rows: Tensor) -> "Packing":
        """Return the packing of a batch with this mask, True at `rows`."""
        lengths = None
        if mask_BT.device.type == "cpu":
            backwards_BT = mask_BT.flip(1).int()
            lengths = tuple((mask_BT.any(1) * (mask_BT.shape[1] - backwards_BT.argmax(1))).tolist())
        batch, positions = mask_BT.shape
        return cls(rows, batch, positions, lengths)

    def pack(self, padded: Tensor) -> Tensor:
        """Return `[1, N, ...]` of `[B, T, ...]`."""
        return padded.flatten(0, 1).index_select(0, self.rows)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return `[B, T, ...]` of `[1, N, ...]`, with 0 at padding."""
        padded = packed.new_zeros(self.batch * self.positions, *packed.shape[2:])
        padded[self.rows] = packed[0]  # `index_copy` would keep `packed` for the backward pass
        return padded.view(self.batch, self.positions, *packed.shape[2:])


def pack(padded: Tensor, packing: Packing | None) -> Tensor:
    """Return `[1, N, ...]` of `[B, T, ...]`; without a packing the tensor itself."""
    return padded if packing is None else packing.pack(padded)


def unpack(states: Tensor, packing: Packing | None) -> Tensor:
    """Return `[B, T, ...]` of `[1, N, ...]`; without a packing the tensor itself."""
    return states if packing is None else packing.unpack(states)


@dataclass(frozen=True)
class RowPacking:
    """Puts several sequences of a padded batch into each row, and back.

    Args:
        real_rows: Where the real tokens are, `[N]`, counted through the batch row by row.
        places: Where they are in the new rows, counted likewise.
        sequence: The number of the sequence at each place, `[R, L]`; -1: there is none.
        batch: B.
        positions: T.
    """

    real_rows: Tensor
    places: Tensor
    sequence: Tensor
    batch: int
    positions: int

    @property
    def mask(self) -> Tensor:
        """True at real tokens, `[R, L]`."""
        return self.sequence >= 0

    def pack(self, padded: Tensor) -> Tensor:
        """Return `[R, L, ...]` of `[B, T, ...]`, with 0 where there is no token."""
        return _move_rows(padded, self.real_rows, self.places, *self.sequence.shape)

    def unpack(self, packed: Tensor) -> Tensor:
        """Return `[B, T, ...]` of `[R, L, ...]`, with 0 at padding."""
        return _move_rows(packed, self.places, self.real_rows, self.batch, self.positions)


def _move_rows(values: Tensor, start: Tensor, end: Tensor, rows: int, positions: int) -> Tensor:
    moved = values.new_zeros(rows * positions, *values.shape[2:])
    moved[end] = values.flatten(0, 1).index_select(0, start)
    return moved.view(rows, positions, *values.shape[2:])
