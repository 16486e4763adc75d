"""Text to tokens: encoded once, a shard at a time, and kept in the cache.

Nothing here imports torch, so that a process that does nothing but encode starts at once.
"""

import itertools
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from transfer_cli.data.documents import DocumentEncoder
from transfer_cli.data.encoded_text import META, TOKENS, StoredTokens
from transfer_cli.data.text_lines import LinePart
from transfer_cli.data.text_split import TextSplit
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import TokenizerRecipe
from transfer_cli.errors import DataError, RunError
from transfer_cli.progress import More, progress
from transfer_cli.runs.atomic import as_json
from transfer_cli.runs.cache import digest, is_there, kept, made_unless_held, new_entry, sound
from transfer_cli.runs.directory import TOKENIZER

log = logging.getLogger(__name__)

T = TypeVar("T")

# Part of every key. Raise it when the same text and tokenizer give another entry.
_FORMAT = 1

_BATCH_CHARACTERS = 1_000_000
_ALONE_CHARACTERS = 250_000
"""Of a batch that one thread encodes: to gain by many lines there need not be so many."""

_MAX_TABLE_TOKENS = 500_000
"""Tokens in the table of words, which takes some 40 MiB.

Twenty megabytes of text fill it. A larger one saves little time: most new words are rare, and the
frequent ones soon come back.
"""
_LINE_END = "\n"
_PORTION = 2**22
"""Tokens that are looked through at a time for the ends of lines."""

_STARTS = "starts.bin"


@dataclass(frozen=True)
class Shard:
    """A text that is encoded in one piece, and the entries of the cache that are made of it.

    Args:
        split: The text.
        tokenizer: What encodes it.
        cache: The folder of the cache.
    """

    split: TextSplit
    tokenizer: Tokenizer
    cache: Path

    @cached_property
    def key(self) -> dict[str, Any]:
        """What decides the tokens."""
        return {
            "text": self.split.fingerprint,
            "end_of_line": True,  # counts as a word, as in published perplexities
            "tokenizer": self.tokenizer.hash,
            "format": _FORMAT,
            **self._rule,
        }

    @property
    def _rule(self) -> dict[str, str]:
        """What else decides them, where lines do not end with the separator."""
        split = self.split
        return {} if split.rule == "end" else {"lines": split.rule, "begins": split.begins_by}

    @cached_property
    def entry(self) -> Path:
        """The folder of the tokens."""
        return self.cache / "encoded" / digest(self.key)

    @cached_property
    def documents(self) -> Path:
        """The folder of the places where documents begin."""
        return self.cache / "documents" / digest(self.key | {"begins": self.split.begins_by})

    def stored(self) -> StoredTokens | None:
        """Return its tokens, if all that is asked of it is in the cache, and sound."""
        if self.split.apart and not is_there(self.documents):
            return None
        return sound(self.entry, StoredTokens.read)

    def kept(self, encoder: "TextEncoder", more: More) -> StoredTokens:
        """Return its tokens, which are made now if they are missing or damaged.

        Args:
            encoder: That of the tokenizer.
            more: Is told how many bytes more are done.
        """
        found = _cached(self.entry, StoredTokens.read, lambda: self._make(encoder, more))
        if self.split.apart:
            self.starts(found)
        return found

    def kept_if_free(self, encoder: "TextEncoder", more: More) -> None:
        """Make what is missing of it, unless another process is at it; else as `kept`."""
        with _cache_errors(self.entry):
            made_unless_held(self.entry, lambda: self._make(encoder, more))
            if self.split.apart and is_there(self.entry):
                made_unless_held(
                    self.documents, lambda: self._make_starts(StoredTokens.read(self.entry))
                )

    def starts(self, tokens: StoredTokens) -> npt.NDArray[np.int64]:
        """Return where documents begin, as `EncodedText` says."""
        return _cached(self.documents, _read_starts, lambda: self._make_starts(tokens))

    def _make(self, encoder: "TextEncoder", more: More) -> StoredTokens:
        with new_entry(self.entry) as unfinished:
            dtype = np.dtype(np.uint16 if self.tokenizer.size <= 2**16 else np.uint32)
            path = unfinished / TOKENS
            counts = _write_tokens(path, dtype, self, encoder, more)
            self.split.check_unchanged()  # or the entry would be that of another text
            split = self.split.name
            meta = {"split": split, "key": self.key, "dtype": dtype.name, "counts": counts}
            # Not `write_json`, which has an error of its own for a full disk.
            (unfinished / META).write_text(as_json(meta), encoding="utf-8")
        return StoredTokens.read(self.entry)

    def _make_starts(self, tokens: StoredTokens) -> npt.NDArray[np.int64]:
        if self.split.rule == "end":
            begins_N = np.fromiter((begins for _, begins in self.split.marked_lines()), np.bool_)
            self.split.check_unchanged()
            found = _starts(tokens.mapped(), begins_N, self.tokenizer.sep)
        else:
            found = _document_starts(tokens.mapped(), self.tokenizer)
        with new_entry(self.documents) as unfinished:
            found.tofile(unfinished / _STARTS)
        return found


def _read_starts(entry: Path) -> npt.NDArray[np.int64]:
    return np.fromfile(entry / _STARTS, np.int64)


def _starts(
    tokens: npt.NDArray[Any], begins_N: npt.NDArray[np.bool_], sep: int
) -> npt.NDArray[np.int64]:
    """Return where documents begin, given whether one does with each line."""
    found, line = [], 0
    for first in range(0, len(tokens), _PORTION):
        ends = first + np.flatnonzero(tokens[first : first + _PORTION] == sep)
        # The end of the line before is what the first token is predicted from.
        here = begins_N[line : line + len(ends)]
        found.append(ends[: len(here)][here])
        line += len(ends)
    if line != len(begins_N) + 1:
        raise DataError(
            f"data.documents=separate, data.pairs: the text has {len(begins_N):,} lines, and the "
            f"token that ends them, number {sep}, stands {line - 1:,} times behind the first; "
            "with this tokenizer lines cannot be told apart. Leave both out."
        )
    return np.concatenate(found)


def _document_starts(tokens: npt.NDArray[Any], tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Return where documents begin: at the token before the first, which may be the last one's."""
    ends = [
        first + np.flatnonzero(tokens[first : first + _PORTION] == tokenizer.sep)
        for first in range(0, len(tokens), _PORTION)
    ]
    if tokenizer.opens == tokenizer.sep:
        return np.concatenate(ends)[:-1]
    return np.append(0, np.concatenate(ends)[:-1] + 1)


def cached_tokenizer(recipe: TokenizerRecipe, split: TextSplit, cache_dir: Path) -> Tokenizer:
    """Return the recipe's tokenizer, trained on `split` once."""
    key = {"recipe": recipe.key(), "text": split.fingerprint, "format": _FORMAT}
    entry = cache_dir / "tokenizers" / digest(key)

    def make() -> Tokenizer:
        log.info("Making the tokenizer (%s)", recipe.key())
        tokenizer = recipe.make(lambda: _counted(split))
        with new_entry(entry) as partial:
            tokenizer.save(partial / TOKENIZER)
        return tokenizer

    return _cached(entry, lambda entry: Tokenizer.load(entry / TOKENIZER), make)


def _counted(split: TextSplit) -> Iterator[str]:
    """Yield the lines of a text, and show how far it has been read."""
    with progress("counting words", split.about_bytes, "B") as more:
        for line in split.lines():
            more(len(line if line.isascii() else line.encode("utf-8", "replace")) + 1)
            yield line
    split.check_unchanged()


def _cached(entry: Path, read: Callable[[Path], T], make: Callable[[], T]) -> T:
    """Return an entry of the cache, made now if it does not exist or is damaged."""
    with _cache_errors(entry):
        return kept(entry, read, make)


@contextmanager
def _cache_errors(entry: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"Cannot write the cache in {entry.parent}: {error.strerror or error}. Free some space "
            "there, or set `data_dir` to a folder that you can write to."
        ) from error


def _write_tokens(
    path: Path,
    dtype: np.dtype[Any],
    shard: Shard,
    encoder: "TextEncoder",
    more: More,
) -> dict[str, int]:
    """Write the tokens of a text to `path`, a batch of lines at a time, and return counts."""
    counts = Counter(num_tokens=1)
    split, tokenizer = shard.split, shard.tokenizer
    first = tokenizer.sep if split.rule == "end" else tokenizer.opens
    with path.open("wb") as file:
        file.write(np.array([first], dtype=dtype).tobytes())
        for batch, tokens in encoder.encoded(split):
            file.write(tokens.astype(dtype).tobytes())
            text = _LINE_END.join(batch)
            num_lines = sum(not isinstance(line, LinePart) for line in batch)
            # Between parts of a line there is no line break.
            batch_bytes = len(text if text.isascii() else text.encode("utf-8", "replace"))
            batch_bytes += 1 + num_lines - len(batch)
            counts.update(
                num_tokens=len(tokens),
                num_words=len(text.split()) + num_lines,
                num_bytes=batch_bytes,
                num_lines=num_lines,
                num_unknown=int(np.count_nonzero(tokens == tokenizer.unk)),
            )
            more(batch_bytes)
    if counts["num_tokens"] == 1:
        raise DataError(f"The {split.name} text is empty: there is nothing to learn or measure.")
    return counts


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


def _whole_lines(lines: Sequence[str], tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    ends = ([] if isinstance(line, LinePart) else [tokenizer.sep] for line in lines)
    rows = itertools.chain.from_iterable(zip(tokenizer.encode_batch(lines), ends, strict=True))
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64)


class TextEncoder:
    """Text to tokens; of lines with `sep` after each, a word is encoded when it first occurs.

    To look a word up is many times faster than to encode it. The table is emptied when it gets
    large, so that memory stays bounded.

    Args:
        tokenizer: What encodes words, and lines.
        threads: How many work at once, together with this one.
    """

    def __init__(self, tokenizer: Tokenizer, threads: int) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        self._line_end = {_LINE_END: array("I", [tokenizer.sep]).tobytes()}
        self._table = dict(self._line_end)
        self._num_tokens = 0

    def encoded(self, split: TextSplit) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
        """Yield batches of lines with their tokens.

        One thread looks words up. With more, the library's threads encode one batch while Python
        looks up the words of the next ones: neither alone keeps all cores busy.
        """
        if split.rule != "end":
            yield from DocumentEncoder(split, self._tokenizer, _BATCH_CHARACTERS).encoded()
            return
        lines = split.lines()
        if self._threads == 1:
            for batch in _batches(lines, _ALONE_CHARACTERS):
                yield batch, self._looked_up(batch)
            return
        batches = _batches(lines, _BATCH_CHARACTERS)
        with ThreadPoolExecutor(1) as beside:
            for batch in batches:
                tokens = beside.submit(_whole_lines, batch, self._tokenizer)
                later = []
                while not tokens.done() and (following := next(batches, None)) is not None:
                    later.append((following, self._looked_up(following)))
                yield batch, tokens.result()
                yield from later

    def _looked_up(self, lines: Sequence[str]) -> npt.NDArray[np.uint32]:
        if self._num_tokens > _MAX_TABLE_TOKENS:
            self._table, self._num_tokens = dict(self._line_end), 0
        units: list[str] = []
        for line in lines:
            units += self._tokenizer.units(line)
            if not isinstance(line, LinePart):
                units.append(_LINE_END)
        new = list(set(units).difference(self._table))
        rows = self._tokenizer.encode_batch(new)
        self._num_tokens += sum(map(len, rows))
        self._table.update(zip(new, (array("I", row).tobytes() for row in rows), strict=True))
        return np.frombuffer(b"".join(map(self._table.__getitem__, units)), np.uint32)
