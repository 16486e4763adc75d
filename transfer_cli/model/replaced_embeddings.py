"""Puts other embeddings in the place of a pass's tokens; the model stays as it is.

Legend: B batch, T positions, E size of an embedding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from transfer_cli.model.backbone import Backbone


@contextmanager
def replaced_embeddings(backbone: Backbone, given_BTE: Tensor) -> Iterator[None]:
    """Have passes take these for the embeddings of their tokens while the context is active.

    Everything that follows is done as ever: scale, positions, segments, norm, projection. So is
    all else that reads the table, such as a tied output. The batches must not be packed.

    Args:
        backbone: It stays unchanged.
        given_BTE: Like `Backbone.embeddings_of`; gradients reach it.

    Raises:
        ValueError: A pass has tokens of another shape.
    """

    def given(found: Tensor) -> Tensor:
        if found.shape != given_BTE.shape:
            raise ValueError(
                f"the tokens have embeddings of shape {list(found.shape)}, and those given in "
                f"their place are {list(given_BTE.shape)}"
            )
        return given_BTE

    before = backbone.on_tokens
    backbone.on_tokens = given
    try:
        yield
    finally:
        backbone.on_tokens = before
