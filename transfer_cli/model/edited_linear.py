"""Linear layers that edits have changed.

Such a layer remains a linear layer: it keeps its weight and bias under their names, holds what was
added beside them, and can be merged into a plain one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from transfer_cli.model.added import Added
from transfer_cli.model.block import Block
from transfer_cli.model.products import ProductCounter


class RowChange(Added, ABC):
    """A change of some rows of a linear layer's matrix, which are features of its output."""

    def __init__(self, rows: slice) -> None:
        super().__init__()
        self.rows = rows

    @abstractmethod
    def change_(self, out: Tensor, hidden: Tensor, linear: nn.Linear) -> None:
        """Change the output of `linear` at `rows`, in place; `hidden` is its input."""

    def add_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> None:
        """Count what it multiplies of the layer's input; see `model.products`."""

    @abstractmethod
    def fold_(self, weight: Tensor, bias: Tensor | None) -> None:
        """Change these rows of the weight and bias likewise, in place."""


class Factors(RowChange):
    """l, learned factors of the features at `rows`; ones at first ((IA)3; Liu et al. 2022).

    Not only of an output: `EditedLinear.input_factors` are those of an input.
    """

    kind = "learned factors"

    def __init__(self, rows: slice) -> None:
        super().__init__(rows)
        self.weight = nn.Parameter(torch.ones(rows.stop - rows.start))

    def change_(self, out: Tensor, hidden: Tensor, linear: nn.Linear) -> None:
        out.mul_(self.weight)

    def fold_(self, weight: Tensor, bias: Tensor | None) -> None:
        weight.mul_(self.weight[:, None])
        if bias is not None:
            bias.mul_(self.weight)


class EditedLinear(nn.Linear):
    """A linear layer with added changes: first low-rank updates, then factors.

    The order is that of the formulas, not that of the edits: factors are of what the layer with
    its updates returns.

    Args:
        linear: The layer it replaces; it shares that layer's parameters.
    """

    input_factors: Factors | None
    """Multiply the input, so the columns of the matrix."""

    def __init__(self, linear: nn.Linear) -> None:
        has_bias = linear.bias is not None
        # On the meta device, as these weights are replaced at once.
        super().__init__(linear.in_features, linear.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.register_module("input_factors", None)
        self.lora, self.factors = nn.ModuleDict(), nn.ModuleDict()
        self.train(linear.training)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return W_0 x + b, with the changes of its rows."""
        if self.input_factors is not None:
            hidden = hidden * self.input_factors.weight.to(hidden.dtype)
        out = super().forward(hidden)
        for change in self._changes():
            change.change_(out[..., change.rows], hidden, self)
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return a plain layer with the same outputs; this layer stays unchanged."""
        weight, bias = self.weight.clone(), None if self.bias is None else self.bias.clone()
        for change in self._changes():
            change.fold_(weight[change.rows], None if bias is None else bias[change.rows])
        if self.input_factors is not None:
            weight *= self.input_factors.weight
        plain = nn.Linear(self.in_features, self.out_features, bias=bias is not None, device="meta")
        plain.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        if bias is not None:
            plain.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        return plain.train(self.training)

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """See `CountsProducts`."""
        needs_grad = needs_grad or counter.trains(self.input_factors)
        size = self.in_features * self.out_features
        counter.add(unit, size, needs_grad=needs_grad, trains=counter.trains(self.weight))
        for change in self._changes():
            change.add_products(counter, unit, needs_grad=needs_grad)
        return needs_grad or counter.trains(self)

    def _changes(self) -> Iterator[RowChange]:
        changes = chain(self.lora.values(), self.factors.values())
        return cast("Iterator[RowChange]", changes)


def as_edited(linear: nn.Linear) -> EditedLinear:
    """Return a layer that takes changes: itself, if it has some already."""
    return linear if isinstance(linear, EditedLinear) else EditedLinear(linear)


def add_ia3(block: Block) -> None:
    """Add factors of a block's keys, values and inner activation of its feed-forward layer.

    Those of keys and values act before rotary positions and norms of keys, and heads of queries
    that share a head of keys and values share its factors. Those of the inner activation (of the
    product, in a gated layer) are factors of the output matrix's input.

    Raises:
        ValueError: The block has such factors already.
    """
    if any(isinstance(module, Factors) for module in block.modules()):
        raise ValueError("it has the factors of (IA)3 already; one such edit is enough")
    for attention in block.attentions:
        name, rows = next(pair for pair in attention.projections.items() if "key" in pair[1])
        layer = as_edited(getattr(attention, name))
        for part in ("key", "value"):
            layer.factors[part] = Factors(rows[part]).to(layer.weight)
        setattr(attention, name, layer)
    output = as_edited(block.feed_forward.output)
    output.input_factors = Factors(slice(0, output.in_features)).to(output.weight)
    block.feed_forward.output = output
