"""What the contracts share: how a claim fails, and how a model gets weights that show faults."""

import torch
from torch import nn


def claim(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - a condition, as of `assert`
    """Raise an AssertionError that says `otherwise`, unless the condition holds."""
    if not holds:
        raise AssertionError(otherwise)


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Draw every parameter anew and large, as if it were trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
