"""A smaller model inside another, whose embeddings it reads (ELECTRA, Clark et al. 2020)."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.positions import LearnedPositions
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel

BORROWED_TENSORS = (
    "backbone.token_embedding.", "backbone.position_embedding.weight",
    "backbone.segment_embedding.", "backbone.embedding_norm.",
)  # fmt: skip
"""The tensors that it reads of another one, by the beginning of their names."""


class BorrowingBackbone(Backbone):
    """A backbone that reads another's embeddings, as wide as its own, and has no tables."""

    def __init__(self, shape: BackboneShape, embedder: Backbone) -> None:
        super().__init__(shape, vocabulary=1)  # whose tables go
        self.vocabulary = embedder.vocabulary
        for name in ("token_embedding", "segment_embedding", "embedding_norm"):
            if hasattr(self, name):
                delattr(self, name)
        if isinstance(self.position_embedding, LearnedPositions):
            self.position_embedding.register_parameter("weight", None)
        # In a tuple, so that it is no part of this module: each parameter has one name.
        self._embedder = (embedder,)

    @property
    def embedder(self) -> Backbone:
        return self._embedder[0]


def narrowed_shape(shape: BackboneShape, width: float, depth: float) -> BackboneShape:
    """Return the shape of a masked language model beside a model of this shape.

    Args:
        width: The share of its heads, which stay as wide as they are, and so of its width.
        depth: The share of its blocks.

    Raises:
        ValueError: Of its heads, that is no whole number.
    """
    heads = max(1, round(width * shape.heads))
    own_width = shape.width * heads // shape.heads
    # How far a share of the heads may be from a whole number: a third is typed as 0.33.
    near_whole = 0.05
    if abs(width * shape.heads - heads) > near_whole or own_width * shape.heads != (
        shape.width * heads
    ):
        raise ValueError(
            f"width={width:g} of {shape.heads} heads are {width * shape.heads:.3g}; give a share "
            f"that is a whole number of them, for example {heads / shape.heads:.3g}"
        )
    group = shape.heads // shape.kv_heads
    blocks = max(1, round(depth * shape.depth))
    return replace(
        shape,
        width=own_width,
        heads=heads,
        depth=blocks,
        feedforward=max(1, round(shape.feedforward * heads / shape.heads)),
        key_value_heads=None if group == 1 else heads // group if heads % group == 0 else 1,
        share=shape.share if isinstance(shape.share, str) else min(shape.share, blocks),
        embedding_width=shape.embedding_size,
        embedding_norm=shape.has_embedding_norm,
        pooler="none",
        tie_output=True,
        output_bias=True,
        output_transform=True,
        output_activation="gelu",
    )


def head_as_model(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a head that is such a model, as those of a model of its own."""
    prefix = f"heads.{name}."
    inner = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return {n: t for n, t in tensors.items() if n.startswith(BORROWED_TENSORS)} | inner


def model_as_head(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what `head_as_model` was made of, but for the tables."""
    inner = {n: tensor for n, tensor in tensors.items() if not n.startswith(BORROWED_TENSORS)}
    return {f"heads.{name}.{n}": tensor for n, tensor in inner.items()}


def borrowing_model(shape: BackboneShape, embedder: Backbone) -> TransferModel:
    """Return a masked language model of this shape that reads the embeddings of another model."""
    head: nn.Module = LanguageModelHead(shape, embedder.vocabulary)
    return TransferModel(BorrowingBackbone(shape, embedder), {"lm": head})
