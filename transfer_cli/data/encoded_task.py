"""Labelled examples as tokens, laid out the way the model's direction asks for.

===============  ===================  ================================
direction        one text             two texts
===============  ===================  ================================
causal           A `cls`              A `sep` B `cls`
others           `cls` A `sep`        `cls` A `sep` B `sep`
template         as that of the tokenizer says
===============  ===================  ================================

Published tokenizers may have two `sep` between texts (RoBERTa), and of causal models a token before
them (Llama: `begin` A `sep` B `sep`): see `Tokenizer`. Before texts of an encoder-decoder there is
no `cls` that is the `sep` as well (T5).

Legend: B examples, T positions.
"""

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import Batch, gather
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.progress import progress

if TYPE_CHECKING:
    from transfer_cli.data.labelled import Example

log = logging.getLogger(__name__)

T = TypeVar("T")

Truncate = Literal["longest_first", "first", "second"]
"""Which of two texts loses tokens, at its end, where they are too long together."""

MIN_LENGTH = 5
"""A longest input must hold the three special tokens of a pair and a token of each text."""

_PORTION = 8192


class EncodedRows:
    """Examples as rows of tokens, with further values for each row.

    Args:
        rows: The tokens of each row, special tokens included.
        firsts: The length of each row's first segment; None: there is no second.
        targets: Further keys of a batch: for each row a number or an array, or (for the keys of
            `fill`) a value for each of its tokens.
        fill: Key of `targets` -> its value at padding.
        example_of: The number of the example that each row is a window of; None: rows are examples.
        is_cut: Whether each example was too long and was cut; None: none was.

    Attributes:
        lengths: Every row's length in tokens.
        num_cut: Number of examples that were cut.
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
        is_cut: Sequence[bool] | None = None,
    ) -> None:
        self.examples = examples
        self.is_cut = np.zeros(len(examples), dtype=bool) if is_cut is None else np.array(is_cut)
        self.num_cut = int(self.is_cut.sum())
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

    def add(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a key to all batches, with a value for each row."""
        self._targets[name] = values

    def add_answers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a key to all batches, with a value for each thing that is answered: here a row."""
        self.add(name, values)

    def has_known_tokens(self, special: Set[int]) -> npt.NDArray[np.bool_]:
        """Return of each example whether a token stands for a part of it: one not in `special`."""
        known = ~np.isin(self._tokens, [*special])
        rows = np.repeat(self.example_of, self.lengths)
        return np.bincount(rows, known, len(self.examples)) > 0

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return `tokens`, `mask`, `index`; of pairs `segment`; and the keys of `targets`."""
        index_B = np.asarray(indices, dtype=np.int64)
        starts_B, lengths_B = self._starts[index_B], self.lengths[index_B]
        tokens_BT, mask_BT = gather(self._tokens, starts_B, lengths_B, self._pad)
        batch = {
            "tokens": torch.from_numpy(tokens_BT),
            "mask": torch.from_numpy(mask_BT),
            "index": torch.from_numpy(index_B.copy()),
        }
        if self._firsts is not None:
            second_BT = np.arange(tokens_BT.shape[1]) >= self._firsts[index_B, None]
            batch["segment"] = torch.from_numpy((second_BT & mask_BT).astype(np.int64))
        for name, values in self._targets.items():
            if name in self._fill:
                rows, _ = gather(values, starts_B, lengths_B, self._fill[name])
            else:
                rows = values[index_B]
            batch[name] = torch.from_numpy(rows)
        return batch


def encode_texts(
    examples: "Sequence[Any]",
    tokenizer: Tokenizer,
    length: int,
    direction: str,
    targets: Mapping[str, Any] | None = None,
    truncate: Truncate = "longest_first",
    *,
    strict: bool = True,
) -> EncodedRows:
    """Return one split of texts, or pairs of texts, encoded once.

    A text that is too long loses tokens at its end, but never special ones (see `kept_sizes`).

    Args:
        length: The longest input in tokens, special tokens included.
        targets: Further keys of a batch, see `EncodedRows`; None: the examples' labels.
        truncate: Which of two texts loses tokens, see `kept_sizes`.
        strict: Whether it is an error if that text would lose all of them; else the other one is
            cut as well.
    """
    if length < MIN_LENGTH:
        raise ConfigError(
            f"data.length is {length}: with the special tokens an input needs at least "
            f"{MIN_LENGTH} positions."
        )
    start, end = specials_around(tokenizer, direction)
    between = specials_between(tokenizer)
    room = length - len(start) - len(end)
    rows, firsts, is_cut = [], [], []
    for example, text, other in _encode_examples(examples, tokenizer):
        left = room if example.pair is None else room - len(between)
        sizes = len(text), len(other)
        cut, second = kept_sizes(*sizes, left, truncate)
        if strict:
            check_truncation(example, sizes, (cut, second), truncate, left, length)
        rest = [] if example.pair is None else [*between, *other[:second]]
        is_cut.append(sum(sizes) > left)
        rows.append(array("i", start + text[:cut] + rest + end or [tokenizer.cls]))
        firsts.append(len(start) + cut + len(between))
    return EncodedRows(
        examples,
        rows,
        tokenizer.pad,
        firsts=None if all(example.pair is None for example in examples) else firsts,
        targets=label_targets(examples) if targets is None else targets,
        is_cut=is_cut,
    )


def kept_sizes(
    first: int, second: int, room: int, truncate: Truncate = "longest_first"
) -> tuple[int, int]:
    """Return how many tokens of two texts stay, which together have `room`.

    The longer one is cut until both are as long, then both. This is the rule of the tokenizers
    library, an odd token included, so that a model that is exported cuts as it did here. With
    `first` or `second` only that one is cut, and the other where it has no room alone.
    """
    if first + second <= room:
        return first, second
    if truncate == "first":
        second = min(second, room)
        return room - second, second
    if truncate == "second":
        first = min(first, room)
        return first, room - first
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)


def check_truncation(
    example: "Example",
    sizes: tuple[int, int],
    left: tuple[int, int],
    truncate: Truncate,
    room: int,
    length: int,
) -> None:
    """Raise if the text that `truncate` says would lose all of its tokens for the other one."""
    if sum(sizes) <= room or {"first": left[0], "second": left[1]}.get(truncate) != 0:
        return
    other, size = ("second", sizes[1]) if truncate == "first" else ("first", sizes[0])
    file = f"{example.file}, " if example.file else ""
    line = "" if example.line is None else f"{file}line {example.line}: "
    raise DataError(
        f"{line}the {other} text has {size:,} tokens, and data.length={length} leaves {room:,} for "
        f"both, so data.truncate={truncate} makes no room; data.truncate=longest_first does"
    )


def _encode_examples(
    examples: "Sequence[Example]", tokenizer: Tokenizer
) -> "Iterator[tuple[Example, list[int], list[int]]]":
    """Yield examples with the tokens of both texts; the second has none if it is not there."""
    for portion in iterate_portions(examples):
        texts = tokenizer.encode_batch([example.text for example in portion])
        others = tokenizer.encode_batch([example.pair or "" for example in portion])
        yield from zip(portion, texts, others, strict=True)


def iterate_portions(examples: Sequence[T], unit: str = "texts") -> Iterator[Sequence[T]]:
    """Yield examples in portions to encode, showing progress.

    While it is made, an encoding takes ten times the memory of its tokens.
    """
    with progress("encoding", len(examples), unit) as more:
        for first in range(0, len(examples), _PORTION):
            portion = examples[first : first + _PORTION]
            yield portion
            more(len(portion))


def have_answers(answers: Sequence[Any], what: str) -> bool:
    """Return whether examples have answers: all of them, or none, which is None."""
    unknown = [number for number, answer in enumerate(answers, 1) if answer is None]
    if unknown and len(unknown) < len(answers):
        raise DataError(f"Example {unknown[0]} of {len(answers)} has no {what}, others have one.")
    return not unknown and bool(answers)


def specials_around(tokenizer: Tokenizer, direction: str) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text, or two; see the table above."""
    if direction == "template":
        before, after = tokenizer.before_text, tokenizer.after_text
        return [] if before is None else [before], [] if after is None else [after]
    if direction == "causal":
        if tokenizer.begin is not None:
            return [tokenizer.begin], [tokenizer.sep]
        return [], [tokenizer.cls]
    if direction == "encoder_decoder" and tokenizer.cls == tokenizer.sep:
        return [], [tokenizer.sep]
    return [tokenizer.cls], [tokenizer.sep]


def specials_between(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens between two texts; see the table above."""
    return [tokenizer.sep] * tokenizer.separators


def warn_of_cuts(num_cut: int, num_examples: int, length: int, key: str = "data.length") -> None:
    """Log how many examples were cut, if any were, and which key says where."""
    if num_cut:
        log.warning(
            "Cut %d of %d examples to %d tokens; `%s` sets how many are kept, up to the model's "
            "positions", num_cut, num_examples, length, key,
        )  # fmt: skip


def warn_of_empty(num_empty: int, num_examples: int) -> None:
    """Log how many examples have no text, if any have none."""
    if num_empty:
        log.warning("%s of %s examples are empty texts", f"{num_empty:,}", f"{num_examples:,}")


def warn_of_unknown(num_unknown: int, num_examples: int) -> None:
    """Log how many examples have no token that the model knows, if any have none."""
    if num_unknown:
        log.warning(
            "of %s of %s examples the model knows no token: their answers say nothing of them",
            f"{num_unknown:,}", f"{num_examples:,}",
        )  # fmt: skip


def is_empty(texts: "Sequence[str]") -> bool:
    """Return whether there is nothing but blanks in the texts of an example."""
    return not any(text and not text.isspace() for text in texts)


def label_targets(examples: "Sequence[Example]") -> dict[str, Sequence[Any]]:
    """Return the labels of examples as a key of batches, or nothing where they have none."""
    labels = [example.label for example in examples]
    return {"label": labels} if have_answers(labels, "label") else {}
