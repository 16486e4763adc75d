"""Losses that compare all examples of a step, however few pass through the model at once.

What the model says of all of them is computed without a graph first, then their losses, and the
gradient of these by what it said. Each micro-batch passes once more and multiplies its part of this
gradient (Gao et al. 2021). This is the gradient of one large batch, not an approximation.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.engine import distributed
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding


class Comparing(Protocol):
    """An objective that compares examples; see `Objective.compares`."""

    @property
    def compares(self) -> tuple[str, ...]:
        """The keys of a batch by which it does."""

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return what is compared of each example, `[B, ...]`."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each of all examples of a step, `[N]`."""


def add_output_gradients(
    objective: Comparing, views: Sequence[Batch], outputs: Sequence[Tensor], counted: Sequence[bool]
) -> list[Batch]:
    """Return the views of a step's micro-batches with their parts of the step's losses.

    All processes call it, and each compares all examples.

    Args:
        objective: Compares examples by the keys `Objective.compares`.
        views: Of this process, prepared.
        outputs: `objective.outputs` of each.
        counted: Whether each is a part of the step; others only keep step, and get zeros.
    """
    local_outputs = torch.cat(
        [out if is_in else out[:0] for out, is_in in zip(outputs, counted, strict=True)]
    )
    everyone = [
        local_outputs.detach(),
        *(_concat(views, key, counted).to(local_outputs.device) for key in objective.compares),
    ]
    by_process = [distributed.all_gather_rows(values) for values in everyone]
    begin = sum(map(len, by_process[0][: distributed.rank()]))
    whole, *keys = map(torch.cat, by_process)
    with torch.enable_grad():
        losses_N = objective.losses(
            whole.requires_grad_(), dict(zip(objective.compares, keys, strict=True))
        )
        (gradient,) = torch.autograd.grad(losses_N.sum(), whole)
    step_views = []
    for view, output, is_in in zip(views, outputs, counted, strict=True):
        rows = slice(begin, begin + len(output))
        parts = losses_N.detach()[rows], gradient[rows]
        if is_in:
            begin += len(output)
        else:
            parts = output.new_zeros(len(output)), torch.zeros_like(output)
        step_views.append({**view, "output_loss": parts[0], "output_gradient": parts[1]})
    return step_views


def _concat(views: Sequence[Batch], key: str, counted: Sequence[bool]) -> Tensor:
    return torch.cat(
        [view[key] if is_in else view[key][:0] for view, is_in in zip(views, counted, strict=True)]
    )
