"""Memory of running text: states of earlier blocks that later ones see (Dai et al. 2019).

Legend: B batch, M remembered positions, T positions, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transfer_cli.model.packing import Packing, unpack


class Memory:
    """The states that each block has read at the last positions of a text, without gradient.

    A pass reads and extends it. Keys and values are computed of them anew, with the weights of
    that pass, which get a gradient; the states do not (section 3.2).
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.states: tuple[Tensor, ...] = ()
        """Of each of the L places, `[B, M, D]`; none at the beginning of a text."""
        self.document: Tensor | None = None
        """The document of each position, `[B, M]`; None: documents are not told apart."""

    @property
    def length(self) -> int:
        """M."""
        return self.states[0].shape[1] if self.states else 0

    def clear(self) -> None:
        """Forget everything, for a text that begins."""
        self.states, self.document = (), None

    def keep_first(self, rows: int) -> None:
        """Forget all but the first texts, the others having ended; of none, everything."""
        if not rows:
            self.clear()
        self.states = tuple(state_BMD[:rows] for state_BMD in self.states)
        self.document = None if self.document is None else self.document[:rows]

    def key_documents(self, document_BT: Tensor) -> Tensor:
        """Return the documents of all positions, `[B, M + T]`, given those of a pass."""
        return document_BT if self.document is None else torch.cat([self.document, document_BT], 1)

    def append(
        self, states: Sequence[Tensor], document_BT: Tensor | None, packing: Packing | None = None
    ) -> None:
        """Take in the states of a pass, `[B, T, D]` for each place, and forget the oldest ones.

        With a packing they are packed; what is padding then means nothing, as its text has ended.
        """
        # What is not finite would come back in all later steps; the step itself is skipped.
        new = [torch.nan_to_num(unpack(s, packing).detach(), 0.0, 0.0, 0.0) for s in states]
        before = self.states or [state_BTD[:, :0] for state_BTD in new]
        self.states = tuple(
            torch.cat(both, dim=1)[:, -self.max_length :] for both in zip(before, new, strict=True)
        )
        if document_BT is not None:
            self.document = self.key_documents(document_BT)[:, -self.max_length :]
