"""Norms, by name."""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transfer_cli.model.shape import BackboneShape

NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm}
"""Each is called as `(size, eps=...)` and brings itself back by `reset_parameters`."""


def build_norm(shape: "BackboneShape", size: int) -> nn.Module:
    """Return the norm that a shape asks for, of the last `size` numbers."""
    return NORMS[shape.norm](size, eps=shape.epsilon)
