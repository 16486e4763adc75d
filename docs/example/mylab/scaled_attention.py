"""An edit of our own: learned factors on the keys and values, as in (IA)^3 (Liu et al. 2022).

The paper also scales the inner layer of the feed-forward part; that is left out here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.adaptation.edit import Edit
from transfer_cli.model.added import Added
from transfer_cli.model.transfer_model import TransferModel


class Factors(Added):
    """One factor for each output of a layer, 1 at birth; those of the first ones stay 1.

    Being `Added`, it is found by plans, rates, stored weights and exports.

    Args:
        outputs: Of the layer.
        first: The first output that is scaled.
    """

    kind = "scaled keys and values"

    def __init__(self, outputs: int, first: int) -> None:
        super().__init__()
        self.first = first
        self.stretch = nn.Parameter(torch.ones(outputs - first))

    def forward(self) -> Tensor:
        """Return the factors of all outputs."""
        return F.pad(self.stretch, (self.first, 0), value=1.0)


class ScaledLinear(nn.Linear):
    """A linear layer whose outputs are scaled; it keeps the names of its weight and bias.

    Args:
        linear: The layer it stands for; its very parameters are used.
        first: The first output that is scaled.
    """

    def __init__(self, linear: nn.Linear, first: int) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.factors = Factors(linear.out_features, first).to(linear.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the scaled outputs."""
        return super().forward(hidden) * self.factors()

    def merged(self) -> nn.Linear:
        """Return a plain layer of the same outputs: with this the factors can be merged."""
        factors = self.factors().detach()
        plain = nn.Linear(self.in_features, self.out_features, device="meta")
        plain.weight = nn.Parameter(self.weight.detach() * factors[:, None])
        plain.bias = nn.Parameter(self.bias.detach() * factors)
        return plain


@dataclass(frozen=True)
class ScaledAttention(Edit):
    """Factors on the keys and values of every block."""

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        """Put the factors around the layer that computes queries, keys and values."""
        for number, block in enumerate(model.backbone.blocks):
            packed = block.attention.packed
            if type(packed) is not nn.Linear:
                raise ValueError(f"block {number}: another edit has changed its attention already")
            block.attention.packed = ScaledLinear(packed, first=packed.in_features)
        return set()
