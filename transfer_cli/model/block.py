"""A Transformer block, in several residual forms.

Legend: B batch, T positions, D width.

| form | update of each sub-layer F | used by |
|---|---|---|
| `pre` | `z + Drop(F(LN(z)))` | GPT-2; the default |
| `post` | `LN(z + Drop(F(z)))` | BERT, the original Transformer |
| `tutorial` | `z = LN(z); z + Drop(F(z))` | the model of the NAACL 2019 tutorial |
| `pre_first_plain` | `pre`; the first attention has no norm, the embeddings have | ModernBERT |
| `sandwich` | `z + Drop(LN(F(LN(z))))` | Gemma 2 and 3 |
| `reordered` | `z + Drop(LN(F(z)))` | OLMo 2 |
| `parallel` | `z + Drop(A(LN(z))) + Drop(F(LN(z)))`, two norms | GPT-NeoX |

`tutorial` is `post` with its norms shifted by one place: its first norm acts as the embedding norm
of `post`, and its last sub-layer has no norm after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transfer_cli.model.attention import (
    Attention,
    AttentionInputs,
    CrossAttention,
    SelfAttention,
)
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.norms import build_norm
from transfer_cli.model.products import ProductCounter
from transfer_cli.model.shape import BackboneShape

AFTER_CROSS_ATTENTION = "after_cross_attention"
BESIDE_FEED_FORWARD = "beside_feed_forward"
BESIDE_BLOCK = "beside_block"
"""Sites of a block that need not be there."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Base class of feed-forward layers; built from a shape."""

    inner: nn.Linear
    """The up projection: reads the residual stream."""
    output: nn.Linear
    """The down projection: writes to the residual stream."""
    inner_parts: ClassVar[int] = 1
    """How many states of the inner size the up projection makes."""
    kept_states: ClassVar[int] = 2
    """How many states of the inner size the backward pass needs, roughly."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        has_bias, inner = shape.biases in ("all", "feed_forward"), shape.feedforward
        self.inner = nn.Linear(shape.width, self.inner_parts * inner, bias=has_bias)
        self.output = nn.Linear(inner, shape.width, bias=has_bias)
        self.activation = ACTIVATIONS[shape.activation]


class MLP(FeedForward):
    """Two linear layers with an activation between them, at every position alike."""

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        out: Tensor = self.output(self.activation(self.inner(hidden_BTD)))
        return out


class GatedMLP(FeedForward):
    """W_o (act(W_g x) * W_u x); `inner` is W_g above W_u (Shazeer 2020).

    With `silu` it is called SwiGLU, with `gelu` GeGLU.
    """

    inner_parts = 2
    kept_states = 4

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        gate, up = self.inner(hidden_BTD).chunk(2, dim=-1)
        out: Tensor = self.output(self.activation(gate) * up)
        return out


FEED_FORWARDS: dict[str, type[FeedForward]] = {"mlp": MLP, "gated": GatedMLP}


class Block(nn.Module):
    """Attention, then feed-forward, each with its norm, dropout and residual sum.

    It has a norm before each sub-layer; a subclass is another residual form. `sites` holds two
    modules, one on the output of each sub-layer after its dropout and before the residual sum. They
    start as `nn.Identity`, and edits replace them. `nn.Identity` has no parameters, so a plain and
    an edited model share their state-dict keys. Two more are there only if an edit has put them:
    `beside_feed_forward` reads what the feed-forward layer reads, `beside_block` what the attention
    reads, and the attention's inputs. The output of both is added to the update by the feed-forward
    layer.
    """

    norms_follow: ClassVar[bool] = False
    """Whether `attention_norm` and `feed_forward_norm` come after their sub-layers."""
    parallel: ClassVar[bool] = False
    """Whether the feed-forward layer reads the same state as the attention."""
    cross_attention: CrossAttention | None
    """A decoder's attention on its source, between the other two sub-layers."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.recomputed = False
        """Whether the backward pass recomputes the activations (gradient checkpointing)."""
        self.residual_dtype: torch.dtype | None = None
        """Of the residual stream; None: what sums make of it, float32 under autocast."""
        self.attention_norm = build_norm(shape, shape.width)
        self.attention = SelfAttention(shape)
        self.feed_forward_norm = build_norm(shape, shape.width)
        self.feed_forward = FEED_FORWARDS[shape.feedforward_kind](shape)
        self.drop = Dropout(shape.dropout)
        self.sites = nn.ModuleDict(
            {"after_attention": nn.Identity(), "after_feed_forward": nn.Identity()}
        )
        self.register_module("cross_attention", None)

    def add_cross_attention(self, shape: BackboneShape) -> None:
        """Make it a decoder's block, which has an attention on a source with a norm and a site."""
        self.cross_attention_norm = build_norm(shape, shape.width)
        self.cross_attention = CrossAttention(shape)
        self.sites[AFTER_CROSS_ATTENTION] = nn.Identity()

    @property
    def attentions(self) -> "Sequence[Attention]":
        """Its attention, and a decoder's on its source."""
        cross = self.cross_attention
        return [self.attention] if cross is None else [self.attention, cross]

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`."""
        if inputs.memory is not None:
            inputs = replace(inputs, memory=self.attention_input(inputs.memory))
        if self.recomputed and inputs.kv_cache is None and torch.is_grad_enabled():
            # Chen et al. 2016. Inside the block, so that FSDP's hooks gather its weights for the
            # recomputation, too.
            run = partial(self.update, inputs=inputs)
            again: Tensor = checkpoint(run, hidden_BTD, use_reentrant=False)
            return self.cast_residual(again)
        return self.cast_residual(self.update(hidden_BTD, inputs))

    def cast_residual(self, z: Tensor) -> Tensor:
        """Return a residual stream in its type: norms return float32 on a GPU."""
        return z if self.residual_dtype is None else z.to(self.residual_dtype)

    def attention_input(self, z: Tensor) -> Tensor:
        """Return what the attention reads of the residual stream."""
        read: Tensor = self.attention_norm(z)
        return read

    def feed_forward_input(self, z: Tensor) -> Tensor:
        """Return what the feed-forward layer reads of the residual stream."""
        read: Tensor = self.feed_forward_norm(z)
        return read

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return `[B, T, D]`: both sub-layers with their norms and residual sums."""
        read = self.attention_input(z)
        z = self.update_from_source(z + self.attention_update(read, inputs), inputs)
        return z + self.feed_forward_update(self.feed_forward_input(z), read, inputs)

    def attention_update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the attention's update of the residual stream."""
        update: Tensor = self.sites["after_attention"](self.drop(self.attention_output(z, inputs)))
        return update if inputs.gates is None else update * inputs.gates.attention

    def attention_output(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the output of the attention, which dropout follows."""
        out: Tensor = self.attention(z, inputs)
        return out

    def update_from_source(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the residual stream with what the attention on a source adds, if there is any."""
        if self.cross_attention is None:
            return z
        before, follow = self.cross_attention_norms()
        read = z if before is None else before(z)
        z = z + self.sites[AFTER_CROSS_ATTENTION](self.drop(self.cross_attention(read, inputs)))
        return z if follow is None else self.cast_residual(follow(z))

    def cross_attention_norms(self) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the norm before the attention on a source, and that behind it."""
        norm = self.cross_attention_norm
        return (None, norm) if self.norms_follow else (norm, None)

    def feed_forward_update(self, z: Tensor, read: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the update of the residual stream by the feed-forward layer and what is beside.

        `read` is what the attention has read.
        """
        fed: Tensor = self.sites["after_feed_forward"](self.drop(self.feed_forward_output(z)))
        if BESIDE_FEED_FORWARD in self.sites:
            fed = fed + self.sites[BESIDE_FEED_FORWARD](z)
        if BESIDE_BLOCK in self.sites:
            fed = fed + self.sites[BESIDE_BLOCK](read, inputs)
        return fed if inputs.gates is None else fed * inputs.gates.feed_forward

    def feed_forward_output(self, z: Tensor) -> Tensor:
        """Return the output of the feed-forward layer, which dropout follows."""
        out: Tensor = self.feed_forward(z)
        return out

    def norms(self) -> tuple[Sequence[nn.Module | None], Sequence[nn.Module | None]]:
        """Return the norms before both sub-layers, and those that follow them."""
        norms, none = (self.attention_norm, self.feed_forward_norm), (None, None)
        return (none, norms) if self.norms_follow else (norms, none)

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """See `CountsProducts`."""
        # A norm that follows its sub-layer has no part in what that reads.
        first, follow = self.norms()
        read = needs_grad or counter.trains(first[0])
        attended = counter.count(self.attention, unit, needs_grad=read)
        attended = counter.count(self.sites["after_attention"], unit, needs_grad=attended)
        attended = attended or counter.trains(follow[0])
        between = needs_grad if self.parallel else needs_grad or read or attended
        if self.cross_attention is not None:
            before, behind = self.cross_attention_norms()
            crossed = counter.count(
                self.cross_attention, unit, needs_grad=between or counter.trains(before)
            )
            crossed = counter.count(self.sites[AFTER_CROSS_ATTENTION], unit, needs_grad=crossed)
            between = between or crossed or counter.trains(behind)
            attended = attended or between
        between = between or counter.trains(first[1])
        fed = counter.count(self.feed_forward, unit, needs_grad=between)
        fed = counter.count(self.sites["after_feed_forward"], unit, needs_grad=fed)
        fed = fed or counter.trains(follow[1])
        if BESIDE_FEED_FORWARD in self.sites:
            fed = counter.count(self.sites[BESIDE_FEED_FORWARD], unit, needs_grad=between) or fed
        if BESIDE_BLOCK in self.sites:
            fed = counter.count(self.sites[BESIDE_BLOCK], unit, needs_grad=read) or fed
        return attended or fed


class PostNormBlock(Block):
    """Norms after each residual sum."""

    norms_follow = True

    def attention_input(self, z: Tensor) -> Tensor:
        return z

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        summed = self.cast_residual(self.attention_norm(z + self.attention_update(z, inputs)))
        summed = self.update_from_source(summed, inputs)
        out: Tensor = self.feed_forward_norm(summed + self.feed_forward_update(summed, z, inputs))
        return out


class TutorialBlock(Block):
    """Norms before each sub-layer, applied to the residual stream itself."""

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        read = self.cast_residual(self.attention_input(z))
        z = self.cast_residual(self.feed_forward_norm(read + self.attention_update(read, inputs)))
        return z + self.feed_forward_update(z, read, inputs)


class ReorderedBlock(Block):
    """Norms on each sub-layer's output."""

    norms_follow = True

    def attention_input(self, z: Tensor) -> Tensor:
        return z

    def feed_forward_input(self, z: Tensor) -> Tensor:
        return z

    def attention_output(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        out: Tensor = self.attention_norm(self.attention(z, inputs))
        return out

    def feed_forward_output(self, z: Tensor) -> Tensor:
        out: Tensor = self.feed_forward_norm(self.feed_forward(z))
        return out


class SandwichBlock(ReorderedBlock):
    """Norms before each sub-layer and on its output."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__(shape)
        self.attention_first_norm = build_norm(shape, shape.width)
        self.feed_forward_first_norm = build_norm(shape, shape.width)

    def norms(self) -> tuple[Sequence[nn.Module | None], Sequence[nn.Module | None]]:
        return (self.attention_first_norm, self.feed_forward_first_norm), super().norms()[1]

    def attention_input(self, z: Tensor) -> Tensor:
        read: Tensor = self.attention_first_norm(z)
        return read

    def feed_forward_input(self, z: Tensor) -> Tensor:
        read: Tensor = self.feed_forward_first_norm(z)
        return read


class ParallelBlock(Block):
    """Both sub-layers read the same state, each through its norm."""

    parallel = True

    def update(self, z: Tensor, inputs: AttentionInputs) -> Tensor:
        read = self.attention_input(z)
        attended = self.attention_update(read, inputs)
        return z + attended + self.feed_forward_update(self.feed_forward_input(z), read, inputs)


RESIDUALS: dict[str, type[Block]] = {
    "pre": Block, "pre_first_plain": Block, "post": PostNormBlock, "tutorial": TutorialBlock,
    "sandwich": SandwichBlock, "reordered": ReorderedBlock, "parallel": ParallelBlock,
}  # fmt: skip
