"""Layer groups to optimizer groups, and the rate of each group at each step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from transfer_cli.errors import ConfigError
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
    parameters: Mapping[str, nn.Parameter],
    heights: Sequence[Height],
    scale: LayerScale,
    decay: Callable[[str], bool] = lambda name: True,
) -> list[dict[str, Any]]:
    """Return one optimizer group for each layer group, two where weight decay differs.

    Only matrices decay (Loshchilov and Hutter 2019 leave it open; this is common practice): biases,
    norms and other vectors do not. The optimizer is built once with all of them; what is frozen has
    no gradient, and torch's optimizers skip parameters without one, decay included.

    Args:
        parameters: Of the model, by full name.
        heights: The layer groups.
        scale: Multiplies a layer group's rate.
        decay: Whether the matrix of this full name decays.

    Raises:
        ConfigError: The scale does not fit the layer groups.
    """
    _check_scale(scale, heights)
    top = max(height.depth for height in heights)
    groups: list[dict[str, Any]] = []
    for height in heights:
        members = [(name, parameters[name]) for name in height.parameters]
        rate = scale(height.name, height.depth, top)
        common = {"layer": height.name, "scale": rate}
        decays = {name for name, tensor in members if tensor.ndim >= 2 and decay(name)}
        shrinking = [tensor for name, tensor in members if name in decays]
        staying = [tensor for name, tensor in members if name not in decays]
        if shrinking:
            groups.append({**common, "params": shrinking})
        if staying:
            groups.append({**common, "params": staying, "weight_decay": 0.0})
    return groups


def _check_scale(scale: LayerScale, heights: Sequence[Height]) -> None:
    """Let a scale that depends on names look at them."""
    check = getattr(scale, "check", None)
    if check is None:
        return
    try:
        check([height.name for height in heights])
    except ValueError as error:
        raise ConfigError(f"adaptation.layer_scale: {error}") from error


@dataclass(frozen=True)
class Rates:
    """base rate x layer scale x stage's factor x schedule, for every group at every step.

    Args:
        base: The optimizer's `lr`.
        schedule: The multiplier over time.
        total: Steps of the run.
        per_stage: Whether the schedule begins anew with each stage, and spans it alone.
    """

    base: float
    schedule: Schedule
    total: int
    per_stage: bool = False

    def at(self, step: int, *, begin: int, end: int, factor: float = 1.0) -> float:
        """Return the rate of a group whose layer scale is 1.

        Args:
            step: Counted from 0.
            begin: The first step of the stage that it belongs to.
            end: The step after the stage's last one.
            factor: The stage's; multiplies all rates.
        """
        if not self.per_stage:
            begin, end = 0, self.total
        return self.base * factor * self.schedule(step - begin, end - begin)

    def set(
        self,
        optimizer: Optimizer,
        step: int,
        *,
        begin: int = 0,
        end: int | None = None,
        factor: float = 1.0,
    ) -> None:
        """Give every group its rate for the step about to be taken.

        Args:
            optimizer: With groups from `optimizer_groups`.
            step: See `at`, as for the others.
            begin: The run's, unless given.
            end: The run's, unless given.
            factor: 1, unless given.
        """
        now = self.at(step, begin=begin, end=end or self.total, factor=factor)
        for group in optimizer.param_groups:
            group["lr"] = now * group["scale"]
