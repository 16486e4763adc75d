"""Low-rank updates of linear layers (Hu et al. 2021), and those of directions (Liu et al. 2024)."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.block import Block
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.edited_linear import RowChange, as_edited
from transfer_cli.model.products import ProductCounter

Target = Literal["query", "key", "value", "output", "feed_forward"]


class LowRank(RowChange):
    """The update scale x B A of some rows of a matrix; it starts at zero, as B is zero."""

    def __init__(
        self,
        weight: Tensor,
        rows: slice,
        *,
        rank: int,
        scale: float,
        dropout: float,
        lr_ratio: float = 1.0,
    ) -> None:
        super().__init__(rows)
        self.scale = scale
        self.rates = {"up": lr_ratio}
        self.drop = Dropout(dropout)
        self.down = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.up = nn.Parameter(torch.zeros(rows.stop - rows.start, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def change_(self, out: Tensor, hidden: Tensor, linear: nn.Linear) -> None:
        out.add_(self.update(hidden))

    def fold_(self, weight: Tensor, bias: Tensor | None) -> None:
        weight.add_(self.matrix())

    def add_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> None:
        down, up = counter.trains(self.down), counter.trains(self.up)
        counter.add(unit, self.down.numel(), needs_grad=needs_grad, trains=down)
        counter.add(unit, self.up.numel(), needs_grad=needs_grad or down, trains=up)

    def update(self, hidden: Tensor) -> Tensor:
        """Return the update of the layer's output at `rows`."""
        return F.linear(F.linear(self.drop(hidden), self.down), self.up) * self.scale

    def matrix(self) -> Tensor:
        """Return scale x B A."""
        return self.scale * self.up @ self.down


class Decomposed(LowRank):
    """Rows of a matrix as magnitude times direction: m (W_0 + scale x B A) / ||W_0 + scale x B A||.

    The norm is that of each row, and a constant to the backward pass (DoRA; Liu et al. 2024,
    sections 4.1 and 4.3). It starts as the plain layer, as m is the norm of W_0.

    The arguments are those of `LowRank`.
    """

    def __init__(self, weight: Tensor, rows: slice, **options: Any) -> None:
        super().__init__(weight, rows, **options)
        self.magnitude = nn.Parameter(torch.empty(rows.stop - rows.start))
        if not weight.is_meta:  # even a sum would import torch's compiler there, for seconds
            self.magnitude.data = _norm_of_rows(weight[rows].detach())

    def change_(self, out: Tensor, hidden: Tensor, linear: nn.Linear) -> None:
        gain = self._gain(linear.weight[self.rows])
        plain = out.clone() if linear.bias is None else out - linear.bias[self.rows]
        # As a difference: at a gain of 1 the plain output stays as it is, to the last bit. Dropout
        # is on the input of the update alone, as in LoRA.
        out.add_((gain - 1) * plain + gain * self.update(hidden))

    def fold_(self, weight: Tensor, bias: Tensor | None) -> None:
        weight.copy_(self._gain(weight)[:, None] * (weight + self.matrix()))

    def _gain(self, weight: Tensor) -> Tensor:
        """Return m / ||W_0 + scale x B A|| of each row."""
        # Not by `no_grad`: torch before 2.11 keeps what autocast makes of A there, untrained.
        norm = _norm_of_rows(weight + self.matrix()).detach()
        # A row of zeros has a magnitude of 0 as well.
        return self.magnitude / norm.clamp(min=torch.finfo(norm.dtype).tiny)


def _norm_of_rows(weight: Tensor) -> Tensor:
    return weight.square().sum(1).sqrt()


def add_lora(
    block: Block, targets: tuple[Target, ...], make: Callable[[Tensor, slice], LowRank]
) -> None:
    """Add low-rank updates of the targets to a block.

    The target `feed_forward` is two matrices; a decoder's block has two attentions.

    Args:
        make: Returns an update of these rows of a matrix.

    Raises:
        ValueError: The block has low-rank updates already.
    """
    if any(isinstance(module, LowRank) for module in block.modules()):
        raise ValueError("it has LoRA already; give all targets to one LoRA")

    def update(owner: nn.Module, name: str, parts: Mapping[str, slice] | None = None) -> None:
        layer = as_edited(getattr(owner, name))
        for part, rows in (parts or {"all": slice(0, layer.out_features)}).items():
            layer.lora[part] = make(layer.weight, rows).to(layer.weight)
        setattr(owner, name, layer)

    for attention in block.attentions:
        for name, rows in attention.projections.items():
            parts: dict[str, slice] = {part: rows[part] for part in rows if part in targets}
            if parts:
                update(attention, name, parts)
        if "output" in targets:
            update(attention, "output")
    if "feed_forward" in targets:
        update(block.feed_forward, "inner")
        update(block.feed_forward, "output")
