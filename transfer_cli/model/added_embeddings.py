"""Trainable embeddings beside those of a model: of a few tokens, and of segments.

Legend: B batch, T positions, D width, N tokens.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.added import Added


class AddedRows(Added):
    """Trainable offsets of the embeddings of a few tokens; they start at zero.

    They change the input only, not a tied output layer.

    Args:
        tokens: Token ids.
        width: D.
    """

    kind = "embeddings that are added to others"
    ids: Tensor

    def __init__(self, tokens: Sequence[int], width: int) -> None:
        super().__init__()
        self.tokens = tuple(tokens)
        self.register_buffer("ids", torch.tensor(self.tokens), persistent=False)
        self.delta = nn.Parameter(torch.zeros(len(self.tokens), width))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return the offset of each token, `[B, T, D]`."""
        matches_BTN = tokens_BT[..., None] == self.ids
        # Autocast would round a matrix product to half precision, but not embeddings.
        added_BTD: Tensor = (matches_BTN[..., None] * self.delta).sum(-2)
        return added_BTD

    def with_offsets(self, table: Tensor) -> Tensor:
        """Return an embedding matrix, `[V, D]`, with the offsets added."""
        return table.detach().index_add(0, self.ids, self.delta.detach())


class AddedSegments(Added):
    """An embedding of each segment, in a model that was pretrained without them; zero at first.

    Segments are the speakers of a dialog, or two texts.
    """

    kind = "embeddings of segments"

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, width))

    def forward(self, segment_BT: Tensor) -> Tensor:
        """Return the embedding of each position's segment, `[B, T, D]`."""
        return F.embedding(segment_BT, self.weight)
