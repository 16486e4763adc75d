"""Losses that compare all examples of a step, however few pass through the model at once.

What the model says of all of them is computed without a graph first, then their losses, and the
gradient of these by what it said. Each micro-batch passes once more and multiplies its part of this
gradient (Gao et al. 2021). This is the gradient of one large batch, not an approximation.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from transfer_cli.batch import Batch, IdleBatch
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
    objective: Comparing, views: Sequence[Batch], outputs: Sequence[Tensor]
) -> list[Batch]:
    """Return the views of a step's micro-batches with their parts of the step's losses.

    All processes call it, and each compares all examples but those of idle batches, which get
    zeros.

    Args:
        objective: Compares examples by the keys `Objective.compares`.
        views: Of this process, prepared.
        outputs: `objective.outputs` of each.
    """
    compared = [outputs, *([view[key] for view in views] for key in objective.compares)]
    here = [
        torch.cat([
            values[:0] if isinstance(view, IdleBatch) else values
            for view, values in zip(views, of_views, strict=True)
        ])
        for of_views in compared
    ]  # fmt: skip
    by_process = [distributed.all_gather_rows(values.to(outputs[0].device)) for values in here]
    begin = sum(map(len, by_process[0][: distributed.rank()]))
    whole, *keys = map(torch.cat, by_process)
    with torch.enable_grad():
        losses_N = objective.losses(
            whole.requires_grad_(), dict(zip(objective.compares, keys, strict=True))
        )
        (gradient,) = torch.autograd.grad(losses_N.sum(), whole)
    step_views: list[Batch] = []
    for view, output in zip(views, outputs, strict=True):
        if isinstance(view, IdleBatch):
            zeros = output.new_zeros(len(output))
            added = {"output_loss": zeros, "output_gradient": torch.zeros_like(output)}
            step_views.append(IdleBatch(view | added))
            continue
        rows = slice(begin, begin + len(output))
        added = {"output_loss": losses_N.detach()[rows], "output_gradient": gradient[rows]}
        step_views.append(view | added)
        begin = rows.stop
    return step_views
