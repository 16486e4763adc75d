"""Bottleneck adapters (Houlsby et al. 2019).

Legend: B batch, T positions, D width.
"""

from torch import Tensor, nn

from transfer_cli.model.added import Added
from transfer_cli.model.backbone import initialise_plain
from transfer_cli.model.block import ACTIVATIONS, Activation


class Adapter(Added):
    """A(z) = z + W_up act(W_down z + b_down) + b_up, with 2 D size + size + D parameters.

    It starts as the identity: W_up is zero. The paper draws both matrices from a truncated
    N(0, 0.01^2), which is only nearly the identity. With both zero, neither would ever change.

    Args:
        width: D.
        size: Width of the bottleneck.
        activation: Between the two linear layers.
    """

    kind = "adapters between its layers"

    def __init__(self, width: int, size: int, activation: Activation) -> None:
        super().__init__()
        self.down = nn.Linear(width, size)
        self.up = nn.Linear(size, width)
        self.activation = ACTIVATIONS[activation]
        initialise_plain(self.down)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        changed: Tensor = hidden_BTD + self.up(self.activation(self.down(hidden_BTD)))
        return changed
