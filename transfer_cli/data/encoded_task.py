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
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
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


class EncodedRows:
    """Examples as rows of tokens, with what else is known of each row.

    Args:
        examples: The examples.
        rows: The tokens of each row, special tokens included.
        pad: The token that fills a batch up.
        firsts: How many tokens of each row are of its first text; None: there is no second.
        targets: Further keys of a batch: for each row a number or an array, or (where `fill` says
            what stands at padding) a value for each of its tokens.
        fill: Key of `targets` -> what stands at padding.
        example_of: The number of the example that each row is a window of; None: rows are examples.
        num_cut: How many examples did not fit and were cut.

    Attributes:
        lengths: Every row's length in tokens.
    """

    def __init__(
        self,
        examples: "Sequence[Any]",
        rows: Sequence[Sequence[int]],
        pad: int,
        *,
        firsts: Sequence[int] | None = None,
        targets: Mapping[str, Sequence[Any] | npt.NDArray[Any]] = MappingProxyType({}),
        fill: Mapping[str, int] = MappingProxyType({}),
        example_of: Sequence[int] | None = None,
        num_cut: int = 0,
    ) -> None:
        self.examples = examples
        self.num_cut = num_cut
        self.lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        self.example_of = np.arange(len(rows)) if example_of is None else np.asarray(example_of)
        self._pad = pad
        self._firsts = None if firsts is None else np.array(firsts, dtype=np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._tokens = np.fromiter(chain.from_iterable(rows), np.int32, self.lengths.sum())
        self._fill = dict(fill)
        self._targets = {
            name: np.fromiter(chain.from_iterable(values), np.int64, self.lengths.sum())
            if name in fill
            else np.asarray(values)
            for name, values in targets.items()
        }

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return `tokens`, `mask`, `index`; of pairs `segment`; and what `targets` holds."""
        index_B = np.asarray(indices, dtype=np.int64)
        tokens_BT, mask_BT = self._padded(self._tokens, index_B, self._pad)
        batch = {
            "tokens": torch.from_numpy(tokens_BT),
            "mask": torch.from_numpy(mask_BT),
            "index": torch.from_numpy(index_B.copy()),
        }
        if self._firsts is not None:
            second_BT = np.arange(tokens_BT.shape[1]) >= self._firsts[index_B, None]
            batch["segment"] = torch.from_numpy((second_BT & mask_BT).astype(np.int64))
        for name, values in self._targets.items():
            found = (
                self._padded(values, index_B, self._fill[name])[0]
                if name in self._fill
                else values[index_B]
            )
            batch[name] = torch.from_numpy(found)
        return batch

    def _padded(
        self, values: npt.NDArray[Any], index_B: npt.NDArray[np.int64], fill: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        return gather(values, self._starts[index_B], self.lengths[index_B], fill)


class EncodedTask(EncodedRows):
    """One split of texts, or pairs of texts, with a label each, encoded once.

    A text that is too long is cut at its end; of two texts the longer is cut first. The special
    tokens are always kept. One warning says how many examples were cut.

    Args:
        examples: The examples; all of them have a label, or none.
        tokenizer: Turns texts into tokens.
        length: The longest input in tokens, special tokens included.
        direction: The model's, see the table above.

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
        labels = _labels(examples)
        rows, firsts, num_cut = _rows(examples, tokenizer, length, direction)
        pairs = any(example.pair is not None for example in examples)
        super().__init__(
            examples,
            rows,
            tokenizer.pad,
            firsts=firsts if pairs else None,
            targets={} if labels is None else {"label": labels},
            num_cut=num_cut,
        )


def specials_around(tokenizer: Tokenizer, direction: str) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text, or two; see the table above."""
    if direction == "causal":
        return [], [tokenizer.cls]
    return [tokenizer.cls], [tokenizer.sep]


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
    start, end = specials_around(tokenizer, direction)
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
