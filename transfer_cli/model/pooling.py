"""One vector a text, of its hidden states.

Legend: B batch, T positions, D width.
"""

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["cls_first", "cls_last", "mean", "max", "concat"]


def pool(hidden_BTD: Tensor, mask_BT: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector a sequence, `[B, D]` (`[B, 3 D]` for concat), independent of padding.

    `cls_first` and `cls_last` are the hidden states at the first and last real position, found by
    index: a text may hold the classification token, too. `concat` is the last hidden state, the
    maximum and the mean (Howard and Ruder 2018, section 3.3).
    """
    real_BT1 = mask_BT[..., None]
    if pooling == "cls_first":
        return _state_at(hidden_BTD, mask_BT.int().argmax(1))
    if pooling == "cls_last":
        from_end = mask_BT.int().flip(1).argmax(1)
        return _state_at(hidden_BTD, mask_BT.shape[1] - 1 - from_end)
    if pooling == "mean":
        # `where`, not a product: padded positions may hold NaN or inf.
        kept_BTD = torch.where(real_BT1, hidden_BTD, 0)
        return kept_BTD.sum(1) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    if pooling == "max":
        lowest = torch.finfo(hidden_BTD.dtype).min
        return torch.where(real_BT1, hidden_BTD, lowest).amax(1)
    parts: tuple[Pooling, ...] = ("cls_last", "max", "mean")
    return torch.cat([pool(hidden_BTD, mask_BT, part) for part in parts], dim=1)


def _state_at(hidden_BTD: Tensor, position_B: Tensor) -> Tensor:
    # Not by `len`: an exported graph would take batches of its example's size alone.
    row_B = torch.ones_like(position_B).cumsum(0) - 1
    return hidden_BTD[row_B, position_B]
