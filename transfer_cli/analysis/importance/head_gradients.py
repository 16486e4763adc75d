"""How the loss of each example changes with the factor of each head (Michel et al. 2019).

Legend: N examples, L places of blocks, B examples of a batch, S sequences, H heads.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.batch import Batch, size, to_device, with_facts
from transfer_cli.data.split import Split
from transfer_cli.engine.evaluation import evaluation_noise, portions
from transfer_cli.engine.precision import Precision
from transfer_cli.model.probes import gated
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective
from transfer_cli.progress import progress


def head_gradients(
    model: TransferModel, objective: Objective, split: Split, *, batch: int, precision: Precision
) -> npt.NDArray[np.float64]:
    """Return d loss / d factor of each head at 1, for each scored example, `[N, L, H]`.

    The loss is the sum over an example's targets. One backward pass does for a batch: each example
    has factors of its own, which no other one's loss depends on.
    """
    rows, found = [], []
    batches = portions(split.data, split.order, batch)
    with progress("gradients", len(batches), "batches") as more:
        for indices in batches:
            prepared = objective.prepare(split.data.batch(indices), evaluation_noise())
            view = to_device(with_facts(prepared), precision.device)
            with precision.context():
                gradient_LBH = _of_batch(model, objective, view)
            found.append(gradient_LBH.transpose(0, 1).double().cpu().numpy())
            rows.append(indices)
            more(1)
    gradient_NLH, row_N = np.concatenate(found), np.concatenate(rows)
    if split.example_of is None:
        return gradient_NLH
    # Windows of one example, whose losses add up.
    examples, place_N = np.unique(split.example_of[row_N], return_inverse=True)
    summed = np.zeros((len(examples), *gradient_NLH.shape[1:]))
    np.add.at(summed, place_N, gradient_NLH)
    return summed


def _of_batch(model: TransferModel, objective: Objective, view: Batch) -> Tensor:
    shape, device = model.backbone.shape, view["tokens"].device
    examples, sequences = size(view), view["mask"].flatten(0, -2).shape[0]
    factors_LBH = torch.ones(shape.depth, examples, shape.heads, device=device, requires_grad=True)
    factors_LSH = factors_LBH.repeat_interleave(sequences // examples, dim=1)

    def summed(called: TransferModel) -> Tensor:
        encoded = Encoding(called, view)
        with gated(called.backbone, factors_LSH):
            _ = encoded.states
        # Outside: what a dialog says is generated from fewer sequences.
        return objective.metric_sums(called, view, encoded)["loss"]

    loss = model(summed)
    gradient_LBH: Tensor = torch.autograd.grad(loss, factors_LBH)[0]
    return gradient_LBH


def importance_of(gradient_NLH: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of the absolute gradients by head, `[L, H]`; each block's has norm 1.

    The absolute value is that of each example: gradients of a batch's loss would cancel out.
    Blocks are normalised as in Michel et al. (2019, section 4.1); one without gradients stays 0.
    """
    mean_LH = np.abs(gradient_NLH).mean(0)
    norm_L1 = np.linalg.norm(mean_LH, axis=1, keepdims=True)
    # Divided by the smallest number there is where all are 0.
    importance_LH: npt.NDArray[np.float64] = mean_LH / np.maximum(
        norm_L1, np.finfo(np.float64).tiny
    )
    return importance_LH
