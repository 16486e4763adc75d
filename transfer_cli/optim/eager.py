"""Optimizers without torch's compiler.

Torch decorates the methods of its optimizers to exclude them from its compiler. The first call
imports that compiler: 0.8 s of CPU time at the start of every run. No optimizer is compiled here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

_NAME_KEYS = ("params", "layer", "scale")
"""What a step does not read of a group, beside its parameters; see `assembly.optimizer`."""


def undecorated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its decorators."""
    plain: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return plain


class EagerOptimizer(Optimizer):
    """An optimizer whose common methods are not decorated."""

    add_param_group = undecorated(Optimizer.add_param_group)
    zero_grad = undecorated(Optimizer.zero_grad)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019); options as in `torch.optim.AdamW`."""

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch has an overload for each use
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Take a step.

        Groups that differ in names alone are stepped as one: each costs the host several launches.
        """
        groups = self.param_groups
        self.param_groups = merge_groups(groups)
        try:
            if closure is None and all(_is_plain(group) for group in self.param_groups):
                for group in self.param_groups:
                    step_fused(self, group["params"], group)
                return None
            loss: float | None = undecorated(torch.optim.AdamW.step)(self, closure)
        finally:
            self.param_groups = groups
        return loss


def _is_plain(group: Mapping[str, Any]) -> bool:
    variants = ("amsgrad", "maximize", "capturable", "differentiable")
    return bool(group["fused"]) and not any(group[name] for name in variants)


def step_fused(optimizer: Optimizer, parameters: list[Tensor], group: Mapping[str, Any]) -> None:
    """Update those parameters that have a gradient by AdamW, in one fused kernel.

    As torch's own step, which looks at each parameter several times.
    """
    moving = [parameter for parameter in parameters if parameter.grad is not None]
    states = [optimizer.state[parameter] for parameter in moving]
    for parameter, state in zip(moving, states, strict=True):
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
    beta1, beta2 = group["betas"]
    adamw(
        moving,
        [parameter.grad for parameter in moving if parameter.grad is not None],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
        grad_scale=getattr(optimizer, "grad_scale", None),
        found_inf=getattr(optimizer, "found_inf", None),
    )


def merge_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups, with the parameters of those that differ in names alone put together."""
    together: list[dict[str, Any]] = []
    for group in groups:
        for other in together:
            if all(other[key] == value for key, value in group.items() if key not in _NAME_KEYS):
                other["params"] = [*other["params"], *group["params"]]
                break
        else:
            together.append({**group})
    return together
