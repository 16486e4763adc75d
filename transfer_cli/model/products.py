"""What a pass multiplies: the products of matrices, each at the price of its forward and backward.

A layer that multiplies by something else than its linear layers, or in another order than that in
which they were made, says so itself (`CountsProducts`); of others, the linear layers are counted.

A *unit* is what a price is of: `token`, a position in the backbone; `place`, one that attention
sees, which may be padding that nothing else computes; `pair` and `near_pair`, a query and a key in
a block that sees everything, or has a window; `window_pair` and so on, those that a part of sparse
attention computes (`model.sparse_attention`); `remembered`, a position of a memory; `distance`, one
between a query and a key, encoded once a pass; `heads.NAME...`, a row in a head.
"""

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

TOKEN, PLACE, PAIR, NEAR_PAIR = "token", "place", "pair", "near_pair"
REMEMBERED, DISTANCE = "remembered", "distance"
SOURCE, CROSS_PAIR = "source.", "cross_pair"
"""What the units of an encoder begin with, and a query of a decoder and a key of its source."""


class ProductCounter:
    """Follows a state through layers, and adds up what is multiplied on its way.

    `needs_grad` says of a state whether anything that it was computed from trains: what comes next
    has then to return the gradient of its input.

    Attributes:
        trained: The ids of the parameters that train.
        prices: The floating-point operations of each unit, forward and backward.
        pairs: The units of a query and a key in the block that is counted; as many heads have each.
    """

    def __init__(self, trained: Set[int]) -> None:
        self.trained = trained
        self.prices: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.pairs: Sequence[str] = ()
        self.source_needs_grad = False
        """Whether the states move that a decoder's attention reads of its source."""

    def trains(self, *parts: nn.Module | Tensor | None) -> bool:
        """Return whether anything in these parts trains."""
        parameters = (p.parameters() if isinstance(p, nn.Module) else [p] for p in parts)
        return any(id(parameter) in self.trained for some in parameters for parameter in some)

    def add(self, unit: str, size: int, *, needs_grad: bool, trains: bool) -> None:
        """Count a product of `size` numbers for each unit with a state."""
        price = self.prices[unit]
        price[0] += 2 * size
        price[1] += 2 * size * (needs_grad + trains)

    def add_attention(self, width: int, *, needs_grad: bool) -> None:
        """Count scores and weighted sums; all that they are made of has a gradient, or nothing."""
        for unit in self.pairs:
            self.add(unit, 2 * width // len(self.pairs), needs_grad=needs_grad, trains=needs_grad)

    def count(self, part: nn.Module, unit: str = TOKEN, *, needs_grad: bool) -> bool:
        """Count a layer; return whether what it returns needs a gradient."""
        if isinstance(part, CountsProducts):
            return part.count_products(self, unit, needs_grad=needs_grad)
        if isinstance(part, nn.Linear):
            size = part.in_features * part.out_features
            self.add(unit, size, needs_grad=needs_grad, trains=self.trains(part.weight))
        for child in part.children():
            needs_grad = self.count(child, unit, needs_grad=needs_grad)
        return needs_grad or self.trains(*part.parameters(recurse=False))


@runtime_checkable
class CountsProducts(Protocol):
    """A layer that says itself what it multiplies."""

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """Count its products; return whether what it returns needs a gradient."""
