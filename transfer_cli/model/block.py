"""One Transformer block, in the three residual forms that matter here.

Legend: B batch, T positions, D width.

| form | update of each sub-layer F | used by |
|---|---|---|
| `pre` | `z + Drop(F(LN(z)))` | GPT-2; the default |
| `post` | `LN(z + Drop(F(z)))` | BERT, the original Transformer |
| `tutorial` | `z = LN(z); z + Drop(F(z))` | the model of the NAACL 2019 tutorial |

`tutorial` is `post` with its norms shifted by one place: its first norm acts as the embedding norm
of `post`, and the norm after its last sub-layer is missing.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transfer_cli.model.attention import SelfAttention
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.key_values import LayerKeyValues

Activation = Literal["relu", "gelu", "gelu_tanh"]
Residual = Literal["pre", "post", "tutorial"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
}


class FeedForward(nn.Module):
    """Two products with an activation between them, at every position alike."""

    def __init__(self, width: int, inner: int, activation: Activation) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        out: Tensor = self.output(self.activation(self.inner(hidden_BTD)))
        return out


class Block(nn.Module):
    """Attention, then feed-forward, each with its norm, dropout and residual sum.

    `sites` are two named places, no-ops at birth, on each sub-layer's output after its dropout and
    before the residual sum: what an adaptation adds to a block is put there. `nn.Identity` has no
    parameters, so a plain and an edited model share their state-dict keys.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        inner: int,
        *,
        activation: Activation,
        residual: Residual,
        dropout: float,
        attention_dropout: float,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.recomputed = False
        """Whether the backward pass computes the inside again instead of keeping it."""
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.attention = SelfAttention(width, heads, attention_dropout)
        self.feed_forward_norm = nn.LayerNorm(width, eps=epsilon)
        self.feed_forward = FeedForward(width, inner, activation)
        self.drop = Dropout(dropout)
        self.sites = nn.ModuleDict(
            {"after_attention": nn.Identity(), "after_feed_forward": nn.Identity()}
        )

    def forward(
        self,
        hidden_BTD: Tensor,
        allowed: Tensor | None,
        *,
        causal: bool,
        kept: LayerKeyValues | None = None,
    ) -> Tensor:
        """Return `[B, T, D]`; see `SelfAttention` for the arguments."""
        if self.recomputed and kept is None and torch.is_grad_enabled():
            # Chen et al. 2016. Inside of the block, so that what gathers a block's weights before
            # its passes does so for this one, too.
            run = partial(self._run, causal=causal)
            again: Tensor = checkpoint(run, hidden_BTD, allowed, use_reentrant=False)
            return again
        return self._run(hidden_BTD, allowed, causal=causal, kept=kept)

    def _run(
        self,
        hidden_BTD: Tensor,
        allowed: Tensor | None,
        *,
        causal: bool,
        kept: LayerKeyValues | None = None,
    ) -> Tensor:
        def attend(z: Tensor) -> Tensor:
            attended: Tensor = self.attention(z, allowed, causal=causal, kept=kept)
            return attended

        after_attention = self._sublayer(hidden_BTD, attend, self.attention_norm, "after_attention")
        return self._sublayer(
            after_attention, self.feed_forward, self.feed_forward_norm, "after_feed_forward"
        )

    def _sublayer(
        self, z: Tensor, function: Callable[[Tensor], Tensor], norm: nn.Module, site: str
    ) -> Tensor:
        if self.residual == "post":
            out: Tensor = norm(z + self.sites[site](self.drop(function(z))))
            return out
        normed = norm(z)
        carried = normed if self.residual == "tutorial" else z
        summed: Tensor = carried + self.sites[site](self.drop(function(normed)))
        return summed
