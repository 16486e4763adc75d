"""Linear probes: multinomial logistic regression, solved in float64.

The loss is convex, so there is neither a seed nor a rate: the same states give the same probe.

Legend: N units (texts or words), K layers, D width, C labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.optim.lbfgs import TorchLBFGS

STRENGTHS = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Of the L2 penalty."""

TOLERANCE = 1e-5
"""The largest entry of the gradient of the mean loss at a minimum; scikit-learn's is 1e-4."""

ROUGH_TOLERANCE = 1e-3
CLEARLY = 1.01
"""A strength whose loss on others is so many times higher after a rough fit is not fitted on."""

EVALUATIONS = 2000
"""Of loss and gradient, for one strength."""

_LEAST_SHARE = 1e-6
"""Where a label does not occur in training."""

Strengths = Sequence[float]


@dataclass(frozen=True)
class Given:
    """States with their labels, `[N, D]` or `[N, K, D]`, and `[N]`."""

    states: Tensor
    label: Tensor


@dataclass(frozen=True)
class LinearProbe:
    """A classifier of states.

    Args:
        weight: `[D, C]`, float64.
        bias: `[C]`.
        strength: The L2 penalty that was chosen, times the number of units.
        gradient: The largest entry of the gradient where it was stopped.
        chosen_by: Its loss on the units that chose the strength; None: nothing was chosen.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    gradient: float
    chosen_by: float | None = None

    def log_shares(self, states_ND: Tensor) -> Tensor:
        """Return the log-probability of each label, `[N, C]`, in nats."""
        return log_shares(states_ND.double(), self.weight, self.bias)


def solved(
    train: Given, chosen_on: Given, classes: int, strengths: Strengths, bias_penalty: float = 0.0
) -> LinearProbe:
    """Return the probe whose L2 penalty gives the lowest loss on other units.

    It minimises the mean loss + s / 2N x the sum of squared weights, which is scikit-learn's
    `LogisticRegression` with C = 1/s. Strengths s are tried from strong to weak, each from where
    the last one ended, until the loss on the other units rises: weaker ones are then worse still,
    and take longest.

    Args:
        train: Standardised states.
        chosen_on: Others, which choose the strength.
        classes: C.
        strengths: What is tried.
        bias_penalty: How much of the penalty counts for the bias, too.
    """
    states_ND, label_N = train.states.double(), train.label
    other_ND = chosen_on.states.double()
    weight_DC, bias_C = _start(train, classes)
    best, lowest, gradient = None, float("inf"), 0.0
    for strength in sorted(strengths, reverse=True):
        decay = strength / len(label_N)

        def loss(decay: float = decay) -> Tensor:
            logits_NC = states_ND @ weight_DC + bias_C
            mean, error_NC = _cross_entropy(logits_NC, label_N)
            weight_DC.grad = _gradient(states_ND, error_NC) + decay * weight_DC
            bias_C.grad = error_NC.sum(0) + bias_penalty * decay * bias_C
            squares = weight_DC.square().sum() + bias_penalty * bias_C.square().sum()
            return mean + decay / 2 * squares

        for tolerance in (ROUGH_TOLERANCE, TOLERANCE):
            gradient = minimise([weight_DC, bias_C], loss, tolerance)
            found = float(F.nll_loss(log_shares(other_ND, weight_DC, bias_C), chosen_on.label))
            if found > CLEARLY * lowest:
                break
        if found >= lowest:
            break
        best = LinearProbe(weight_DC.clone(), bias_C.clone(), strength, gradient, found)
        lowest = found
    if best is None:
        raise ValueError("strengths is empty, expected some")
    return best


def log_shares(states_ND: Tensor, weight_DC: Tensor, bias_C: Tensor) -> Tensor:
    """Return the log-probability of each label, `[N, C]`, in nats."""
    return (states_ND @ weight_DC + bias_C).log_softmax(1)


def _start(train: Given, classes: int) -> tuple[Tensor, Tensor]:
    """Return weights of 0 and the bias that is best with them."""
    count_C = torch.bincount(train.label, minlength=classes).double()
    width = train.states.shape[-1]
    share_C = (count_C / count_C.sum()).clamp(min=_LEAST_SHARE)
    return count_C.new_zeros(width, classes), share_C.log()


def _cross_entropy(logits_NC: Tensor, label_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss, and its gradient by the logits."""
    log_NC = logits_NC.log_softmax(1)
    at_N = label_N[:, None]
    mean = -log_NC.gather(1, at_N).mean()
    error_NC = log_NC.exp_()
    error_NC.scatter_add_(1, at_N, torch.full_like(at_N, -1, dtype=error_NC.dtype))
    return mean, error_NC.div_(len(label_N))


def _gradient(states_ND: Tensor, error_NC: Tensor) -> Tensor:
    """Return `[D, C]`: the transposed product takes a quarter of the time of the plain one."""
    return (error_NC.T.contiguous() @ states_ND).T.contiguous()


@torch.no_grad()
def minimise(parameters: list[Tensor], loss: Callable[[], Tensor], tolerance: float) -> float:
    """Move parameters to the minimum of a smooth loss by L-BFGS.

    Args:
        parameters: They are changed.
        loss: Returns the loss, and sets the gradient of each parameter.
        tolerance: It is done when no entry of the gradient is larger.

    Returns:
        The largest entry of the gradient at the end.
    """
    solver = TorchLBFGS(
        parameters, lr=1.0, line_search_fn="strong_wolfe", history_size=20,
        max_iter=EVALUATIONS, max_eval=EVALUATIONS,
        tolerance_grad=tolerance, tolerance_change=1e-14,
    )  # fmt: skip
    solver.step(loss)
    loss()
    return max(float(each.grad.abs().max()) for each in parameters if each.grad is not None)
