"""Cross-entropy over a large vocabulary without ever holding all logits.

Legend: N rows, D width, V vocabulary, R rows of a chunk.

Logits of `[N, V]` are most of the memory of a small language model, three times over: logits,
probabilities, gradient. Here rows are taken a chunk at a time, and since the loss is a sum whose
gradient is known as soon as the probabilities are, both gradients are made in the forward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = 2**23
"""Logits held at once: 32 MiB in float32."""


def summed_cross_entropy(
    hidden_ND: Tensor, table_VD: Tensor, bias_V: Tensor | None, target_N: Tensor
) -> Tensor:
    """Return -sum log softmax(hidden @ table^T + bias)[target], a float32 scalar.

    The same value and gradients as torch's `cross_entropy` of the full logits with a sum.
    """
    if torch.is_grad_enabled() and (hidden_ND.requires_grad or table_VD.requires_grad):
        total: Tensor = _GradientInForward.apply(hidden_ND, table_VD, bias_V, target_N)  # type: ignore[no-untyped-call]
        return total
    total = torch.zeros((), device=hidden_ND.device)
    for rows in _chunks(len(target_N), len(table_VD)):
        logits_RV = F.linear(hidden_ND[rows], table_VD, bias_V).float()
        total = total + F.cross_entropy(logits_RV, target_N[rows], reduction="sum")
    return total


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(16, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, start + size) for start in range(0, rows, size)]


class _GradientInForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, table_VD: Tensor, bias_V: Tensor | None, target_N: Tensor
    ) -> Tensor:
        need_hidden, need_table, need_bias, _ = ctx.needs_input_grad
        total = hidden_ND.new_zeros((), dtype=torch.float64)
        by_hidden = torch.empty_like(hidden_ND) if need_hidden else None
        by_table = torch.zeros_like(table_VD) if need_table else None
        by_bias = torch.zeros_like(bias_V) if need_bias and bias_V is not None else None
        for rows in _chunks(len(target_N), len(table_VD)):
            logits_RV = F.linear(hidden_ND[rows], table_VD, bias_V)
            kind, target_R1 = logits_RV.dtype, target_N[rows, None]
            gradient_RV = logits_RV if kind == torch.float64 else logits_RV.float()
            gradient_RV.sub_(gradient_RV.amax(1, keepdim=True))
            picked_R1 = gradient_RV.gather(1, target_R1)
            sum_R1 = gradient_RV.exp_().sum(1, keepdim=True)
            total += (sum_R1.log() - picked_R1).sum(dtype=torch.float64)
            gradient_RV.div_(sum_R1)
            gradient_RV.scatter_add_(1, target_R1, -torch.ones_like(picked_R1))
            if by_bias is not None:
                by_bias += gradient_RV.sum(0)
            narrow_RV = gradient_RV.to(kind)
            if by_hidden is not None:
                by_hidden[rows] = torch.mm(narrow_RV, table_VD.to(kind))
            if by_table is not None and kind == by_table.dtype:
                by_table.addmm_(narrow_RV.t(), hidden_ND[rows])
            elif by_table is not None:
                by_table += torch.mm(narrow_RV.t(), hidden_ND[rows].to(kind))
        ctx.save_for_backward(by_hidden, by_table, by_bias)
        return total.to(torch.promote_types(hidden_ND.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = upstream
        return *(g if g is None else g * scale.to(g.dtype) for g in ctx.saved_tensors), None
