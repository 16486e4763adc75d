"""Labelled examples as tokens, laid out the way the model's direction asks for.

==============  ===================  ================================
direction       one text             two texts
==============  ===================  ================================
causal          A `cls`              A `sep` B `cls`
bidirectional   `cls` A `sep`        `cls` A `sep` B `sep`
==============  ===================  ================================

Legend: B examples, T positions.
"""

import logging
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import Batch
from transfer_cli.data.corpus import gather
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transfer_cli.data.tasks import Example

log = logging.getLogger(__name__)

# A longest input must hold the three special tokens of a pair and a token of each text.
_SHORTEST = 5


class EncodedTask:
    """One split of a task, encoded once.

    A text that is too long is cut at its end; of two texts the longer is cut first. The special
    tokens are always kept. One warning says how many examples were cut.

    Args:
        examples: The examples; all of them have a label, or none.
        tokenizer: Turns texts into tokens.
        length: The longest input in tokens, special tokens included.
        direction: The model's, see the table above.

    Attributes:
        lengths: Every example's length in tokens, special tokens included.
        num_cut: How many examples did not fit and were cut.

    Raises:
        ConfigError: `length` leaves no room for a text.
        DataError: Some examples have a label and some have none.
    """

    def __init__(
        self,
        examples: "Sequence[Example]",
        tokenizer: Tokenizer,
        length: int,
        direction: Literal["causal", "bidirectional"],
    ) -> None:
        if length < _SHORTEST:
            raise ConfigError(
                f"data.length is {length}: with the special tokens an input needs at least "
                f"{_SHORTEST} positions."
            )
        self.examples = examples
        self._pad = tokenizer.pad
        self._labels = _labels(examples)
        rows, firsts, num_cut = _rows(examples, tokenizer, length, direction)
        self.num_cut = num_cut
        self.lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        pairs = any(example.pair is not None for example in examples)
        self._firsts = np.array(firsts, dtype=np.int64) if pairs else None
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._tokens = np.fromiter(chain.from_iterable(rows), np.int32, self.lengths.sum())

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.examples)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return `tokens`, `mask`, `index`; of pairs `segment`; where there are labels `label`."""
        index_B = np.asarray(indices, dtype=np.int64)
        tokens_BT, mask_BT = gather(
            self._tokens, self._starts[index_B], self.lengths[index_B], self._pad
        )
        batch = {
            "tokens": torch.from_numpy(tokens_BT),
            "mask": torch.from_numpy(mask_BT),
            "index": torch.from_numpy(index_B.copy()),
        }
        if self._firsts is not None:
            second_BT = np.arange(tokens_BT.shape[1]) >= self._firsts[index_B, None]
            batch["segment"] = torch.from_numpy((second_BT & mask_BT).astype(np.int64))
        if self._labels is not None:
            batch["label"] = torch.from_numpy(self._labels[index_B])
        return batch


def warn_of_cuts(num_cut: int, num_examples: int, length: int) -> None:
    """Say once, for all of them, how many examples were cut; nothing when none was."""
    if num_cut:
        log.warning(
            "Cut %d of %d examples to %d tokens; `data.length` sets how many are kept, up to "
            "the model's positions",
            num_cut,
            num_examples,
            length,
        )


def _labels(examples: "Sequence[Example]") -> npt.NDArray[np.int64] | None:
    labels = [example.label for example in examples]
    known = [label for label in labels if label is not None]
    if not known:
        return None
    if len(known) < len(labels):
        raise DataError(
            f"Example {labels.index(None) + 1} of {len(labels)} has no label, others have one. "
            "Give each a label, or none."
        )
    return np.array(known, dtype=np.int64)


def _rows(
    examples: "Sequence[Example]", tokenizer: Tokenizer, length: int, direction: str
) -> tuple[list[list[int]], list[int], int]:
    """Return every example's tokens, how many are of its first text, and how many were cut."""
    encoded = tokenizer.encode_batch([example.text for example in examples])
    pairs = [example.pair for example in examples]
    encoded_pairs = iter(tokenizer.encode_batch([pair for pair in pairs if pair is not None]))
    start, end = {
        "causal": ([], [tokenizer.cls]),
        "bidirectional": ([tokenizer.cls], [tokenizer.sep]),
    }[direction]
    num_special = len(start) + len(end)
    rows, firsts, num_cut = [], [], 0
    for first, pair in zip(encoded, pairs, strict=True):
        if pair is None:
            room = length - num_special
            rows.append(start + first[:room] + end)
            firsts.append(len(rows[-1]))
            num_cut += len(first) > room
        else:
            second = next(encoded_pairs)
            room = length - num_special - 1
            keep = _keep(len(first), len(second), room)
            firsts.append(len(start) + keep + 1)
            rows.append(start + first[:keep] + [tokenizer.sep] + second[: room - keep] + end)
            num_cut += len(first) + len(second) > room
    return rows, firsts, num_cut


def _keep(first: int, second: int, room: int) -> int:
    """Return how much of the first text stays when the longer of two is cut until both fit."""
    if first + second <= room:
        return first
    # The shorter is only cut when both are longer than half the room.
    half = (room + 1) // 2
    return min(first, max(half, room - second))
