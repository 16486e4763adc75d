"""Low-rank updates of linear layers (Hu et al. 2021).

A layer with updates remains a linear layer: it keeps its weight and bias under their names, and
adds the updates under `lora`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.added import Added
from transfer_cli.model.block import Block
from transfer_cli.model.dropout import Dropout

Target = Literal["query", "key", "value", "output", "feed_forward"]

IN_PROJ_TARGETS: tuple[Target, ...] = ("query", "key", "value")
"""The matrices in the input projection `attention.packed`, in the order of their rows."""


class LowRank(Added):
    """The update scale x B A of some rows of a matrix; it starts at zero, as B is zero.

    Args:
        inputs: Columns of the matrix.
        rows: The updated rows of the matrix.
        rank: Rows of A, columns of B.
        scale: alpha / rank.
        dropout: On the input, in training.
    """

    def __init__(
        self, inputs: int, rows: slice, *, rank: int, scale: float, dropout: float
    ) -> None:
        super().__init__()
        self.rows = rows
        self.scale = scale
        self.drop = Dropout(dropout)
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.zeros(rows.stop - rows.start, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the update of the layer's output at `rows`."""
        return F.linear(F.linear(self.drop(hidden), self.down), self.up) * self.scale

    def matrix(self) -> Tensor:
        """Return scale x B A."""
        return self.scale * self.up @ self.down


class LowRankLinear(nn.Linear):
    """A linear layer with low-rank updates of some of its rows.

    Args:
        linear: The layer it replaces; it shares that layer's parameters.
        updates: The updates, by name.
    """

    def __init__(self, linear: nn.Linear, updates: Mapping[str, LowRank]) -> None:
        has_bias = linear.bias is not None
        # On the meta device, as these weights are replaced at once.
        super().__init__(linear.in_features, linear.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.lora = nn.ModuleDict(dict(updates))
        self.train(linear.training)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return W_0 x + b, plus each update at its rows."""
        out = super().forward(hidden)
        for update in self._updates:
            out[..., update.rows].add_(update(hidden))
        return out

    def merged(self) -> nn.Linear:
        """Return a plain layer with the same outputs; this layer stays unchanged."""
        weight = self.weight.detach().clone()
        for update in self._updates:
            weight[update.rows] += update.matrix().detach()
        plain = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        plain.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        plain.bias = self.bias
        return plain.train(self.training)

    @property
    def _updates(self) -> Iterable[LowRank]:
        return cast("Iterable[LowRank]", self.lora.values())


def add_lora(
    block: Block, targets: tuple[Target, ...], *, rank: int, alpha: float, dropout: float
) -> None:
    """Add low-rank updates of the targets to a block.

    The target `feed_forward` is two matrices.

    Raises:
        ValueError: The block has low-rank updates already.
    """
    if any(isinstance(module, LowRankLinear) for module in block.modules()):
        raise ValueError("it has LoRA already; give all targets to one LoRA")

    def update(linear: nn.Linear, rows: slice) -> LowRank:
        made = LowRank(linear.in_features, rows, rank=rank, scale=alpha / rank, dropout=dropout)
        return made.to(linear.weight)

    def whole(linear: nn.Linear) -> nn.Linear:
        return LowRankLinear(linear, {"all": update(linear, slice(0, linear.out_features))})

    attention, feed_forward = block.attention, block.feed_forward
    in_proj, ends = attention.packed, list(itertools.accumulate(attention.rows, initial=0))
    parts: dict[str, LowRank] = {
        name: update(in_proj, slice(first, end))
        for name, (first, end) in zip(IN_PROJ_TARGETS, itertools.pairwise(ends), strict=True)
        if name in targets
    }
    if parts:
        attention.packed = LowRankLinear(in_proj, parts)
    if "output" in targets:
        attention.output = whole(attention.output)
    if "feed_forward" in targets:
        feed_forward.inner = whole(feed_forward.inner)
        feed_forward.output = whole(feed_forward.output)
