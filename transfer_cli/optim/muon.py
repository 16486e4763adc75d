"""Muon for the matrices in the blocks, AdamW for all other parameters, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a
matrix by the nearest matrix whose singular values are all about 1, so that no direction of the
gradient dominates another. Embeddings, heads, biases and norms do not map hidden states to hidden
states; AdamW updates them (same source).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from transfer_cli.errors import above_zero, at_least
from transfer_cli.optim.eager import EagerOptimizer, merge_groups, step_fused

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial (Jordan et al. 2024): steep at 0, then close to 1."""

_NUM_ITERATIONS = 5

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
        momentum: Decay of a matrix's running average of gradients; Nesterov's form.
        matrix_rate: Learning rate of Muon relative to `lr`.
        betas: AdamW's, for all other parameters.
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
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum,
            "matrix_rate": matrix_rate, "betas": betas, "eps": eps,
            "fused": True,  # decides in torch's `load_state_dict` on which device `step` is kept
        })  # fmt: skip
        # As of torch's fused ones: `found_inf` says on the device whether to leave all as it is,
        # `grad_scale` by what gradients are divided.
        parameters = (p for group in self.param_groups for p in group["params"])
        self._step_supports_amp_scaling = not any(hasattr(p, "full_tensor") for p in parameters)

    @staticmethod
    def num_averages(parameter: Tensor, layer: str) -> int:
        """Return how many averages are kept of a parameter, each of its size."""
        return 1 if uses_muon(parameter, {"layer": layer}) else 2

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in merge_groups([_subgroup(group, by_muon=True) for group in self.param_groups]):
            self._step_muon(group["params"], group)
        for group in merge_groups([_subgroup(group, by_muon=False) for group in self.param_groups]):
            step_fused(self, group["params"], group)
        return loss

    def averages(self) -> list[set[str]]:
        """Return the keys of each parameter's optimizer state, in the order of the groups."""
        return [
            {"momentum_buffer"} if uses_muon(p, group) else {"step", "exp_avg", "exp_avg_sq"}
            for group in self.param_groups
            for p in group["params"]
        ]

    def _step_muon(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        """Update matrices by Muon, those of equal shape at once.

        Until a shape is done, all its gradients are there once more (where the device may skip the
        step), and twice in the type that `orthogonalize` computes in.
        """
        momentum, rate = group["momentum"], group["lr"] * group["matrix_rate"]
        # torch's scaler takes both away again.
        found_inf, divisor = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        for stack in _group_by_shape(matrices):
            for matrix in stack:
                if not self.state[matrix]:
                    self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
            averages = [self.state[matrix]["momentum_buffer"] for matrix in stack]
            gradients = [matrix.grad for matrix in stack if matrix.grad is not None]
            if divisor is not None:
                torch._foreach_div_(gradients, divisor)
            decay: float | Tensor = 1 - rate * group["weight_decay"]
            if found_inf is not None:
                # An average is its own gradient then, so that it stays and all numbers are finite.
                finite = found_inf == 0
                pairs = zip(gradients, averages, strict=True)
                gradients = [gradient.where(finite, average) for gradient, average in pairs]
                decay = torch.where(finite, decay, 1.0)
            torch._foreach_lerp_(averages, gradients, 1 - momentum)
            torch._foreach_lerp_(gradients, averages, momentum)
            if hasattr(gradients[0], "full_tensor"):
                directions = [_orthogonalize_shard(gradient) for gradient in gradients]
            else:
                directions_KMN = orthogonalize(gradients)
                if found_inf is not None:
                    directions_KMN = directions_KMN * finite
                directions = [*directions_KMN.to(stack[0].dtype)]
            torch._foreach_mul_(stack, decay)
            size = rate * _RMS_OF_ADAMW * math.sqrt(max(stack[0].shape))
            torch._foreach_add_(stack, directions, alpha=-size)


def uses_muon(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Return whether Muon, not AdamW, updates a parameter of a parameter group."""
    return parameter.ndim == 2 and not str(group.get("layer", "")).startswith(_OUTER_LAYERS)


def _subgroup(group: Mapping[str, Any], *, by_muon: bool) -> dict[str, Any]:
    """Return a parameter group with those of its parameters alone that Muon, or AdamW, moves."""
    moving = [p for p in group["params"] if p.grad is not None]
    return {**group, "params": [p for p in moving if uses_muon(p, group) == by_muon]}


def orthogonalize(matrices: Sequence[Tensor]) -> Tensor:
    """Return U S' V^T for each matrix U S V^T, S' being about 1 (0.7 to 1.2) where S is not tiny.

    Five rounds of Newton and Schulz's iteration, as in Jordan et al. 2024. In bfloat16 on a GPU, as
    there, and in float32 on a CPU. All at once: the products of one matrix fill no GPU. None is
    transposed in memory, and what is done to each takes operands of one layout: else a GPU is given
    a kernel for each matrix.

    Args:
        matrices: K times `[M, N]`, of any scale.

    Returns:
        `[K, M, N]`, in the type that it was computed in.
    """
    a, b, c = _COEFFICIENTS
    first = matrices[0]
    kind = torch.bfloat16 if first.is_cuda else torch.float32
    is_tall = first.shape[0] > first.shape[1]
    turned_KMN = first.new_empty((len(matrices), *first.shape), dtype=kind)
    torch._foreach_copy_([*turned_KMN], [*matrices])
    norms_K11 = torch.linalg.vector_norm(turned_KMN, dim=(1, 2), keepdim=True)
    turned_KMN /= norms_K11.clamp(min=_SMALLEST_NORM)
    for _ in range(_NUM_ITERATIONS):
        wide = turned_KMN.mT if is_tall else turned_KMN
        gram_KSS = wide @ wide.mT
        factor_KSS = torch.baddbmm(gram_KSS, gram_KSS, gram_KSS, beta=b, alpha=c)
        factors = (turned_KMN, factor_KSS) if is_tall else (factor_KSS, turned_KMN)
        turned_KMN = torch.baddbmm(turned_KMN, *factors, beta=a)
    return turned_KMN


def _group_by_shape(matrices: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return matrices that have the same shape together."""
    stacks: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        stacks.setdefault(matrix.shape, []).append(matrix)
    return list(stacks.values())


def _orthogonalize_shard(matrix: Tensor) -> Tensor:
    """Return this process's shard of `orthogonalize` of a sharded matrix."""
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(matrix, DTensor)  # noqa: S101 - for the type checker
    # Every process gathers the whole matrix and computes the same: a shard is not enough.
    mesh, whole = matrix.device_mesh, orthogonalize([matrix.full_tensor()])[0].to(matrix.dtype)
    spread = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return spread.redistribute(placements=matrix.placements)
