"""Optimizers without torch's compiler.

Torch has put around the methods of its optimizers what keeps its compiler away from them. The first
call imports that compiler to say so: 0.8 s of CPU time at the start of every run. No optimizer is
compiled here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def _bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without what was put around it."""
    found: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return found


class Eager(Optimizer):
    """What all optimizers have, bare."""

    add_param_group = _bare(Optimizer.add_param_group)
    zero_grad = _bare(Optimizer.zero_grad)


class AdamW(Eager, torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019); options as in `torch.optim.AdamW`."""

    step = torch.no_grad()(_bare(torch.optim.AdamW.step))
