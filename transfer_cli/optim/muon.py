"""Muon for the matrices in the blocks, AdamW for all other parameters, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a
matrix by the nearest matrix whose singular values are all about 1, so that no direction of the
gradient dominates another. Embeddings, heads, biases and norms do not map hidden states to hidden
states; AdamW updates them (same source).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from transfer_cli.errors import above_zero, at_least
from transfer_cli.optim.eager import EagerOptimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial (Jordan et al. 2024): steep at 0, then close to 1."""

_ROUNDS = 5

_SMALLEST_NORM = 1e-7

_RMS_OF_ADAMW = 0.2
"""About the root mean square of AdamW's updates (Liu et al. 2025, arXiv 2502.16982)."""

_OUTER_LAYERS = ("embeddings", "head.", "added.embeddings")
"""Prefixes of the names of layer groups that hold embeddings and heads."""


class MuonWithAdamW(EagerOptimizer):
    """One learning rate and one weight decay for both: Muon's updates are as large as AdamW's.

    `torch.optim.Muon` (2.9 and later) computes in bfloat16 on every device; on a CPU without
    bfloat16 units that takes three to four times as long as float32.

    Args:
        params: Parameters, or groups of them. The `layer` of a group (a layer group's name) decides
            whether its matrices belong to blocks, or to embeddings and heads; without it, Muon
            updates all matrices.
        lr: The learning rate.
        weight_decay: Decoupled weight decay.
        momentum: Decay of a matrix's running average of gradients; Nesterov's form.
        matrix_rate: Learning rate of Muon relative to `lr`.
        betas: AdamW's, for all other parameters.
        eps: AdamW's.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2.5e-4,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        matrix_rate: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("eps", eps)):
            at_least(name, value, 0)
        for name, value in (("momentum", momentum), ("betas.0", betas[0]), ("betas.1", betas[1])):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")
        above_zero("matrix_rate", matrix_rate)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "matrix_rate": matrix_rate,
            "betas": betas,
            "eps": eps,
            "fused": True,  # decides in torch's `load_state_dict` on which device `step` is kept
        }
        super().__init__(params, defaults)
        # As of torch's fused ones: `found_inf` says on the device whether to leave all as it is.
        parameters = (p for group in self.param_groups for p in group["params"])
        self._step_supports_amp_scaling = not any(hasattr(p, "full_tensor") for p in parameters)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            self._step_muon([p for p in moving if uses_muon(p, group)], group)
            self._step_adamw([p for p in moving if not uses_muon(p, group)], group)
        return loss

    def averages(self) -> list[set[str]]:
        """Return the keys of each parameter's optimizer state, in the order of the groups."""
        return [
            {"momentum_buffer"} if uses_muon(p, group) else {"step", "exp_avg", "exp_avg_sq"}
            for group in self.param_groups
            for p in group["params"]
        ]

    def _step_muon(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        """Update matrices by Muon."""
        momentum, rate = group["momentum"], group["lr"] * group["matrix_rate"]
        for matrix in matrices:
            gradient, state = matrix.grad, self.state[matrix]
            assert gradient is not None  # noqa: S101 - parameters without a gradient were left out
            if not state:
                state["momentum_buffer"] = torch.zeros_like(matrix)
            average = state["momentum_buffer"].lerp(gradient, 1 - momentum)
            direction = _orthogonal_part(gradient.lerp(average, momentum))
            size = rate * _RMS_OF_ADAMW * math.sqrt(max(matrix.shape))
            moved = (matrix * (1 - rate * group["weight_decay"])).add_(direction, alpha=-size)
            self._set(state["momentum_buffer"], average)
            self._set(matrix, moved)

    def _set(self, tensor: Tensor, value: Tensor) -> None:
        """Give a tensor its new value, unless the device has found the gradient not finite."""
        found_inf = getattr(self, "found_inf", None)  # torch's scaler takes it away again
        tensor.copy_(value if found_inf is None else value.where(found_inf == 0, tensor))

    def _step_adamw(self, others: list[Tensor], group: Mapping[str, Any]) -> None:
        """Update parameters by AdamW, in one fused kernel."""
        if not others:
            return
        for other in others:
            if not self.state[other]:
                self.state[other] = {
                    "step": torch.zeros((), device=other.device),
                    "exp_avg": torch.zeros_like(other),
                    "exp_avg_sq": torch.zeros_like(other),
                }
        beta1, beta2 = group["betas"]
        adamw(
            others,
            [other.grad for other in others if other.grad is not None],
            [self.state[other]["exp_avg"] for other in others],
            [self.state[other]["exp_avg_sq"] for other in others],
            [],
            [self.state[other]["step"] for other in others],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            found_inf=getattr(self, "found_inf", None),
        )


def uses_muon(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Return whether Muon, not AdamW, updates a parameter of a parameter group."""
    return parameter.ndim == 2 and not str(group.get("layer", "")).startswith(_OUTER_LAYERS)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return U S' V^T for the matrix U S V^T, S' being about 1 (0.7 to 1.2) wherever S is not tiny.

    Five rounds of Newton and Schulz's iteration, as in Jordan et al. 2024. In bfloat16 on a GPU, as
    there, and in float32 on a CPU.

    Args:
        matrix: `[M, N]`, of any scale.
    """
    a, b, c = _COEFFICIENTS
    wide = matrix.to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    if is_tall := matrix.shape[0] > matrix.shape[1]:
        wide = wide.T
    wide = wide / wide.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ROUNDS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return (wide.T if is_tall else wide).to(matrix.dtype)


def _orthogonal_part(matrix: Tensor) -> Tensor:
    """Return `orthogonal`; of a sharded matrix, the shard of this process."""
    if not hasattr(matrix, "full_tensor"):
        return orthogonal(matrix)
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(matrix, DTensor)  # noqa: S101 - for the type checker
    # Every process gathers the whole matrix and computes the same: a shard is not enough.
    mesh, whole = matrix.device_mesh, orthogonal(matrix.full_tensor())
    spread = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return spread.redistribute(placements=matrix.placements)
