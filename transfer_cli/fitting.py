"""What fits into the memory of a GPU, by an estimate, and what is done where it does not."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

FILLED = 0.85
"""The share of free memory that an estimate may fill: it leaves out logits and what is passing."""

Made = TypeVar("Made")


def free_bytes(device: torch.device) -> float:
    """Return how much memory of a GPU is free; of a CPU's nothing is asked: without end."""
    if device.type != "cuda":
        return math.inf
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def fitting(most: int, room: float, needed: Callable[[int], float]) -> int:
    """Return the largest half, quarter, ... of `most` rows for which there is room; at least 1."""
    rows = most
    while rows > 1 and needed(rows) > room:
        rows = -(-rows // 2)
    return rows


def in_halves(
    rows: np.ndarray, work: Callable[[np.ndarray], Made]
) -> Iterator[tuple[np.ndarray, Made]]:
    """Yield rows and what `work` makes of them: of all, or of halves where memory runs out."""
    try:
        made = work(rows)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    else:
        yield rows, made
        return
    # Not within `except`: what was raised keeps what its pass has computed.
    torch.cuda.empty_cache()
    for half in np.array_split(rows, 2):
        yield from in_halves(half, work)
