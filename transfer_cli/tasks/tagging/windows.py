"""Words as rows of tokens: a long text becomes several windows, none of which cuts a word.

Legend: W words of a text, P pieces.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.encoded_task import EncodedRows, all_known, in_portions, specials_around
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.tasks.tagging.readers import TagExample


class EncodedWords(EncodedRows):
    """Texts as tokens; batches have `word`, the number of each word where its tag is read.

    Args:
        examples, rows, pad: See `EncodedRows`.
        read_at: For each row, the positions at which the tags of its own words are read, in order.
            A word in several windows belongs to one of them.
        target: For each row the target of each of its tokens; None: tags are not known.
        example_of, is_cut: See `EncodedRows`.
    """

    def __init__(
        self,
        examples: Sequence[TagExample],
        rows: Sequence[Sequence[int]],
        pad: int,
        read_at: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]] | None,
        *,
        example_of: Sequence[int],
        is_cut: Sequence[bool],
    ) -> None:
        targets: dict[str, Sequence[Sequence[int]]] = {"word": _numbered(rows, read_at)}
        if target is not None:
            targets["target"] = target
        super().__init__(
            examples,
            rows,
            pad,
            targets=targets,
            fill=dict.fromkeys(targets, IGNORE),
            example_of=example_of,
            is_cut=is_cut,
        )
        self.read_at = read_at
        self._of_words: dict[str, npt.NDArray[Any]] = {}

    def add_answers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a key to all batches, `[B, T, ...]`, with a value for each word; 0 elsewhere."""
        self._of_words[name] = values

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        batch = super().batch(indices)
        word_BT = batch["word"].numpy()
        is_read_BT = word_BT != IGNORE
        for name, values in self._of_words.items():
            placed = np.zeros((*word_BT.shape, *values.shape[1:]), values.dtype)
            placed[is_read_BT] = values[word_BT[is_read_BT]]
            batch[name] = torch.from_numpy(placed)
        return batch


def of_words(data: Any, rows: Mapping[int, Mapping[str, Any]], name: str) -> list[Any]:
    """Return what rows of `EncodedWords` hold of each word: they come in order, each once."""
    return [window[name][place] for row, window in rows.items() for place in data.read_at[row]]


@dataclass(frozen=True)
class Reading:
    """How tags are read and learnt.

    Args:
        piece: The piece of a word at which its tag is read.
        stride: Words that two windows share at least, where both have room; None: half of one.
        inside: The label of the pieces behind the one that is read, by the label of the word; those
            before it have the word's. None: only the piece that is read has a target.
    """

    piece: Literal["first", "last"]
    stride: int | None = None
    inside: Sequence[int] | None = None


@dataclass(frozen=True)
class _Window:
    """A window: its tokens, and of each of its own words the number, first piece and end."""

    tokens: list[int]
    words: list[tuple[int, int, int]]

    @classmethod
    def of(
        cls, pieces: Sequence[list[int]], window: tuple[int, int], owned: range, before: list[int]
    ) -> "_Window":
        tokens, words = [*before], []
        for word in range(*window):
            start = len(tokens)
            tokens += pieces[word]
            if word in owned:
                words.append((word, start, len(tokens)))
        return cls(tokens, words)

    def read_at(self, reading: Reading) -> list[int]:
        return [start if reading.piece == "first" else past - 1 for _, start, past in self.words]

    def target(self, label: Sequence[int], reading: Reading) -> list[int]:
        """Return the target of each token."""
        target = [IGNORE] * len(self.tokens)
        for (word, start, past), place in zip(self.words, self.read_at(reading), strict=True):
            tag = target[place] = label[word]
            if reading.inside is not None:
                target[start:place] = [tag] * (place - start)
                target[place + 1 : past] = [reading.inside[tag]] * (past - place - 1)
        return target


def encode_words(
    examples: Sequence[TagExample],
    tokenizer: Tokenizer,
    length: int,
    direction: str,
    reading: Reading,
) -> EncodedWords:
    """Return texts as rows of at most `length` tokens, with targets if their tags are known.

    A word that is longer than a row is cut. One without pieces is the unknown token.

    Batch keys: `word`; if tags are known `target`, the tag of a word at the piece where it is read
    (and at the others with `Reading.inside`), `IGNORE` elsewhere.
    """
    before, after = specials_around(tokenizer, direction)
    room = length - len(before) - len(after)
    if room < 1:
        raise ConfigError(f"data.length is {length}, which leaves no room for a word; raise it")
    known = all_known([example.label for example in examples], "tags")
    rows, example_of, is_cut = list[_Window](), list[int](), list[bool]()
    for at, (_, whole) in enumerate(_pieces(examples, tokenizer)):
        is_cut.append(any(len(word) > room for word in whole))
        pieces = [word[:room] for word in whole]
        windows = windows_of([*map(len, pieces)], room, reading.stride)
        for window, owned in zip(windows, owners(len(pieces), windows), strict=True):
            rows.append(_Window.of(pieces, window, owned, before))
            example_of.append(at)
    target = None
    if known:
        target = [
            [*row.target(examples[at].label or (), reading), *[IGNORE] * len(after)]
            for row, at in zip(rows, example_of, strict=True)
        ]
    return EncodedWords(
        examples,
        [row.tokens + after for row in rows],
        tokenizer.pad,
        [row.read_at(reading) for row in rows],
        target,
        example_of=example_of,
        is_cut=is_cut,
    )


def _numbered(rows: Sequence[Sequence[int]], read_at: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the number of each word at the position where it is read, `IGNORE` elsewhere."""
    number, numbers = count(), list[list[int]]()
    for tokens, places in zip(rows, read_at, strict=True):
        row = [IGNORE] * len(tokens)
        for place in places:
            row[place] = next(number)
        numbers.append(row)
    return numbers


def windows_of(sizes: Sequence[int], room: int, stride: int | None) -> list[tuple[int, int]]:
    """Return windows of words: the first one of each, and the one after its last.

    Each ends behind the one before it.

    Args:
        sizes: The pieces of each word, from 1 to `room`.
        room: Most pieces of a window.
        stride: See `Reading`.
    """
    ends = [0, *accumulate(sizes)]
    windows, first = list[tuple[int, int]](), 0
    while True:
        past = bisect_right(ends, ends[first] + room) - 1
        windows.append((first, past))
        if past == len(sizes):
            return windows
        shared = (past - first) // 2 if stride is None else stride
        first = max(past - shared, bisect_left(ends, ends[past + 1] - room))


def owners(words: int, windows: Sequence[tuple[int, int]]) -> list[range]:
    """Return the words that belong to each window: those that stand furthest from its edges.

    Of two windows in which a word is as far from an edge it belongs to the first one.
    """
    # Halfway between the beginning of a window and the end of the one before, both are as far.
    bounds = [(past + first + 1) // 2 for (_, past), (first, _) in pairwise(windows)]
    return [range(*bound) for bound in pairwise([0, *bounds, words])]


def _pieces(
    examples: Sequence[TagExample], tokenizer: Tokenizer
) -> Iterator[tuple[TagExample, list[list[int]]]]:
    """Yield examples with the tokens of each word, those that it has in the whole text."""
    # As other libraries do: else the first word's would be others than in the middle of a text.
    prefix = " " if tokenizer.is_byte_level else ""
    for portion in in_portions(examples):
        texts = [prefix + " ".join(example.words) for example in portion]
        for example, text, (tokens, places) in zip(
            portion, texts, tokenizer.encode_with_offsets(texts), strict=True
        ):
            yield example, _by_word(example.words, len(text), tokens, places, tokenizer.unk)


def _by_word(
    words: Sequence[str],
    length: int,
    tokens: Sequence[int],
    places: Sequence[tuple[int, int]],
    unknown: int,
) -> list[list[int]]:
    begins = list(accumulate((len(word) + 1 for word in words), initial=0))
    shift = length - max(0, begins[-1] - 1)
    pieces: list[list[int]] = [[] for _ in words]
    for token, (start, _) in zip(tokens, places, strict=True):
        pieces[min(bisect_right(begins, max(0, start - shift)), len(words)) - 1].append(token)
    return [word or [unknown] for word in pieces]
