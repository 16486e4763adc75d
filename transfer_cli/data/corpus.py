"""Unlabelled text as blocks of tokens: encoded once, kept in a cache, mapped into memory.

Legend: B blocks, T positions.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.tokenizer import Tokenizer, TokenizerRecipe
from transfer_cli.errors import DataError, RunError
from transfer_cli.runs.atomic import flush, replaced_folder, write_json
from transfer_cli.runs.cache import digest, kept
from transfer_cli.safe_files import read_json

if TYPE_CHECKING:
    from transfer_cli.data.text import TextSplit

log = logging.getLogger(__name__)

T = TypeVar("T")

# Part of every key. Raise it when the same text and tokenizer give another entry.
_FORMAT = 1

_BATCH_CHARACTERS = 1_000_000
_MAX_TABLE_TOKENS = 500_000
"""Tokens of the words that are known by heart, which take some 40 MiB with the words themselves.

Twenty megabytes of text have so many. To know more words saves little time: most new ones are
rare, and the frequent ones are soon learnt again.
"""
_LINE_END = "\n"
_DTYPES = {name: np.dtype(name) for name in ("uint16", "uint32")}


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text as one stream of tokens.

    Attributes:
        tokens: Memory-mapped. A `sep` stands in front, so that every token of the text is a target;
            every line ends with one.
        num_words: Space-separated words, and one for every line where the end of a line counts.
        num_bytes: UTF-8 bytes, one for every line's end included.
        num_lines: Lines, empty ones too.
        num_unknown: Unknown tokens.
        path: The folder of the cache that holds it.
    """

    tokens: npt.NDArray[Any]
    num_words: int
    num_bytes: int
    num_lines: int
    num_unknown: int
    path: Path


def encode_text(split: "TextSplit", tokenizer: Tokenizer, cache_dir: Path) -> EncodedText:
    """Return the tokens of a text, from the cache where they are known.

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
        with replaced_folder(entry) as partial:
            dtype = np.dtype(np.uint16 if tokenizer.size <= 2**16 else np.uint32)
            counts = _write_tokens(partial / "tokens.bin", dtype, split, tokenizer)
            meta = {"split": split.name, "key": key, "dtype": dtype.name, "counts": counts}
            write_json(partial / "meta.json", meta)
        return _open_entry(entry)

    return _cached(entry, _open_entry, make)


def cached_tokenizer(recipe: TokenizerRecipe, split: "TextSplit", cache_dir: Path) -> Tokenizer:
    """Return the recipe's tokenizer, trained on `split` once."""
    key = {"recipe": recipe.key(), "text": split.fingerprint, "format": _FORMAT}
    entry = cache_dir / "tokenizers" / f"{digest(key)}.json"

    def make() -> Tokenizer:
        log.info("Making the tokenizer (%s)", recipe.key())
        tokenizer = recipe.make(split.lines)
        tokenizer.save(entry)
        return tokenizer

    return _cached(entry, Tokenizer.load, make)


def _cached(entry: Path, read: Callable[[Path], T], make: Callable[[], T]) -> T:
    """Return an entry of the cache, made now if it does not exist or cannot be read."""

    def read_or_none(entry: Path) -> T | None:
        try:
            return read(entry)
        except (DataError, OSError, ValueError, KeyError, TypeError):
            return None

    try:
        return kept(entry, read_or_none, make)
    except OSError as error:
        raise RunError(
            f"Cannot write the cache in {entry.parent}: {error.strerror or error}. Free some space "
            "there, or set `data_dir` to a folder that you can write to."
        ) from error


class TextBlocks:
    """A text cut into blocks of `length` inputs, each with the tokens after them as targets.

    Neighbouring blocks overlap by one token: every token but the first is a target exactly once.
    The last block may be short.
    """

    def __init__(self, text: EncodedText, length: int, tokenizer_pad: int) -> None:
        if length < 1:
            raise ValueError(f"a block needs at least one token, got length {length}")
        self.text = text
        self.length = length
        self._pad = tokenizer_pad

    @property
    def num_targets(self) -> int:
        """How many tokens are predicted: all but the first."""
        return len(self.text.tokens) - 1

    def __len__(self) -> int:
        """Return the number of blocks."""
        return -(-self.num_targets // self.length)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return `tokens`, `mask`, `next_tokens` and `index` of the blocks `indices`."""
        index_B = np.asarray(indices, dtype=np.int64)
        if index_B.size and not 0 <= index_B.min() <= index_B.max() < len(self):
            raise IndexError(f"blocks {indices} of {len(self)}")
        starts_B = index_B * self.length
        lengths_B = np.minimum(self.length, self.num_targets - starts_B)
        tokens_BT, mask_BT = gather(self.text.tokens, starts_B, lengths_B, self._pad)
        next_BT, _ = gather(self.text.tokens, starts_B + 1, lengths_B, IGNORE)
        return {
            "tokens": torch.from_numpy(tokens_BT),
            "mask": torch.from_numpy(mask_BT),
            "next_tokens": torch.from_numpy(next_BT),
            "index": torch.from_numpy(index_B.copy()),
        }


def gather(
    tokens: npt.NDArray[Any],
    starts_B: npt.NDArray[np.int64],
    lengths_B: npt.NDArray[np.int64],
    filler: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the pieces of `tokens` that start at `starts_B` as rows, filled up on the right.

    Returns:
        The rows, `[B, T]` with T the longest length, and a mask that is True on what is real.
    """
    offsets_T = np.arange(lengths_B.max(initial=0))
    mask_BT = offsets_T < lengths_B[:, None]
    positions_BT = np.where(mask_BT, starts_B[:, None] + offsets_T, 0)
    rows_BT = np.where(mask_BT, tokens[positions_BT].astype(np.int64), filler)
    return rows_BT, mask_BT


def _open_entry(entry: Path) -> EncodedText:
    meta = read_json(entry / "meta.json")
    counts = dict(meta["counts"])
    dtype = _DTYPES[meta["dtype"]]
    path = entry / "tokens.bin"
    is_sound = all(isinstance(count, int) and count >= 0 for count in counts.values())
    if not is_sound or path.stat().st_size != counts.pop("num_tokens") * dtype.itemsize:
        raise ValueError("its tokens are not as many as it says")
    return EncodedText(np.memmap(path, dtype=dtype, mode="r"), **counts, path=entry)


def _write_tokens(
    path: Path, dtype: np.dtype[Any], split: "TextSplit", tokenizer: Tokenizer
) -> dict[str, int]:
    """Write the tokens of a text to `path`, a batch of lines at a time, and count."""
    log.info("Encoding the %s text", split.name)
    begin = time.perf_counter()
    words = size_bytes = lines = unknown = 0
    written = 1
    with (
        path.open("wb") as file,
        tqdm(desc="encoding", unit="B", unit_scale=True, disable=None, leave=False) as bar,
    ):
        file.write(np.array([tokenizer.sep], dtype=dtype).tobytes())
        for batch, tokens in _encoded(_batches(split.lines()), tokenizer):
            file.write(tokens.astype(dtype).tobytes())
            text = _LINE_END.join(batch)
            batch_bytes = len(text.encode("utf-8", "replace")) + 1
            words += len(text.split())
            size_bytes += batch_bytes
            lines += len(batch)
            unknown += int(np.count_nonzero(tokens == tokenizer.unk))
            written += len(tokens)
            bar.update(batch_bytes)
    flush(path)
    if lines == 0:
        raise DataError(f"The {split.name} text is empty: there is nothing to learn or measure.")
    seconds = time.perf_counter() - begin
    log.info(
        "Encoded the %s text: %s tokens in %.1f s (%.1f MB/s)",
        split.name,
        f"{written - 1:,}",
        seconds,
        size_bytes / 1e6 / max(seconds, 1e-9),
    )
    return {
        "num_tokens": written,
        "num_words": words + lines,
        "num_bytes": size_bytes,
        "num_lines": lines,
        "num_unknown": unknown,
    }


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
) -> Iterator[tuple[list[str], npt.NDArray[np.int64]]]:
    """Yield batches of lines with their tokens, `sep` after each line.

    While the library's own threads encode one batch, Python looks up the words of the next ones:
    neither alone keeps all cores busy.
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
    """Lines to tokens, `sep` after each. Encodes a word when it comes for the first time.

    Looking a word up is many times faster than encoding it. The table is emptied when it gets
    large, so that memory stays bounded.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._forget()

    def __call__(self, lines: Sequence[str]) -> npt.NDArray[np.int64]:
        if len(self._tokens) > _MAX_TABLE_TOKENS:
            self._forget()
        units: list[str] = []
        for line in lines:
            units += self._tokenizer.units(line)
            units.append(_LINE_END)
        self._learn(list(set(units) - self._numbers.keys()))
        which = np.fromiter(map(self._numbers.__getitem__, units), np.int64, len(units))
        lengths = self._lengths[which]
        ends = np.cumsum(lengths)
        # For each unit, the way from its place in the result to its place in the table.
        shift = self._starts[which] - (ends - lengths)
        found: npt.NDArray[np.int64] = self._tokens[np.arange(ends[-1]) + np.repeat(shift, lengths)]
        return found

    def _forget(self) -> None:
        self._numbers = {_LINE_END: 0}
        self._starts = np.zeros(1, dtype=np.int64)
        self._lengths = np.ones(1, dtype=np.int64)
        self._tokens = np.array([self._tokenizer.sep], dtype=np.int64)

    def _learn(self, units: list[str]) -> None:
        rows = self._tokenizer.encode_batch(units)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = itertools.chain.from_iterable(rows)
        tokens = np.fromiter(flat, np.int64, int(lengths.sum()))
        first = len(self._numbers)
        self._numbers.update(zip(units, range(first, first + len(units)), strict=True))
        starts = len(self._tokens) + np.cumsum(lengths) - lengths
        self._starts = np.concatenate((self._starts, starts))
        self._lengths = np.concatenate((self._lengths, lengths))
        self._tokens = np.concatenate((self._tokens, tokens))
