"""Projected attention layers, a narrow attention beside every block (Stickland and Murray 2019).

Legend: B batch, T positions, D width, E narrow width, H heads.
"""

from torch import Tensor, nn

from transfer_cli.model.added import Added
from transfer_cli.model.attention import AttentionInputs, attend_seen
from transfer_cli.model.backbone import initialise_plain
from transfer_cli.model.packing import pack, unpack
from transfer_cli.model.products import ProductCounter


class SharedProjections(Added):
    """V_E and V_D, into the narrow width and out of it; all blocks share them.

    They start as zero: V_D is.

    Args:
        width: D.
        size: E.
    """

    kind = "projections of its projected attention layers"
    in_graphs = False

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.encode = nn.Linear(width, size, bias=False)
        self.decode = nn.Linear(size, width, bias=False)
        initialise_plain(self.encode)
        nn.init.zeros_(self.decode.weight)


class ProjectedAttention(Added):
    """V_D MH(V_E z), to be added beside a block; MH has no output projection (section 3.2).

    It sees the keys that the block's attention sees, and no positions: nothing is rotated.

    Args:
        shared: V_E and V_D, which the model holds once.
        heads: H, as many as the block's attention has, whose masks it reads.
    """

    kind = "projected attention layers"
    in_graphs = False

    def __init__(self, shared: SharedProjections, heads: int) -> None:
        super().__init__()
        self._shared = (shared,)  # in a tuple, so that it is registered in one place
        self.heads = heads
        size = shared.encode.out_features
        self.packed = nn.Linear(size, 3 * size, bias=False)
        initialise_plain(self.packed)

    @property
    def shared(self) -> SharedProjections:
        """V_E and V_D."""
        return self._shared[0]

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """See `CountsProducts`."""
        encoded = counter.count(self.shared.encode, unit, needs_grad=needs_grad)
        projected = counter.count(self.packed, unit, needs_grad=encoded)
        counter.add_attention(self.shared.encode.out_features, needs_grad=projected)
        return counter.count(self.shared.decode, unit, needs_grad=projected)

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`, or packed as the hidden states are."""
        shared = self.shared
        projected = unpack(self.packed(shared.encode(hidden_BTD)), inputs.packing)
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in projected.chunk(3, dim=2)
        )
        if inputs.kv_cache is not None:
            key, value = inputs.kv_cache.side_attention.extend(key, value)
        mixed_BTE = attend_seen(query, key, value, inputs).transpose(1, 2).flatten(2)
        out: Tensor = shared.decode(pack(mixed_BTE, inputs.packing))
        return out
