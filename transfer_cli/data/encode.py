"""Text to tokens: lines, each with a token behind it, or whole documents.

A document may be longer than memory, so it is encoded in pieces. It is cut where the tokens of both
sides are those of the whole, which is tried with the letters around the place: a tokenizer that
joins line breaks, or puts a space before a text, is seen by that.
"""

import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transfer_cli.data.documents import TextSplit
from transfer_cli.data.readers import LastLine, LinePart
from transfer_cli.data.tokenizer import Tokenizer

LINE_END = "\n"

_BATCH_CHARACTERS = 1_000_000

_MAX_TABLE_TOKENS = 500_000
"""Tokens in the table of words, which takes some 40 MiB.

Twenty megabytes of text fill it. A larger one saves little time: most new words are rare, and the
frequent ones soon come back.
"""

_MIN_PIECE = 2**14
"""Characters that a piece has at least."""

_MAX_PIECE = 2**20
"""A text without a place to cut it is cut after so many, wherever that is."""

_CONTEXT = 100
"""Characters on either side of a place that it is tried with."""

_MAX_TRIES = 50

_CUTTING_PLACE = re.compile(r"(?<=\S\n)(?=\S)|(?<=\S)(?= \S)|(?<=[^\w\s])(?=\w)")
"""After a line, before a word, after a mark: where most tokenizers begin anew."""


class TextEncoder:
    """Text to tokens; of lines with `sep` after each, a word is encoded when it first occurs.

    To look a word up is many times faster than to encode it. The table is emptied when it gets
    large, so that memory stays bounded.

    Args:
        threads: How many work at once, together with this one.
    """

    def __init__(self, tokenizer: Tokenizer, threads: int) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        self._line_end = {LINE_END: array("I", [tokenizer.sep]).tobytes()}
        self._table = dict(self._line_end)
        self._num_tokens = 0

    def encode_split(self, split: TextSplit) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
        """Yield batches of lines with their tokens.

        One thread looks words up. With more, the library's threads encode one batch while Python
        looks up the words of the next ones: neither alone keeps all cores busy.
        """
        if split.rule != "end":
            yield from DocumentEncoder(split, self._tokenizer, _BATCH_CHARACTERS).encode_documents()
            return
        lines = split.lines()
        if self._threads == 1:
            # Of a batch that one thread encodes: to gain by many lines there need not be so many.
            alone_characters = 250_000
            for batch in _batches(lines, alone_characters):
                yield batch, self._look_up(batch)
            return
        batches = _batches(lines, _BATCH_CHARACTERS)
        with ThreadPoolExecutor(1) as beside:
            for batch in batches:
                tokens = beside.submit(_encode_whole_lines, batch, self._tokenizer)
                later = []
                while not tokens.done() and (following := next(batches, None)) is not None:
                    later.append((following, self._look_up(following)))
                yield batch, tokens.result()
                yield from later

    def _look_up(self, lines: Sequence[str]) -> npt.NDArray[np.uint32]:
        if self._num_tokens > _MAX_TABLE_TOKENS:
            self._table, self._num_tokens = dict(self._line_end), 0
        units: list[str] = []
        for line in lines:
            units += self._tokenizer.units(line)
            if not isinstance(line, LinePart):
                units.append(LINE_END)
        new = list(set(units).difference(self._table))
        rows = self._tokenizer.encode_batch(new)
        self._num_tokens += sum(map(len, rows))
        self._table.update(zip(new, (array("I", row).tobytes() for row in rows), strict=True))
        return np.frombuffer(b"".join(map(self._table.__getitem__, units)), np.uint32)


def _batches(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """Group lines into lists of about so many characters."""
    batch: list[str] = []
    characters = 0
    for line in lines:
        batch.append(line)
        characters += len(line) + 1
        if characters >= most:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encode_whole_lines(lines: Sequence[str], tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    ends = ([] if isinstance(line, LinePart) else [tokenizer.sep] for line in lines)
    rows = itertools.chain.from_iterable(zip(tokenizer.encode_batch(lines), ends, strict=True))
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64)


@dataclass
class _Passage:
    """A text that is encoded at once, with as much of what stands before it as matters."""

    before: str
    text: str
    after: tuple[int, ...] = ()


class DocumentEncoder:
    """Lines to the tokens of documents, each with the token that ends a text behind it."""

    def __init__(self, split: TextSplit, tokenizer: Tokenizer, most: int) -> None:
        self._split, self._tokenizer, self._most = split, tokenizer, most
        start = tokenizer.document_start
        self._between = (tokenizer.sep, *(() if start == tokenizer.sep else (start,)))
        self._before, self._text = "", ""

    def encode_documents(self) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
        """Yield batches of lines, and the tokens that have become certain with them."""
        batch: list[str] = []
        pieces: list[_Passage] = []
        characters, glue = 0, ""
        for number, (line, begins) in enumerate(self._split.marked_lines()):
            if begins and number:
                pieces.append(self._take_rest(self._between))
            self._text += line if begins or self._split.rule == "keep" else glue + line
            glue = "" if isinstance(line, LinePart) else " "
            if self._split.rule == "keep" and not isinstance(line, LinePart | LastLine):
                self._text += "\n"
            pieces += self._cut_passages()
            batch.append(line)
            characters += len(line) + 1
            if characters >= self._most:
                yield batch, self._tokens(pieces)
                batch, pieces, characters = [], [], 0
        if batch or self._text:
            yield batch, self._tokens([*pieces, self._take_rest((self._tokenizer.sep,))])

    def _take_rest(self, after: tuple[int, ...]) -> _Passage:
        piece = _Passage(self._before, self._text, after)
        self._before = self._text = ""
        return piece

    def _cut_passages(self) -> Iterator[_Passage]:
        """Yield what can be encoded of the text, as long as enough is left behind it."""
        while len(self._text) >= 2 * _MIN_PIECE:
            place = self._cutting_place()
            if place is None:
                return
            yield _Passage(self._before, self._text[:place])
            self._before = self._text[max(0, place - _CONTEXT) : place]
            self._text = self._text[place:]

    def _cutting_place(self) -> int | None:
        """Return where the text can be cut; None: nowhere so far."""
        places = _CUTTING_PLACE.finditer(self._text, _MIN_PIECE, len(self._text) - _CONTEXT)
        for match in itertools.islice(places, _MAX_TRIES):
            place = match.start()
            before = self._text[place - _CONTEXT : place]
            alone, whole = self._tokenizer.encode_batch(
                [before, before + self._text[place : place + _CONTEXT]]
            )
            if whole[: len(alone)] == alone:
                return place
        return _MAX_PIECE if len(self._text) > 2 * _MAX_PIECE else None

    def _tokens(self, pieces: list[_Passage]) -> npt.NDArray[np.int64]:
        encode = self._tokenizer.encode_batch
        skipped = map(len, encode([piece.before for piece in pieces]))
        rows = encode([piece.before + piece.text for piece in pieces])
        tokens: list[int] = []
        for row, skip, piece in zip(rows, skipped, pieces, strict=True):
            tokens += [*row[skip:], *piece.after]
        return np.array(tokens, np.int64)
