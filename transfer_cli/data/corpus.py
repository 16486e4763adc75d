"""Unlabelled text as blocks of tokens.

Legend: B blocks, T positions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.encoded_text import EncodedText, JoinedTokens
from transfer_cli.data.split import WeightedSource
from transfer_cli.errors import DataError


@dataclass(frozen=True, eq=False)
class TextBlocks:
    """A text cut into blocks of `length` inputs, each with the tokens after them as targets.

    Where documents are told apart, the end of the line before one is its first input.

    Neighbouring blocks overlap by one token: every token but the first is a target exactly once.
    The last block may be short.

    With `history`, a block begins so many tokens earlier, which are no targets in it, or as many
    as there are: a window that slides over the text by `length` tokens.
    """

    text: EncodedText
    length: int
    pad: int
    history: int = 0

    @property
    def sources(self) -> list[WeightedSource]:
        """Weighted sources of the text: a block belongs to the one in which it begins."""
        found: list[WeightedSource] = []
        tokens = 0
        for each in self.text.sources:
            tokens += each.size
            begin = sum(source.size for source in found)
            end = min(-(-tokens // self.length), len(self))
            if end == begin:
                raise DataError(
                    f"data.weights: {each.name} has {each.size:,} tokens, less than a block; leave "
                    "it out of data.train, or take a smaller data.length"
                )
            found.append(WeightedSource(each.name, end - begin, each.weight))
        return found

    @property
    def num_targets(self) -> int:
        """How many tokens are predicted: all but the first."""
        return len(self.text.tokens) - 1

    def __len__(self) -> int:
        """Return the number of blocks."""
        return -(-self.num_targets // self.length)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return `tokens`, `mask`, `next_tokens`, `index` and perhaps `document` of some blocks."""
        index_B = np.asarray(indices, dtype=np.int64)
        if index_B.size and not 0 <= index_B.min() <= index_B.max() < len(self):
            raise IndexError(f"blocks {indices} of {len(self)}")
        scored_B = index_B * self.length
        starts_B = np.maximum(scored_B - self.history, 0)
        lengths_B = np.minimum(scored_B + self.length, self.num_targets) - starts_B
        tokens_BT, mask_BT = gather(self.text.tokens, starts_B, lengths_B, self.pad)
        next_BT, _ = gather(self.text.tokens, starts_B + 1, lengths_B, IGNORE)
        places_BT = starts_B[:, None] + np.arange(tokens_BT.shape[1])
        next_BT[places_BT < scored_B[:, None]] = IGNORE
        batch = {
            "tokens": torch.from_numpy(tokens_BT),
            "mask": torch.from_numpy(mask_BT),
            "next_tokens": torch.from_numpy(next_BT),
            "index": torch.from_numpy(index_B.copy()),
        }
        if self.text.starts is not None:
            document_BT = np.searchsorted(self.text.starts, places_BT, side="right")
            batch["document"] = torch.from_numpy(document_BT)
        return batch


def gather(
    tokens: npt.NDArray[Any] | JoinedTokens,
    starts_B: npt.NDArray[np.int64],
    lengths_B: npt.NDArray[np.int64],
    filler: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the pieces of `tokens` that start at `starts_B` as rows, padded on the right.

    Returns:
        The rows, `[B, T]` with T the longest length, and a mask that is False at padding.
    """
    offsets_T = np.arange(lengths_B.max(initial=0))
    mask_BT = offsets_T < lengths_B[:, None]
    positions_BT = np.where(mask_BT, starts_B[:, None] + offsets_T, 0)
    rows_BT = np.where(mask_BT, tokens[positions_BT].astype(np.int64), filler)
    return rows_BT, mask_BT
