"""Looks at passes from inside, or changes them, and leaves the model as it is.

Legend: B batch, H heads, T positions, L places, F units, N real tokens, E size of an embedding.
"""

import sys
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from transfer_cli.model.attention import Gates, Probe
from transfer_cli.model.backbone import Backbone


@contextmanager
def set_probe(backbone: Backbone, **sites: Any) -> Iterator[None]:
    """Have passes carry a probe while the context is active; compiled ones run eagerly meanwhile.

    Args:
        sites: What looks or changes, as arguments of `Probe`; that of other sites stays.
    """
    before = backbone.probe
    backbone.probe = replace(before or Probe(), **sites)
    try:
        with _uncompiled():
            yield
    finally:
        backbone.probe = before


def set_gates(
    backbone: Backbone,
    heads: Tensor,
    *,
    without_attention: Set[int] = frozenset(),
    without_feed_forward: Set[int] = frozenset(),
) -> AbstractContextManager[None]:
    """Multiply what blocks compute while the context is active.

    A sub-layer without its update lets the residual stream pass. What the residual form does to the
    stream itself stays: the norms of `post` and `tutorial`.

    Args:
        heads: The factor of each head's mixed values, before the output projection: `[L, H]`, or
            `[L, B, H]` for each sequence of the batch. Other devices' are moved.
        without_attention: The places whose attention does not update the residual stream.
        without_feed_forward: Those whose feed-forward layer, and what is beside it, does not.

    Raises:
        ValueError: There are factors of other places or heads than the model has.
    """
    shape = backbone.shape
    if (heads.shape[0], heads.shape[-1]) != (shape.depth, shape.heads):
        raise ValueError(
            f"heads must be of {shape.depth} places and {shape.heads} heads, got "
            f"{list(heads.shape)}"
        )
    device = backbone.token_embedding.weight.device
    gates = [
        Gates(
            factors, float(place not in without_attention), float(place not in without_feed_forward)
        )
        for place, factors in enumerate(heads.to(device).unbind())
    ]
    return set_probe(backbone, gates=gates)


def head_ones(backbone: Backbone) -> Tensor:
    """Return the factors that leave no head out, `[L, H]`: ones."""
    return torch.ones(backbone.shape.depth, backbone.shape.heads)


def replace_embeddings(backbone: Backbone, embeddings_BTE: Tensor) -> AbstractContextManager[None]:
    """Have passes take these for the embeddings of their tokens while the context is active.

    Everything that follows is done as ever: scale, positions, segments, norm, projection. So is
    all else that reads the table, such as a tied output. The batches must not be packed.

    Args:
        embeddings_BTE: Like `Backbone.embed_tokens`; gradients reach it.

    Raises:
        ValueError: A pass has tokens of another shape.
    """

    def replacement(token_BTE: Tensor) -> Tensor:
        if token_BTE.shape != embeddings_BTE.shape:
            raise ValueError(
                f"the tokens have embeddings of shape {list(token_BTE.shape)}, and those given in "
                f"their place are {list(embeddings_BTE.shape)}"
            )
        return embeddings_BTE

    return set_probe(backbone, embeddings=replacement)


def watch_units(
    backbone: Backbone, look: Callable[[int, Tensor], None]
) -> AbstractContextManager[None]:
    """Hand over the feed-forward units of every place of each pass, and keep none.

    Units are what the down projection reads: after their activation, gated ones multiplied by their
    gates. A block that several places share is handed over at each of them.

    Args:
        look: Gets the number of the place, from 0, and its units, `[B, T, F]`, or `[1, N, F]` of
            the N real tokens where the batch is packed.
    """
    places = cycle(range(backbone.shape.depth))

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        look(next(places), inputs[0])

    downs: list[nn.Module] = [block.feed_forward.output for block in backbone.blocks]  # type: ignore[union-attr,misc]
    return _until_removed([down.register_forward_pre_hook(keep) for down in downs])


def zero_unit(
    backbone: Backbone, unit: int, place: int | None = None
) -> AbstractContextManager[None]:
    """Put 0 in place of one number of each token's state while the context is active.

    Source: Li et al. 2016, section 3.

    Args:
        place: The block whose output it is, with the last norm behind the last one; None: the
            number is one of the embeddings of tokens, before anything is added to them.
    """

    def without(state_BTD: Tensor) -> Tensor:
        return state_BTD.index_fill(-1, torch.tensor([unit], device=state_BTD.device), 0)

    if place is None:
        return set_probe(backbone, embeddings=without)
    depth, places = backbone.shape.depth, cycle(range(backbone.shape.depth))

    def at_place(module: nn.Module, inputs: Any, state_BTD: Tensor) -> Tensor | None:
        return without(state_BTD) if next(places) == place else None

    if place == depth - 1 and backbone.shape.has_final_norm:
        norm = backbone.final_norm
        return _until_removed([norm.register_forward_hook(lambda *passed: without(passed[2]))])
    return _until_removed([block.register_forward_hook(at_place) for block in backbone.blocks])


@contextmanager
def _until_removed(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    try:
        with _uncompiled():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _uncompiled() -> AbstractContextManager[Any]:
    # Importing it takes a second; if it is missing, nothing is compiled.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager
