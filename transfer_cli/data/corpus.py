"""Unlabelled text as blocks of tokens: encoded once, cached, mapped into memory.

Legend: B blocks, T positions.
"""

import itertools
import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.split import Whole
from transfer_cli.data.tokenizer import Tokenizer, TokenizerRecipe
from transfer_cli.errors import DataError, RunError
from transfer_cli.progress import progress
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.cache import digest, kept, new_entry
from transfer_cli.runs.directory import TOKENIZER
from transfer_cli.safe_files import read_json

if TYPE_CHECKING:
    from transfer_cli.data.text import TextSplit

log = logging.getLogger(__name__)

T = TypeVar("T")

# Part of every key. Raise it when the same text and tokenizer give another entry.
_FORMAT = 1

_BATCH_CHARACTERS = 1_000_000
_MAX_TABLE_TOKENS = 500_000
"""Tokens in the table of words, which takes some 40 MiB.

Twenty megabytes of text fill it. A larger one saves little time: most new words are rare, and the
frequent ones soon come back.
"""
_LINE_END = "\n"
_DTYPES = {name: np.dtype(name) for name in ("uint16", "uint32")}


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text as one stream of tokens.

    Attributes:
        tokens: Memory-mapped. `sep` comes first, so that every token of the text is a target, and
            ends each line.
        num_words: Space-separated words, and one for the end of every line.
        num_bytes: UTF-8 bytes, with one for the end of every line; see `TextSplit.size_bytes`.
        num_lines: Lines, with the empty ones.
        num_unknown: Unknown tokens.
        path: Its folder in the cache.
        part_of: What it is a part of; None: it is complete.
        starts: Where documents begin, in tokens: at the end of the line before. None: they are not
            told apart.
    """

    tokens: npt.NDArray[Any]
    num_words: int
    num_bytes: int
    num_lines: int
    num_unknown: int
    path: Path
    part_of: Whole | None = None
    starts: npt.NDArray[np.int64] | None = None


def encode_text(split: "TextSplit", tokenizer: Tokenizer, cache_dir: Path) -> EncodedText:
    """Return the tokens of a text, from the cache if they are there.

    Raises:
        DataError: The text has no lines.
        RunError: The cache cannot be written.
    """
    key = {
        "text": split.fingerprint,
        "end_of_line": True,  # counts as a word, as in published perplexities
        "tokenizer": tokenizer.hash,
        "format": _FORMAT,
    }
    entry = cache_dir / "encoded" / digest(key)

    def make() -> EncodedText:
        with new_entry(entry) as partial:
            dtype = np.dtype(np.uint16 if tokenizer.size <= 2**16 else np.uint32)
            counts = _write_tokens(partial / "tokens.bin", dtype, split, tokenizer)
            meta = {"split": split.name, "key": key, "dtype": dtype.name, "counts": counts}
            write_json(partial / "meta.json", meta)
        return _open_entry(entry)

    found = _cached(entry, _open_entry, make)
    num_bytes = found.num_bytes if split.size_bytes is None else split.size_bytes
    starts = None if split.begins is None else _starts(found, split.begins(), tokenizer.sep)
    return replace(found, num_bytes=num_bytes, part_of=split.part_of, starts=starts)


def _starts(text: EncodedText, begins: Iterator[bool], sep: int) -> npt.NDArray[np.int64]:
    """Return where documents begin, given whether one does with each line."""
    ends = np.flatnonzero(text.tokens == sep)
    begins_N = np.fromiter(begins, np.bool_)
    if len(ends) != len(begins_N) + 1:
        raise DataError(
            f"data.documents=separate, data.pairs: the text has {len(begins_N):,} lines, and the "
            f"token that ends them, number {sep}, stands {len(ends) - 1:,} times behind the first; "
            "with this tokenizer lines cannot be told apart. Leave both out."
        )
    # The end of the line before is what the first token is predicted from.
    return ends[:-1][begins_N]


def cached_tokenizer(recipe: TokenizerRecipe, split: "TextSplit", cache_dir: Path) -> Tokenizer:
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


def _counted(split: "TextSplit") -> Iterator[str]:
    """Yield the lines of a text, and show how far it has been read."""
    with progress("counting words", split.about_bytes, "B") as more:
        for line in split.lines():
            more(len(line if line.isascii() else line.encode("utf-8", "replace")) + 1)
            yield line


def _cached(entry: Path, read: Callable[[Path], T], make: Callable[[], T]) -> T:
    """Return an entry of the cache, made now if it does not exist or is damaged."""
    try:
        return kept(entry, read, make)
    except OSError as error:
        raise RunError(
            f"Cannot write the cache in {entry.parent}: {error.strerror or error}. Free some space "
            "there, or set `data_dir` to a folder that you can write to."
        ) from error


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
    tokens: npt.NDArray[Any],
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


def _open_entry(entry: Path) -> EncodedText:
    meta = read_json(entry / "meta.json")
    tokens = np.memmap(entry / "tokens.bin", dtype=_DTYPES[meta["dtype"]], mode="r")
    counts = {name: count for name, count in meta["counts"].items() if name != "num_tokens"}
    return EncodedText(tokens, **counts, path=entry)


def _write_tokens(
    path: Path, dtype: np.dtype[Any], split: "TextSplit", tokenizer: Tokenizer
) -> dict[str, int]:
    """Write the tokens of a text to `path`, a batch of lines at a time, and return counts."""
    log.info("Encoding the %s text", split.name)
    begin = time.perf_counter()
    counts = Counter(num_tokens=1)
    with (
        path.open("wb") as file,
        progress(f"encoding the {split.name} text", split.about_bytes, "B") as more,
    ):
        file.write(np.array([tokenizer.sep], dtype=dtype).tobytes())
        for batch, tokens in _encoded(_batches(split.lines()), tokenizer):
            file.write(tokens.astype(dtype).tobytes())
            text = _LINE_END.join(batch)
            batch_bytes = len(text.encode("utf-8", "replace")) + 1
            counts.update(
                num_tokens=len(tokens),
                num_words=len(text.split()) + len(batch),
                num_bytes=batch_bytes,
                num_lines=len(batch),
                num_unknown=int(np.count_nonzero(tokens == tokenizer.unk)),
            )
            more(batch_bytes)
    if not counts["num_lines"]:
        raise DataError(f"The {split.name} text is empty: there is nothing to learn or measure.")
    seconds = time.perf_counter() - begin
    log.info(
        "Encoded the %s text: %s tokens in %.1f s (%.1f MB/s)",
        split.name,
        f"{counts['num_tokens'] - 1:,}",
        seconds,
        counts["num_bytes"] / 1e6 / max(seconds, 1e-9),
    )
    return counts


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Group lines into lists of about `_BATCH_CHARACTERS`."""
    batch: list[str] = []
    characters = 0
    for line in lines:
        batch.append(line)
        characters += len(line) + 1
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encoded(
    batches: Iterator[list[str]], tokenizer: Tokenizer
) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
    """Yield batches of lines with their tokens, `sep` after each line.

    The library's threads encode one batch while Python looks up the words of the next ones: neither
    alone keeps all cores busy.
    """
    encoder = _Encoder(tokenizer)
    with ThreadPoolExecutor(1) as beside:
        for batch in batches:
            tokens = beside.submit(_whole_lines, batch, tokenizer)
            later = []
            while not tokens.done() and (following := next(batches, None)) is not None:
                later.append((following, encoder(following)))
            yield batch, tokens.result()
            yield from later


def _whole_lines(lines: Sequence[str], tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    ends = [tokenizer.sep]
    rows = itertools.chain.from_iterable((row, ends) for row in tokenizer.encode_batch(lines))
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64)


class _Encoder:
    """Lines to tokens, `sep` after each; each word is encoded when it first occurs.

    To look a word up is many times faster than to encode it. The table is emptied when it gets
    large, so that memory stays bounded.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._line_end = {_LINE_END: array("I", [tokenizer.sep]).tobytes()}
        self._table = dict(self._line_end)
        self._num_tokens = 0

    def __call__(self, lines: Sequence[str]) -> npt.NDArray[np.uint32]:
        if self._num_tokens > _MAX_TABLE_TOKENS:
            self._table, self._num_tokens = dict(self._line_end), 0
        units: list[str] = []
        for line in lines:
            units += self._tokenizer.units(line)
            units.append(_LINE_END)
        new = list(set(units) - self._table.keys())
        rows = self._tokenizer.encode_batch(new)
        self._num_tokens += sum(map(len, rows))
        self._table.update(zip(new, (array("I", row).tobytes() for row in rows), strict=True))
        return np.frombuffer(b"".join(map(self._table.__getitem__, units)), np.uint32)
