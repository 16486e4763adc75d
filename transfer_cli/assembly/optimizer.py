"""Config to learning rate, schedule and optimizer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from torch.optim import Optimizer

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.config.build import build
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import LayerGroup, TransferModel
from transfer_cli.optim.groups import Height, optimizer_groups
from transfer_cli.optim.schedules import Schedule

if TYPE_CHECKING:
    pass


def build_schedule(node: DictConfig) -> Schedule:
    """Return the learning-rate schedule that the node describes."""
    return build(node, "schedule", Schedule)


def base_lr(node: DictConfig) -> float:
    """Return the rate that the optimizer's node gives.

    Raises:
        ConfigError: It is no positive number.
    """
    rate = node.get("lr")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise ConfigError(f"optimizer.lr: must be a number above 0, got {rate!r}")
    return float(rate)


def parameter_groups(
    trained: TransferModel, groups: Sequence[LayerGroup], chosen: Adaptation
) -> list[dict[str, Any]]:
    """Return the optimizer's groups: one for each layer group, two where weight decay differs.

    Raises:
        ConfigError: The layer scale does not fit the layer groups.
    """
    heights = [Height(group.name, group.depth, group.parameters) for group in groups]
    parameters = dict(trained.named_parameters())
    penalty = chosen.penalty
    # A penalty of this kind is weight decay, towards another place than zero.
    decays = penalty is None or not penalty.replaces_weight_decay
    return optimizer_groups(parameters, heights, chosen.layer_scale, decay=lambda _: decays)


def build_optimizer(node: DictConfig, groups: list[dict[str, Any]]) -> Optimizer:
    """Return the optimizer over all layer groups, built once for the whole run."""
    return build(node, "optimizer", Optimizer, params=groups)
