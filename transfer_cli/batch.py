"""What a batch is.

Legend: B examples, T positions, K kept layers, D width.

A batch is a plain dict of tensors, batch first. Keys of ours:

=============  ==============  =====================================================================
key            shape, type     meaning
=============  ==============  =====================================================================
`tokens`       [B, T] int64    token numbers, padded on the right to the longest example
`mask`         [B, T] bool     True for real tokens, False for padding
`index`        [B] int64       each example's number in its split; randomness is derived from it
`next_tokens`  [B, T] int64    running text only: the token after each position
`segment`      [B, T] int64    pairs of texts only: 0 in the first text, 1 in the second
`label`        [B] int64       labelled data only: the class that people gave
`target`       [B, T] int64    made by an objective's `prepare`; `IGNORE` where there is no loss
`states`       [B, T, K, D]    cached features only: float32 hidden states of the layers that the
                               readout reads; 0 at padding
=============  ==============  =====================================================================
"""

import torch
from torch import Tensor

Batch = dict[str, Tensor]

IGNORE = -100
"""The target that marks a position without loss."""


def size(batch: Batch) -> int:
    """Return the number of examples."""
    return int(batch["tokens"].shape[0])


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on `device`, copied without waiting where the memory is pinned."""
    return {key: value.to(device, non_blocking=True) for key, value in batch.items()}
