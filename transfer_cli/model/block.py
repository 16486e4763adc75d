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

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transfer_cli.model.attention import AttentionInputs, SelfAttention
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.norms import build_norm

if TYPE_CHECKING:
    from transfer_cli.model.shape import BackboneShape

Activation = Literal["relu", "gelu", "gelu_tanh"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
}


class FeedForward(nn.Module):
    """A feed-forward part; made from a shape."""

    inner: nn.Linear
    """Reads the residual stream."""
    output: nn.Linear
    """Writes into it."""


class MLP(FeedForward):
    """Two products with an activation between them, at every position alike."""

    def __init__(self, shape: "BackboneShape") -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feedforward)
        self.output = nn.Linear(shape.feedforward, shape.width)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        out: Tensor = self.output(self.activation(self.inner(hidden_BTD)))
        return out


FEED_FORWARDS: dict[str, Callable[["BackboneShape"], FeedForward]] = {"mlp": MLP}


class Block(nn.Module, ABC):
    """Attention, then feed-forward, each with its norm, dropout and residual sum.

    A subclass is a residual form. `sites` are two named places, no-ops at birth, on each
    sub-layer's output after its dropout and before the residual sum: what an adaptation adds to a
    block is put there. `nn.Identity` has no parameters, so a plain and an edited model share their
    state-dict keys.
    """

    embedding_norm: ClassVar[bool] = False
    """Whether the form has a norm on the embeddings, unless the shape says otherwise."""
    final_norm: ClassVar[bool] = False
    """Whether no norm is ever applied to the residual stream itself.

    Then one follows the last block, and the products that write into the stream start smaller.
    """

    def __init__(self, shape: "BackboneShape") -> None:
        super().__init__()
        self.recomputed = False
        """Whether the backward pass computes the inside again instead of keeping it."""
        self.attention_norm = build_norm(shape, shape.width)
        self.attention = SelfAttention(shape)
        self.feed_forward_norm = build_norm(shape, shape.width)
        self.feed_forward = FEED_FORWARDS[shape.feedforward_kind](shape)
        self.drop = Dropout(shape.dropout)
        self.sites = nn.ModuleDict(
            {"after_attention": nn.Identity(), "after_feed_forward": nn.Identity()}
        )

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`."""
        if self.recomputed and inputs.kv_cache is None and torch.is_grad_enabled():
            # Chen et al. 2016. Inside of the block, so that what gathers a block's weights before
            # its passes does so for this one, too.
            run = partial(self.update, inputs=inputs)
            again: Tensor = checkpoint(run, hidden_BTD, use_reentrant=False)
            return again
        return self.update(hidden_BTD, inputs)

    @abstractmethod
    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`: both sub-layers with their norms and sums."""

    def attend(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return what attention adds to the residual stream."""
        attended: Tensor = self.sites["after_attention"](self.drop(self.attention(z, inputs)))
        return attended

    def feed(self, z: Tensor) -> Tensor:
        """Return what the feed-forward part adds to the residual stream."""
        fed: Tensor = self.sites["after_feed_forward"](self.drop(self.feed_forward(z)))
        return fed


class PreNormBlock(Block):
    """Norms before each sub-layer."""

    final_norm = True

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`."""
        z = z + self.attend(self.attention_norm(z), inputs)
        return z + self.feed(self.feed_forward_norm(z))


class PostNormBlock(Block):
    """Norms after each residual sum."""

    embedding_norm = True

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`."""
        z = self.attention_norm(z + self.attend(z, inputs))
        out: Tensor = self.feed_forward_norm(z + self.feed(z))
        return out


class TutorialBlock(Block):
    """Norms before each sub-layer, of the residual stream itself."""

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`."""
        z = self.attention_norm(z)
        z = z + self.attend(z, inputs)
        z = self.feed_forward_norm(z)
        return z + self.feed(z)


RESIDUALS: dict[str, type[Block]] = {
    "pre": PreNormBlock, "post": PostNormBlock, "tutorial": TutorialBlock,
}  # fmt: skip
