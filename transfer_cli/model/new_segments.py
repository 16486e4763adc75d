"""Embeddings of segments in a model that was pretrained without them.

Legend: B batch, T positions, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.added import Added


class AddedSegments(Added):
    """An embedding of each segment: of the speakers of a dialog, or of two texts; zero at first.

    Args:
        count: Number of segments.
        width: D.
    """

    kind = "embeddings of segments"

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, width))

    def forward(self, segment_BT: Tensor) -> Tensor:
        """Return the embedding of each position's segment, `[B, T, D]`."""
        return F.embedding(segment_BT, self.weight)
