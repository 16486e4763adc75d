"""Linear probes: multinomial logistic regression, solved in float64; and what is made with them.

The loss is convex, so there is neither a seed nor a rate: the same states give the same probe. With
them go a learnt mix of layers, gamma sum_k softmax(a)_k H_k, and how many bits labels take.

Legend: N units (texts or words), B batch, K layers, D width, C labels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis.probes.states import Probed
from transfer_cli.optim.eager import AdamW
from transfer_cli.optim.lbfgs import TorchLBFGS
from transfer_cli.seeds import derive

STRENGTHS = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Of the L2 penalty."""

TOLERANCE, PENALTY_TOLERANCE = 1e-5, 1e-2
"""At a minimum no entry of the gradient is larger than either: the second is a share of s / N, the
penalty's own gradient at a weight of 1. Where that is weak, a small gradient alone says little: the
loss of labels that a line parts is nearly flat long before its minimum."""

ROUGH_TOLERANCE, ROUGH_PENALTY_TOLERANCE = 1e-4, 1.0
"""Those of the fits among which one is chosen; the first as in scikit-learn."""

EVALUATIONS = 2000
"""Of loss and gradient, for one fit."""


@dataclass(frozen=True)
class LinearProbe:
    """A classifier of states.

    Args:
        weight: `[C, D]`, float64.
        bias: `[C]`.
        strength: The L2 penalty that was chosen.
        gradient: The largest entry of the gradient where it was stopped.
        selection_loss: Its loss on the units that chose the strength.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    gradient: float
    selection_loss: float

    def log_probs(self, states_ND: Tensor) -> Tensor:
        """Return the log-probability of each label, `[N, C]`, in nats."""
        return F.linear(states_ND.double(), self.weight, self.bias).log_softmax(1)


def fit_probe(
    train: Probed,
    chosen_on: Probed,
    classes: int,
    strengths: Sequence[float] = STRENGTHS,
    bias_penalty: float = 0.0,
) -> LinearProbe:
    """Return the probe whose L2 penalty gives the lowest loss on other units.

    It minimises the mean loss + s / 2N x the sum of squared weights, which is scikit-learn's
    `LogisticRegression` with C = 1/s. Strengths s are tried from strong to weak, each from where
    the last one ended, until the loss on the other units rises: weaker ones are then worse still,
    and take longest. These fits multiply in float32; the one that is chosen goes on in float64.

    Args:
        train: Standardised states, float32.
        chosen_on: Others, which choose the strength.
        bias_penalty: How much of the penalty counts for the bias, too.
    """
    count_C = torch.bincount(train.label, minlength=classes).double()
    least_share = 1e-6  # where a label does not occur in training
    bias_C = (count_C / count_C.sum()).clamp(min=least_share).log()
    parameters = [count_C.new_zeros(classes, train.states.shape[1]), bias_C]
    best, chosen, lowest = parameters, max(strengths), float("inf")
    probed = Probed(train.states.contiguous(), train.label)
    for strength in sorted(strengths, reverse=True):
        rough = min(ROUGH_TOLERANCE, ROUGH_PENALTY_TOLERANCE * strength / len(train.label))
        minimise(parameters, PenalisedLoss(probed, parameters, strength, bias_penalty), rough)
        loss = _loss(chosen_on, parameters)
        if loss >= lowest:
            break
        best, chosen, lowest = [parameter.clone() for parameter in parameters], strength, loss
    exact = PenalisedLoss(Probed(probed.states.double(), train.label), best, chosen, bias_penalty)
    gradient = minimise(best, exact, min(TOLERANCE, PENALTY_TOLERANCE * chosen / len(train.label)))
    return LinearProbe(best[0], best[1], chosen, gradient, _loss(chosen_on, best))


@dataclass(frozen=True)
class PenalisedLoss:
    """The loss of weight `[C, D]` and bias `[C]`, which sets their gradients; see `fit_probe`.

    Its products, nearly all of its time, are in the precision of the states.
    """

    probed: Probed
    parameters: Sequence[Tensor]
    strength: float
    bias_penalty: float

    def __call__(self) -> Tensor:
        (weight_CD, bias_C), states_ND = self.parameters, self.probed.states
        count, at_N = len(states_ND), self.probed.label[None]
        # Units in columns: the other way round the same products take up to four times as long.
        logits_CN = (weight_CD.to(states_ND.dtype) @ states_ND.T).double() + bias_C[:, None]
        log_CN = logits_CN.log_softmax(0)
        loss = -log_CN.gather(0, at_N).mean()
        error_CN = log_CN.exp_()
        error_CN.scatter_add_(0, at_N, error_CN.new_full(at_N.shape, -1.0)).div_(count)
        decay = self.strength / count
        weight_CD.grad = (error_CN.to(states_ND.dtype) @ states_ND).double() + decay * weight_CD
        bias_C.grad = error_CN.sum(1) + self.bias_penalty * decay * bias_C
        squares = weight_CD.square().sum() + self.bias_penalty * bias_C.square().sum()
        return loss + decay / 2 * squares


def _loss(probed: Probed, parameters: Sequence[Tensor]) -> float:
    """Return the mean loss without a penalty."""
    return float(F.cross_entropy(F.linear(probed.states.double(), *parameters), probed.label))


@torch.no_grad()
def minimise(parameters: Sequence[Tensor], loss: Callable[[], Tensor], tolerance: float) -> float:
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
    gradients = [parameter.grad for parameter in parameters]
    return max(float(entries.abs().max()) for entries in gradients if entries is not None)


# --- a learnt mix of layers --------------------------------------------------------------------

LEARNING_RATE = 1e-3
SHARE_RATE = 1e-2
"""That of the shares, which are few, and would else stay where they begin."""

BATCH = 64
MOST_EPOCHS = 100
PATIENCE = 5
"""Epochs without a lower loss on validation after which it has ended."""

_PORTION = 4096


def learn_shares(train: Probed, validation: Probed, classes: int, seed: int) -> Tensor:
    """Return the share of each layer in a learnt mix, `[K]`; they sum to 1, and begin equal.

    Learnt as in the papers, with Adam until validation gets worse (Peters et al. 2018; Tenney et
    al. 2019): at the very minimum of a penalised loss the shares would say more about the penalty,
    which one layer alone evades best, or an amplified difference of layers, than about the layers.

    Args:
        train: Standardised states `[N, K, D]`.
        validation: Others, which stop it.
    """
    layers, width = train.states.shape[1:]
    raw_K = torch.zeros(layers, requires_grad=True)
    gamma = torch.ones((), requires_grad=True)
    weight_CD = torch.zeros(classes, width, requires_grad=True)
    bias_C = torch.zeros(classes, requires_grad=True)
    rest = {"params": [weight_CD, bias_C, gamma], "lr": LEARNING_RATE}
    groups = [{"params": [raw_K], "lr": SHARE_RATE}, rest]
    optimizer = AdamW(groups, lr=LEARNING_RATE, weight_decay=0.0)

    def loss(states_BKD: Tensor, label_B: Tensor) -> Tensor:
        mixed_BD = gamma * torch.einsum("bkd,k->bd", states_BKD, raw_K.softmax(0))
        return F.cross_entropy(F.linear(mixed_BD, weight_CD, bias_C), label_B, reduction="sum")

    best_K, lowest, waited = raw_K.detach().clone(), float("inf"), 0
    for epoch in range(MOST_EPOCHS):
        generator = torch.Generator().manual_seed(derive(seed, "mix", epoch))
        for at_B in torch.randperm(len(train.label), generator=generator).split(BATCH):
            optimizer.zero_grad()
            (loss(train.states[at_B], train.label[at_B]) / len(at_B)).backward()
            optimizer.step()
        with torch.no_grad():
            portions = zip(validation.states.split(_PORTION), validation.label.split(_PORTION),
                           strict=True)  # fmt: skip
            validation_loss = sum(float(loss(*portion)) for portion in portions)
        waited += 1
        if validation_loss < lowest:
            best_K, lowest, waited = raw_K.detach().clone(), validation_loss, 0
        if waited == PATIENCE:
            break
    return best_K.softmax(0)


# --- how many bits labels take -----------------------------------------------------------------

PORTION_PERCENTS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)
"""Where the portions end, in percent of the units."""

LogProbs = Callable[[Tensor], Tensor]
"""Returns the log-probability of each label, in nats."""


def portion_ends(units: int, classes: int) -> list[int]:
    """Return how many units have been sent after each portion; the first has one for a label."""
    ends = {min(units, max(classes, math.ceil(units * share / 100))) for share in PORTION_PERCENTS}
    return sorted(ends)


def codelength(probed: Probed, classes: int, fit: Callable[[Probed], LogProbs]) -> float:
    """Return the bits of all labels, told to somebody who sees the states (Voita and Titov 2020).

    Portions of the units are sent one after the other, in the order given, each with the code of a
    probe that was fitted to the portions before it; the first has a uniform code, t_1 log2 C bits.
    What is easy to find takes few bits, and so does what few examples show.

    Args:
        fit: Returns the probe of some of them.
    """
    first, *_ = ends = portion_ends(len(probed.label), classes)
    bits = first * math.log2(classes)
    for known, past in pairwise(ends):
        log_probs = fit(Probed(probed.states[:known], probed.label[:known]))
        log_NC = log_probs(probed.states[known:past])
        own_N = log_NC.gather(1, probed.label[known:past, None])
        bits -= float(own_N.sum()) / math.log(2)
    return bits
