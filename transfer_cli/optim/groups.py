"""Layer groups to optimizer groups, and the rate of each group at each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from transfer_cli.optim.layer_scale import LayerScale
from transfer_cli.optim.schedules import Schedule


@dataclass(frozen=True)
class Height:
    """Where a group of parameters stands.

    Args:
        name: The layer group's name.
        depth: 0 for the embeddings, the largest for the heads.
        parameters: Full parameter names.
    """

    name: str
    depth: int
    parameters: Sequence[str]


def optimizer_groups(
    parameters: Mapping[str, nn.Parameter], heights: Sequence[Height], scale: LayerScale
) -> list[dict[str, Any]]:
    """Return one optimizer group for each layer group, two where weight decay differs.

    Only matrices decay (Loshchilov and Hutter 2019 leave it open; this is common practice): biases,
    norms and other vectors do not. The optimizer is built once with all of them; what is frozen has
    no gradient, and torch's optimizers skip parameters without one, decay included.
    """
    top = max(height.depth for height in heights)
    groups: list[dict[str, Any]] = []
    for height in heights:
        members = [(name, parameters[name]) for name in height.parameters]
        common = {"layer": height.name, "scale": scale(height.depth, top)}
        matrices = [tensor for _, tensor in members if tensor.ndim >= 2]
        vectors = [tensor for _, tensor in members if tensor.ndim < 2]
        if matrices:
            groups.append({**common, "params": matrices})
        if vectors:
            groups.append({**common, "params": vectors, "weight_decay": 0.0})
    return groups


@dataclass(frozen=True)
class Rates:
    """base rate x layer scale x schedule, for every group at every step.

    Args:
        base: The optimizer's `lr`.
        schedule: The multiplier over time.
        total: Steps of the run.
    """

    base: float
    schedule: Schedule
    total: int

    def set(self, optimizer: Optimizer, step: int) -> None:
        """Give every group its rate for the step about to be taken."""
        now = self.base * self.schedule(step, self.total)
        for group in optimizer.param_groups:
            group["lr"] = now * group["scale"]
