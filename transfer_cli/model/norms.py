"""Norms, by name."""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transfer_cli.model.shape import BackboneShape

NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm}
"""Each is built by `(size, eps=...)` and reinitialised by `reset_parameters`."""


def build_norm(shape: "BackboneShape", size: int) -> nn.Module:
    """Return the norm of a shape, over a last dimension of `size`."""
    return NORMS[shape.norm](size, eps=shape.epsilon)
