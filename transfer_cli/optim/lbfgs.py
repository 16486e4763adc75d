"""L-BFGS: a step that goes on until the loss is at its minimum.

A step asks for loss and gradient as often as it needs them, so they must be the same each time, and
those of all training examples (`assembly.drawing` refuses anything else). Then the result is that
of the loss alone: for a linear classifier on frozen features, of a convex one, it is the only
minimum there is, whatever the start, the order of the texts or the number of processes.
"""

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from transfer_cli.errors import above_zero, at_least
from transfer_cli.optim.eager import EagerOptimizer, undecorated

log = logging.getLogger(__name__)

GRADIENT_SHARE = 0.1
"""At a minimum no entry of the gradient is larger than this share of the weight decay, which is the
penalty's own gradient at a weight of 1. Where that is weak, a small gradient alone says little: the
loss of labels that a line parts is nearly flat long before its minimum."""

HISTORY = 20
"""How many earlier gradients a direction is made of, if not told otherwise."""


class LBFGS(EagerOptimizer):
    """Minimises the mean loss + weight_decay / 2 x the sum of squares of all matrices.

    That is scikit-learn's `LogisticRegression` with C = 1 / (weight_decay x examples). Each step
    finds the minimum for the next weight decay of a list, from where the last one ended: from
    strong to weak, that is little more work than the weakest alone. Validation after each step
    shows which one is best. Steps beyond the list keep its last.

    Every step begins without memory of earlier gradients, so only the number of steps is stored.

    Source: Liu and Nocedal 1989; line search by the strong Wolfe conditions (`torch.optim.LBFGS`).

    Args:
        params: Parameters, or groups of them; one whose own weight decay is 0 does not decay.
        lr: Unused: line searches find the length of each move, and begin with a quasi-Newton one.
        weight_decay: One strength, or one for each step.
        tolerance: A step ends when no entry of the gradient is larger; see also `GRADIENT_SHARE`.
        evaluations: How often a step may ask for loss and gradient.
        history: How many earlier gradients a direction is made of.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        weight_decay: float | tuple[float, ...] = 0.0,
        tolerance: float = 1e-5,
        evaluations: int = 1000,
        history: int = HISTORY,
    ) -> None:
        strengths = (weight_decay,) if isinstance(weight_decay, int | float) else weight_decay
        if not strengths:
            raise ValueError("weight_decay must be a number or a list of them, got an empty list")
        for strength in strengths:
            at_least("weight_decay", strength, 0)
        for name, value in (("lr", lr), ("tolerance", tolerance)):
            above_zero(name, value)
        for name, count in (("evaluations", evaluations), ("history", history)):
            at_least(name, count, 1)
        super().__init__(params, {"lr": lr, "weight_decay": strengths})
        self.strengths, self.tolerance = strengths, tolerance
        self._evaluations, self._history = evaluations, history

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        """Go to the minimum. `closure` fills all gradients anew and returns the mean loss."""
        groups = self.param_groups
        moving = {p: g for g in groups for p in g["params"] if p.grad is not None}
        if not moving:
            return
        first, *_ = moving
        number = self.state[first].get("step", 0)
        strength = self.strengths[min(number, len(self.strengths) - 1)]
        decayed = [p for p, group in moving.items() if group["weight_decay"]]

        def penalised() -> Tensor:
            loss = closure()
            with torch.no_grad():
                for weight in decayed:
                    loss = loss + strength / 2 * weight.square().sum()
                    weight.grad.add_(weight, alpha=strength)
            return loss

        tolerance = min(self.tolerance, GRADIENT_SHARE * strength or math.inf)
        solver = TorchLBFGS(
            list(moving), lr=1.0, max_iter=self._evaluations, max_eval=self._evaluations,
            tolerance_grad=tolerance, history_size=self._history, line_search_fn="strong_wolfe",
        )  # fmt: skip
        solver.step(penalised)
        evaluations = solver.state[first]["func_evals"]
        outcome = "minimum found" if evaluations < self._evaluations else "stopped"
        if len(self.strengths) > 1:
            log.info("weight decay %g: %s after %d evaluations", strength, outcome, evaluations)
        for parameter in moving:
            self.state[parameter]["step"] = number + 1


class TorchLBFGS(EagerOptimizer, torch.optim.LBFGS):
    """Torch's, which knows one group of parameters and no weight decay."""

    step = torch.no_grad()(undecorated(torch.optim.LBFGS.step))
