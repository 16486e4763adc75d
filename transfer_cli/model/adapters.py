"""Bottleneck adapters, after sub-layers (Houlsby et al. 2019) or beside them (He et al. 2022).

Legend: B batch, T positions, D width.
"""

from torch import Tensor, nn

from transfer_cli.model.added import Added
from transfer_cli.model.backbone import initialise_plain
from transfer_cli.model.block import ACTIVATIONS
from transfer_cli.model.shape import Activation


class Bottleneck(Added):
    """W_up act(W_down z + b_down) + b_up, with 2 D size + size + D parameters.

    It starts as zero: W_up is. With both matrices zero, neither would ever change.

    Args:
        width: D.
        size: Width of the bottleneck.
        activation: Between the two linear layers.
    """

    def __init__(self, width: int, size: int, activation: Activation) -> None:
        super().__init__()
        self.down = nn.Linear(width, size)
        self.up = nn.Linear(size, width)
        self.activation = ACTIVATIONS[activation]
        initialise_plain(self.down)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def squeeze(self, hidden_BTD: Tensor) -> Tensor:
        """Return the bottleneck's output, `[B, T, D]`."""
        out: Tensor = self.up(self.activation(self.down(hidden_BTD)))
        return out


class Adapter(Bottleneck):
    """A(z) = z + the bottleneck of z, behind a sub-layer.

    It starts as the identity. The paper draws both matrices from a truncated N(0, 0.01^2), which is
    only nearly the identity.
    """

    kind = "adapters between its layers"

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        return hidden_BTD + self.squeeze(hidden_BTD)


class ParallelAdapter(Bottleneck):
    """The scaled bottleneck of what a sub-layer reads, to be added to what that returns.

    The paper draws W_down Kaiming-uniform; here it is drawn as all other matrices are.
    """

    kind = "adapters beside its layers"

    def __init__(self, width: int, size: int, activation: Activation, scale: float) -> None:
        super().__init__(width, size, activation)
        self.scale = scale

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        return self.scale * self.squeeze(hidden_BTD)
