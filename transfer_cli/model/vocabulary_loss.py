"""Losses over a large vocabulary without materialising all logits.

Legend: N rows, D width, V vocabulary, C columns (V, or more), R rows of a chunk.

Most memory of a small language model goes to three tensors `[N, V]`: logits, probabilities and
their gradient. Here rows are processed in chunks. The loss is a sum, and its gradient follows from
the probabilities, so the forward pass computes both.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 2**23, "cuda": 2**27}
"""Elements of the logits of a chunk: 32 MiB in float32; more on a GPU, to keep it busy."""

TILE = 128
"""Of a chunk's last rows, a GPU computes as many as this anyway."""


def summed_cross_entropy(
    hidden_ND: Tensor,
    table_VD: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    *,
    compiled: bool = False,
    on_logits: Callable[[Tensor, slice], None] | None = None,
) -> Tensor:
    """Return -sum log softmax(hidden @ table^T + bias)[target], a float32 scalar.

    Same value and gradients as torch's `cross_entropy(logits, target, reduction="sum")`. With
    `compiled`, `torch.compile` fuses the operations on the logits. `on_logits` is called with those
    of some rows, `[R, V]`, and with their numbers; it must not keep them.
    """
    if torch.is_grad_enabled() and (hidden_ND.requires_grad or table_VD.requires_grad):
        work = _compile() if compiled else _loss_in_place

        def of_targets(logits_RC: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
            if on_logits is not None:
                on_logits(logits_RC[:, : len(table_VD)], rows)
            return work(logits_RC, target_N[rows, None])

        return _summed_in_chunks(hidden_ND, table_VD, bias_V, of_targets, _padded_columns)
    total = torch.zeros((), device=hidden_ND.device)
    for rows in _chunks(len(hidden_ND), len(table_VD), hidden_ND.device.type):
        logits_RV = F.linear(hidden_ND[rows], table_VD, bias_V).float()
        if on_logits is not None:
            on_logits(logits_RV, rows)
        total = total + F.cross_entropy(logits_RV, target_N[rows], reduction="sum")
    return total


def summed_divergence(
    hidden_ND: Tensor,
    table_VD: Tensor,
    bias_V: Tensor | None,
    teacher_logits: Callable[[slice], Tensor],
    temperature: float,
) -> Tensor:
    """Return tau^2 KL(p || q) summed over rows, a float32 scalar, in chunks as well.

    Its gradient by the logits is tau (q - p) (Hinton et al. 2015, section 2.1).

    Args:
        hidden_ND: The student's states.
        table_VD: Its output matrix.
        bias_V: Its output bias.
        teacher_logits: Returns a teacher's logits, `[R, V]`, of some rows; p is their softmax,
            and q that of the student's, both divided by tau.
        temperature: tau.
    """

    def of_teacher(logits_RV: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        own_RV = (_at_least_float32(logits_RV) / temperature).log_softmax(-1)
        log_p_RV = (_at_least_float32(teacher_logits(rows)) / temperature).log_softmax(-1)
        p_RV = log_p_RV.exp()
        divergence_R = log_p_RV.sub_(own_RV).mul_(p_RV).sum(1)
        gradient_RV = own_RV.exp_().sub_(p_RV).mul_(temperature)
        return temperature**2 * divergence_R.sum(dtype=torch.float64), gradient_RV

    return _summed_in_chunks(hidden_ND, table_VD, bias_V, of_teacher)


def summed_copy_loss(
    hidden_ND: Tensor,
    table_VD: Tensor,
    bias_V: Tensor | None,
    gate_N: Tensor,
    target_N: Tensor,
    is_read_N: Tensor,
) -> Tensor:
    """Return -sum log p(target) of a model that may copy what it reads, a scalar, in chunks.

    p(v) = c [v is read] + (1 - c) softmax(hidden @ table^T + bias)[v], with c = sigmoid(gate)
    (Clark et al. 2020, section 3.4, all-tokens MLM).

    Args:
        hidden_ND: States.
        table_VD: The output matrix.
        bias_V: The output bias.
        gate_N: Of each row.
        target_N: The right token of each row.
        is_read_N: Whether that is the token that the model reads there.
    """
    gate_N = _at_least_float32(gate_N)
    by_gate_N = torch.empty_like(gate_N)

    def of_targets(logits_RV: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        gate_R, is_read_R = gate_N.detach()[rows], is_read_N[rows]
        log_s_RV = _at_least_float32(logits_RV).log_softmax(-1)
        log_s_R = log_s_RV.gather(1, target_N[rows, None]).squeeze(1)
        log_copied_R, log_written_R = F.logsigmoid(gate_R), F.logsigmoid(-gate_R) + log_s_R
        log_p_R = torch.where(
            is_read_R, torch.logaddexp(log_copied_R, log_written_R), log_written_R
        )
        # Of c: it is right where the target is read, by as much as the rest does not say so.
        copies_R = (log_copied_R + F.logsigmoid(-gate_R) - log_p_R).exp()
        by_gate_N[rows] = torch.where(is_read_R, -copies_R * -log_s_R.expm1(), log_copied_R.exp())
        # The part of the target's probability that the softmax has, which it learns with.
        share_R1 = (log_written_R - log_p_R).exp()[:, None]
        gradient_RV = log_s_RV.exp_().mul_(share_R1)
        gradient_RV.scatter_add_(1, target_N[rows, None], -share_R1)
        return -log_p_R.sum(dtype=torch.float64), gradient_RV

    total = _summed_in_chunks(hidden_ND, table_VD, bias_V, of_targets)
    # Nothing, but for its gradient.
    return total + ((gate_N - gate_N.detach()) * by_gate_N).sum()


def _summed_in_chunks(
    hidden_ND: Tensor,
    table_VD: Tensor,
    bias_V: Tensor | None,
    loss_and_gradient: Callable[[Tensor, slice], tuple[Tensor, Tensor]],
    columns: Callable[[int, torch.dtype], int] = lambda vocabulary, kind: vocabulary,
) -> Tensor:
    # torch says nothing of the types of `apply`.
    total: Tensor = _GradientInForward.apply(  # type: ignore[no-untyped-call]
        hidden_ND, table_VD, bias_V, loss_and_gradient, columns
    )
    return total


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _padded_columns(vocabulary: int, kind: torch.dtype) -> int:
    """Return how many columns logits have that may have more than a vocabulary, all -inf.

    Half precision is multiplied fast only in rows of aligned sizes.
    """
    return math.ceil(vocabulary / 64) * 64 if kind.itemsize == 2 else vocabulary


def _cast_factors(
    hidden_ND: Tensor,
    table_VD: Tensor,
    bias_V: Tensor | None,
    columns: Callable[[int, torch.dtype], int],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return them as they are multiplied, so that no chunk casts them again."""
    # What autocast multiplies in.
    kind = F.linear(hidden_ND[:0], table_VD[:0]).dtype
    size = columns(len(table_VD), kind)
    if bias_V is None and size > len(table_VD):
        bias_V = table_VD.new_zeros(len(table_VD))
    bias_C = None if bias_V is None else _pad_rows(bias_V, kind, size, -torch.inf)
    return hidden_ND.to(kind), _pad_rows(table_VD, kind, size, 0), bias_C


def _pad_rows(values: Tensor, kind: torch.dtype, size: int, fill: float) -> Tensor:
    if len(values) == size:
        return values.to(kind)
    padded = values.new_full((size, *values.shape[1:]), fill, dtype=kind)
    padded[: len(values)] = values
    return padded


def _chunks(rows: int, vocabulary: int, device: str) -> list[slice]:
    """Return which rows make each chunk; on a GPU chunks are alike, and of whole tiles."""
    size = max(16, CHUNK_ELEMENTS.get(device, CHUNK_ELEMENTS["cpu"]) // vocabulary)
    if device == "cuda" and rows:
        chunks = math.ceil(rows / max(TILE, size // TILE * TILE))
        size = TILE * math.ceil(rows / chunks / TILE)
    return [slice(start, start + size) for start in range(0, rows, size)]


def _loss_in_place(logits_RV: Tensor, target_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss and its gradient by the logits, which may reuse their memory."""
    gradient_RV = _at_least_float32(logits_RV)
    gradient_RV.sub_(gradient_RV.amax(1, keepdim=True))
    picked_R1 = gradient_RV.gather(1, target_R1)
    sum_R1 = gradient_RV.exp_().sum(1, keepdim=True)
    loss = (sum_R1.log() - picked_R1).sum(dtype=torch.float64)
    gradient_RV.div_(sum_R1)
    gradient_RV.scatter_add_(1, target_R1, -torch.ones_like(picked_R1))
    return loss, gradient_RV


def _loss_fused(logits_RV: Tensor, target_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as `_loss_in_place`, in two passes that torch's compiler fuses.

    The target's logit is picked by itself: picked in a sum, it would take a pass of its own.
    """
    wide_RV = _at_least_float32(logits_RV)
    max_R1 = wide_RV.amax(1, keepdim=True)
    shifted_RV = wide_RV - max_R1
    log_sum_R1 = shifted_RV.exp().sum(1, keepdim=True).log()
    picked_R1 = wide_RV.gather(1, target_R1) - max_R1
    loss = (log_sum_R1 - picked_R1).sum(dtype=torch.float64)
    is_target_RV = torch.arange(logits_RV.shape[1], device=logits_RV.device) == target_R1
    gradient_RV = (shifted_RV - log_sum_R1).exp() - is_target_RV.to(wide_RV.dtype)
    return loss, gradient_RV.to(logits_RV.dtype)


@cache
def _compile() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    compiled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = torch.compile(
        _loss_fused, fullgraph=True, dynamic=True
    )

    def of_known_columns(logits_RV: Tensor, target_R1: Tensor) -> tuple[Tensor, Tensor]:
        # If their number were a variable, kernels would load them one by one.
        torch._dynamo.mark_static(logits_RV, 1)
        return compiled(logits_RV, target_R1)

    return of_known_columns


class _GradientInForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        table_VD: Tensor,
        bias_V: Tensor | None,
        loss_and_gradient: Callable[[Tensor, slice], tuple[Tensor, Tensor]],
        columns: Callable[[int, torch.dtype], int],
    ) -> Tensor:
        need_hidden, need_table, need_bias, *_ = ctx.needs_input_grad
        total = hidden_ND.new_zeros((), dtype=torch.float64)
        states_ND, matrix_CD, bias_C = _cast_factors(hidden_ND, table_VD, bias_V, columns)
        by_hidden = torch.empty_like(states_ND) if need_hidden else None
        by_table = torch.zeros_like(table_VD) if need_table else None
        by_bias = torch.zeros_like(bias_V) if need_bias and bias_V is not None else None
        for rows in _chunks(len(hidden_ND), len(matrix_CD), hidden_ND.device.type):
            logits_RC = F.linear(states_ND[rows], matrix_CD, bias_C)
            loss, gradient_RC = loss_and_gradient(logits_RC, rows)
            total += loss
            if by_bias is not None:
                by_bias += gradient_RC[:, : len(by_bias)].sum(0, dtype=by_bias.dtype)
            narrow_RC = gradient_RC.to(states_ND.dtype)
            if by_hidden is not None:
                torch.mm(narrow_RC, matrix_CD, out=by_hidden[rows])
            if by_table is not None:
                narrow_VR = narrow_RC[:, : len(by_table)].t()
                _add_product(by_table, narrow_VR, states_ND[rows])
        ctx.save_for_backward(by_hidden, by_table, by_bias)
        return total.to(torch.promote_types(hidden_ND.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = upstream
        # In place, since a table's gradient is as large as the table. In a second backward pass
        # torch raises an error: the saved tensors have changed.
        gradients = (g if g is None else _scale_gradient(g, scale) for g in ctx.saved_tensors)
        return *gradients, None, None


def _scale_gradient(gradient: Tensor, scale: Tensor) -> Tensor:
    """Return the product, in place, or in one pass where the gradient is to be widened."""
    is_wide = gradient.dtype == scale.dtype
    # A vector widens what it multiplies; a scalar does not.
    return gradient.mul_(scale) if is_wide else gradient * scale[None]


def _adds_wide(device: torch.device) -> bool:
    """Return whether products of half precision are added to float32 without being rounded."""
    return device.type == "cuda" and torch.__version__ >= "2.10"


def _add_product(total_VD: Tensor, left_VR: Tensor, right_RD: Tensor) -> None:
    if left_VR.dtype == total_VD.dtype:
        total_VD.addmm_(left_VR, right_RD)
    elif _adds_wide(total_VD.device):
        # No part of autocast, so both factors are to be of one kind already.
        kind = total_VD.dtype
        torch.addmm(total_VD, left_VR, right_RD, out_dtype=kind, out=total_VD)
    else:
        total_VD += torch.mm(left_VR, right_RD)
