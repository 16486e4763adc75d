"""Check an optimizer's state from a file before the optimizer loads it.

Torch's `load_state_dict` only compares numbers of groups and parameters. Averages of another shape,
or of another optimizer, would fail in the first step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_PLAIN_AVERAGES = {("momentum_buffer", type(None)), ("step", int), ("step", float)}


def checked_state(optimizer: Optimizer, saved: Any) -> dict[str, Any]:
    """Return the state to load: averages of these parameters, under `optimizer`'s settings."""
    ours = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in saved["param_groups"]] != [group["params"] for group in ours]:
        raise ValueError("its optimizer has other parameters")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not _has_all_averages(optimizer, parameters, saved["state"]):
        raise ValueError("its optimizer lacks something of some parameters")
    for number, averages in saved["state"].items():
        for name, value in averages.items():
            if isinstance(value, Tensor):
                fits = _broadcasts(value.shape, parameters[number].shape)
            else:
                # Momentum of what has had no gradient yet, and counts of some optimizers.
                fits = (name, type(value)) in _PLAIN_AVERAGES
            if not fits:
                raise ValueError(f"{name} of its optimizer's parameter {number}")
    return {"state": saved["state"], "param_groups": ours}


def _has_all_averages(
    optimizer: Optimizer, parameters: Sequence[Tensor], state: Mapping[int, Mapping[str, Any]]
) -> bool:
    """Return whether each parameter with averages has all of them.

    An optimizer may keep others of matrices than of vectors (Adafactor). One whose averages differ
    otherwise lists them in `averages()`.
    """
    noted = {number: set(averages) for number, averages in state.items() if averages}
    if hasattr(optimizer, "averages"):
        names = optimizer.averages()
        return all(own_names == names[number] for number, own_names in noted.items())
    kinds = {(parameters[n].ndim > 1, frozenset(own_names)) for n, own_names in noted.items()}
    return len(kinds) == len({is_matrix for is_matrix, _ in kinds})


def _broadcasts(shape: torch.Size, wanted: torch.Size) -> bool:
    """Return whether a tensor is one number, or one for each row, column or place of another."""
    same_rank = len(shape) == len(wanted)
    fits = same_rank and all(size in (1, full) for size, full in zip(shape, wanted, strict=True))
    return fits or shape.numel() == 1
