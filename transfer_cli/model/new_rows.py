"""Rows of a frozen embedding that can learn all the same.

Legend: B batch, T positions, D width, N tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transfer_cli.model.added import Added


class AddedRows(Added):
    """What is added to the embeddings of a few tokens: zero at birth.

    Only the input changes. A tied output table, which is the token embedding, does not.

    Args:
        tokens: Their numbers.
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
        """Return what to add, `[B, T, D]`."""
        matches_BTN = tokens_BT[..., None] == self.ids
        # A matrix product would round to half precision under autocast, and embeddings do not.
        added_BTD: Tensor = (matches_BTN[..., None] * self.delta).sum(-2)
        return added_BTD

    def added_to(self, table: Tensor) -> Tensor:
        """Return a table of all embeddings, `[V, D]`, with these added to theirs."""
        return table.detach().index_add(0, self.ids, self.delta.detach())
