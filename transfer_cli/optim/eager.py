"""Optimizers without torch's compiler.

Torch decorates the methods of its optimizers to exclude them from its compiler. The first call
imports that compiler: 0.8 s of CPU time at the start of every run. No optimizer is compiled here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

NAMES = ("params", "layer", "scale")
"""What a step does not read of a group, beside its parameters; see `assembly.optimizer`."""


def bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its decorators."""
    plain: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return plain


class EagerOptimizer(Optimizer):
    """An optimizer whose common methods are not decorated."""

    add_param_group = bare(Optimizer.add_param_group)
    zero_grad = bare(Optimizer.zero_grad)


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
        self.param_groups = merged(groups)
        try:
            loss: float | None = bare(torch.optim.AdamW.step)(self, closure)
        finally:
            self.param_groups = groups
        return loss


def merged(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups, with the parameters of those that differ in names alone put together."""
    together: list[dict[str, Any]] = []
    for group in groups:
        for other in together:
            if all(other[key] == value for key, value in group.items() if key not in NAMES):
                other["params"] = [*other["params"], *group["params"]]
                break
        else:
            together.append({**group})
    return together
