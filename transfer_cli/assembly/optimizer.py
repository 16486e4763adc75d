"""The parameter groups of the optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from transfer_cli.config.build import class_of
from transfer_cli.errors import ConfigError, raised_as
from transfer_cli.model.added import added_rates
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.optim.layer_scale import LayerScale
from transfer_cli.optim.lbfgs import LBFGS


def is_solver(node: Mapping[str, Any]) -> bool:
    """Return whether each step of a config's optimizer goes to the minimum of its loss."""
    return issubclass(class_of(node, "optimizer"), LBFGS)


def parameter_groups(
    model: nn.Module, groups: Sequence[LayerGroup], scale: LayerScale, *, weight_decay: bool = True
) -> list[dict[str, Any]]:
    """Return one parameter group for each layer group, more where decay or rates differ.

    An added module may ask for other rates (`Added.rates`); a layer group's own rate comes last.

    Only matrices decay (Loshchilov and Hutter 2019 leave it open; this is common practice): biases,
    norms and other vectors do not. The optimizer is built once with all parameters; a frozen one
    has no gradient, and torch's optimizers skip it, weight decay included.

    Args:
        weight_decay: Whether matrices decay; not where a penalty replaces weight decay.
    """
    with raised_as(ConfigError, "adaptation.layer_scale: "):
        if hasattr(scale, "check"):
            scale.check([group.name for group in groups])
    parameters, rates = dict(model.named_parameters()), added_rates(model)
    top = max(group.depth for group in groups)
    param_groups: list[dict[str, Any]] = []
    for group in groups:
        members: dict[tuple[bool, bool, float], list[Tensor]] = {}
        for name in group.parameters:
            tensor, rate = parameters[name], rates.get(name, 1.0)
            decays = weight_decay and tensor.ndim >= 2
            members.setdefault((rate == 1, not decays, rate), []).append(tensor)
        layer_scale = scale(group.name, group.depth, top)
        for (_, no_decay, rate), tensors in sorted(members.items(), key=lambda item: item[0]):
            decay = {"weight_decay": 0.0} if no_decay else {}
            common = {"layer": group.name, "scale": layer_scale * rate}
            param_groups.append({**common, "params": tensors, **decay})
    return param_groups
