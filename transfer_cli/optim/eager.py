"""Optimizers without torch's compiler.

Torch decorates the methods of its optimizers to exclude them from its compiler. The first call
imports that compiler: 0.8 s of CPU time at the start of every run. No optimizer is compiled here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its decorators."""
    found: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return found


class EagerOptimizer(Optimizer):
    """An optimizer whose common methods are not decorated."""

    add_param_group = bare(Optimizer.add_param_group)
    zero_grad = bare(Optimizer.zero_grad)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019); options as in `torch.optim.AdamW`."""

    step = torch.no_grad()(bare(torch.optim.AdamW.step))
