"""Norms, by name.

| norm | of z, over its last dimension | used by |
|---|---|---|
| `layer` | `(z - mean) / sd * weight + bias` | BERT, GPT-2 |
| `layer_no_bias` | the same without the bias | ModernBERT |
| `rms` | `z / rms(z) * weight` (Zhang and Sennrich 2019) | Llama |
| `rms_unit` | `z / rms(z) * (1 + weight)` | Gemma |
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.shape import BackboneShape


class LayerNormWithoutBias(nn.LayerNorm):
    """Layer norm with a weight alone."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps=eps, bias=False)


class RMSNorm(nn.Module):
    """Divides by the root mean square, in float32 at least (Zhang and Sennrich 2019)."""

    offset: ClassVar[float] = 0.0
    """Added to the weight; weights start so that the sum is 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size)), eps
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let it only divide."""
        nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, z: Tensor) -> Tensor:
        """Return a tensor of the same shape and type."""
        gain = self.weight.float()
        gain = gain + self.offset if self.offset else gain
        return F.rms_norm(z.float(), gain.shape, gain, self.eps).to(z.dtype)


class RMSNormOfUnitOffset(RMSNorm):
    """The same, storing the weight's difference from 1 (Gemma)."""

    offset = 1.0


NORMS: dict[str, type[nn.Module]] = {
    "layer": nn.LayerNorm, "layer_no_bias": LayerNormWithoutBias, "rms": RMSNorm,
    "rms_unit": RMSNormOfUnitOffset,
}  # fmt: skip
"""Each is built by `(size, eps=...)` and reinitialised by `reset_parameters`."""


def build_norm(shape: BackboneShape, size: int) -> nn.Module:
    """Return the norm of a shape, over a last dimension of `size`."""
    return NORMS[shape.norm](size, eps=shape.epsilon)
