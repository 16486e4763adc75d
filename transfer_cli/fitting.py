"""What fits into the memory of a GPU, by an estimate, and what is done where it does not."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

FILLED = 0.85
"""The share of free memory that an estimate may fill: it leaves out logits and what is passing."""

Result = TypeVar("Result")


def free_bytes(device: torch.device) -> float:
    """Return how much memory of a GPU is free; of a CPU's nothing is asked: without end."""
    if device.type != "cuda":
        return math.inf
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def rows_that_fit(most: int, room: float, needed: Callable[[int], float]) -> int:
    """Return the largest half, quarter, ... of `most` rows for which there is room; at least 1."""
    rows = most
    while rows > 1 and needed(rows) > room:
        rows = -(-rows // 2)
    return rows


def halve_if_out_of_memory(
    rows: np.ndarray, work: Callable[[np.ndarray], Result]
) -> Iterator[tuple[np.ndarray, Result]]:
    """Yield rows and what `work` makes of them: of all, or of halves where memory runs out."""
    try:
        result = work(rows)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    else:
        yield rows, result
        return
    # Not within `except`: what was raised keeps what its pass has computed.
    torch.cuda.empty_cache()
    for half in np.array_split(rows, 2):
        yield from halve_if_out_of_memory(half, work)
