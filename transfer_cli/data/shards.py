"""Files of a text, each encoded once and alone, and kept in the cache: its shards.

Nothing here imports torch, so that a process that does nothing but encode starts at once. Nobody
hands out the work to such processes: each goes over all shards and makes those that are missing and
not being made, so that other runs, and other machines with the same cache, share it as well.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from transfer_cli.data.documents import TextSplit
from transfer_cli.data.encode import LINE_END, TextEncoder
from transfer_cli.data.readers import LinePart
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_file import load_tokenizer, save_tokenizer
from transfer_cli.data.tokenizer_recipes import TokenizerRecipe
from transfer_cli.errors import DataError, RunError, TransferError
from transfer_cli.progress import Advance, progress
from transfer_cli.runs.atomic import as_json
from transfer_cli.runs.cache import (
    clear_leftovers,
    digest,
    is_complete,
    load_or_make,
    make_unless_held,
    new_entry,
    read_if_sound,
)
from transfer_cli.runs.directory import TOKENIZER
from transfer_cli.runs.environment import available_cores
from transfer_cli.safe_files import read_json

log = logging.getLogger(__name__)

T = TypeVar("T")

LEAST_BYTES = 2**21
"""Of a process: fewer are encoded before another one has started."""

# Part of every key. Raise it when the same text and tokenizer give another entry.
_FORMAT = 1

_PORTION = 2**22
"""Tokens that are looked through at a time for the ends of lines."""

_TOKENS, _META, _STARTS = "tokens.bin", "meta.json", "starts.bin"
"""The files of an entry."""

_DTYPES = {name: np.dtype(name) for name in ("uint16", "uint32")}


@dataclass(frozen=True)
class StoredTokens:
    """An entry of the cache: the tokens of a shard, and counts as in `EncodedText`."""

    path: Path
    dtype: np.dtype[Any]
    counts: Mapping[str, int]

    @classmethod
    def read(cls, entry: Path) -> "StoredTokens":
        """Return the entry in a folder."""
        meta = read_json(entry / _META)
        return cls(entry, _DTYPES[meta["dtype"]], meta["counts"])

    def mapped(self) -> npt.NDArray[Any]:
        """Return the tokens, mapped into memory."""
        try:
            return np.memmap(self.path / _TOKENS, dtype=self.dtype, mode="r")
        except OSError as error:
            raise RunError(
                f"{self.path} in the cache cannot be read ({error.strerror or error}); start again"
            ) from error


@dataclass(frozen=True)
class Shard:
    """A text that is encoded in one piece, and the entries of the cache that are made of it."""

    split: TextSplit
    tokenizer: Tokenizer
    cache: Path

    @cached_property
    def key(self) -> dict[str, Any]:
        """What decides the tokens."""
        split, first = self.split, self.tokenizer.before_text
        key: dict[str, Any] = {
            "text": split.fingerprint,
            "end_of_line": True,  # counts as a word, as in published perplexities
            "tokenizer": self.tokenizer.hash,
            "format": _FORMAT,
        }
        if split.rule != "end":
            key |= {"lines": split.rule, "begins": split.begins_by}
            key |= {} if first is None else {"first": first}  # of a template, not in the hash
        return key

    @cached_property
    def entry(self) -> Path:
        """The folder of the tokens."""
        return self.cache / "encoded" / digest(self.key)

    @cached_property
    def documents(self) -> Path:
        """The folder of the places where documents begin."""
        return self.cache / "documents" / digest(self.key | {"begins": self.split.begins_by})

    def load_if_sound(self) -> StoredTokens | None:
        """Return its tokens, if all that is asked of it is in the cache, and sound."""
        if self.split.apart and not is_complete(self.documents):
            return None
        return read_if_sound(self.entry, StoredTokens.read)

    def load_or_encode(self, encoder: TextEncoder, more: Advance) -> StoredTokens:
        """Return its tokens, which are made now if they are missing or damaged."""
        tokens = _load_or_make(self.entry, StoredTokens.read, lambda: self._make(encoder, more))
        if self.split.apart:
            self.starts(tokens)
        return tokens

    def encode_if_free(self, encoder: TextEncoder, more: Advance) -> None:
        """Make what is missing of it, unless another process is at it; else as `load_or_encode`."""
        with _cache_errors(self.entry):
            make_unless_held(self.entry, lambda: self._make(encoder, more))
            if self.split.apart and is_complete(self.entry):
                make_unless_held(
                    self.documents, lambda: self._make_starts(StoredTokens.read(self.entry))
                )

    def starts(self, tokens: StoredTokens) -> npt.NDArray[np.int64]:
        """Return where documents begin, as `EncodedText` says."""
        return _load_or_make(
            self.documents,
            lambda entry: np.fromfile(entry / _STARTS, np.int64),
            lambda: self._make_starts(tokens),
        )

    def _make(self, encoder: TextEncoder, more: Advance) -> StoredTokens:
        with new_entry(self.entry) as unfinished:
            dtype = np.dtype(np.uint16 if self.tokenizer.size <= 2**16 else np.uint32)
            path = unfinished / _TOKENS
            counts = _write_tokens(path, dtype, self, encoder, more)
            self.split.check_unchanged()  # or the entry would be that of another text
            split = self.split.name
            meta = {"split": split, "key": self.key, "dtype": dtype.name, "counts": counts}
            # Not `write_json`, which has an error of its own for a full disk.
            (unfinished / _META).write_text(as_json(meta), encoding="utf-8")
        return StoredTokens.read(self.entry)

    def _make_starts(self, tokens: StoredTokens) -> npt.NDArray[np.int64]:
        if self.split.rule == "end":
            begins_N = np.fromiter(_line_begins(self.split), np.bool_)
            self.split.check_unchanged()
            starts = _starts_by_line(tokens.mapped(), begins_N, self.tokenizer.sep)
        else:
            starts = _starts_by_token(tokens.mapped(), self.tokenizer)
        with new_entry(self.documents) as unfinished:
            starts.tofile(unfinished / _STARTS)
        return starts


def _line_begins(split: TextSplit) -> Iterator[bool]:
    """Yield for each line that has an end whether a document begins with it, or its first part."""
    is_new = None
    for line, begins in split.marked_lines():
        is_new = begins if is_new is None else is_new
        if not isinstance(line, LinePart):
            yield is_new
            is_new = None


def _starts_by_line(
    tokens: npt.NDArray[Any], begins_N: npt.NDArray[np.bool_], sep: int
) -> npt.NDArray[np.int64]:
    """Return where documents begin, given whether one does with each line."""
    starts, line = [], 0
    for first in range(0, len(tokens), _PORTION):
        ends = first + np.flatnonzero(tokens[first : first + _PORTION] == sep)
        # The end of the line before is what the first token is predicted from.
        here = begins_N[line : line + len(ends)]
        starts.append(ends[: len(here)][here])
        line += len(ends)
    if line != len(begins_N) + 1:
        raise DataError(
            f"data.documents=separate, data.pairs: the text has {len(begins_N):,} lines, and the "
            f"token that ends them, number {sep}, stands {line - 1:,} times behind the first; "
            "with this tokenizer lines cannot be told apart. Leave both out."
        )
    return np.concatenate(starts)


def _starts_by_token(tokens: npt.NDArray[Any], tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Return where documents begin: at the token before the first, which may be the last one's."""
    ends = [
        first + np.flatnonzero(tokens[first : first + _PORTION] == tokenizer.sep)
        for first in range(0, len(tokens), _PORTION)
    ]
    if tokenizer.document_start == tokenizer.sep:
        return np.concatenate(ends)[:-1]
    return np.append(0, np.concatenate(ends)[:-1] + 1)


def cached_tokenizer(recipe: TokenizerRecipe, split: TextSplit, cache_dir: Path) -> Tokenizer:
    """Return the recipe's tokenizer, trained on `split` once."""
    key = {"recipe": recipe.key(), "text": split.fingerprint, "format": _FORMAT}
    entry = cache_dir / "tokenizers" / digest(key)

    def make() -> Tokenizer:
        log.info("Making the tokenizer (%s)", recipe.key())
        tokenizer = recipe.make(lambda: _counted_lines(split))
        with new_entry(entry) as partial:
            save_tokenizer(tokenizer, partial / TOKENIZER)
        return tokenizer

    return _load_or_make(entry, lambda entry: load_tokenizer(entry / TOKENIZER), make)


def _counted_lines(split: TextSplit) -> Iterator[str]:
    """Yield the lines of a text, and show how far it has been read."""
    with progress("counting words", split.about_bytes, "B") as more:
        for line in split.lines():
            more(len(line if line.isascii() else line.encode("utf-8", "replace")) + 1)
            yield line
    split.check_unchanged()


def _load_or_make(entry: Path, read: Callable[[Path], T], make: Callable[[], T]) -> T:
    """Return an entry of the cache, made now if it does not exist or is damaged."""
    with _cache_errors(entry):
        return load_or_make(entry, read, make)


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
    path: Path, dtype: np.dtype[Any], shard: Shard, encoder: TextEncoder, more: Advance
) -> dict[str, int]:
    """Write the tokens of a text to `path`, a batch of lines at a time, and return counts."""
    counts = Counter(num_tokens=1)
    split, tokenizer = shard.split, shard.tokenizer
    first = tokenizer.sep if split.rule == "end" else tokenizer.document_start
    with path.open("wb") as file:
        file.write(np.array([first], dtype=dtype).tobytes())
        for batch, tokens in encoder.encode_split(split):
            file.write(tokens.astype(dtype).tobytes())
            text = LINE_END.join(batch)
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


# ------------------------------------------------------------------------------- several shards


def make_missing(split: TextSplit, missing: Sequence[Shard]) -> dict[Path, StoredTokens]:
    """Return the shards that were missing, by entry; see `Shard.load_or_encode`."""
    several = len(split.shards) > 1
    which = f": {len(missing):,} of {len(split.shards):,} files" if several else ""
    log.info("Encoding the %s text%s", split.name, which)
    begin = time.perf_counter()
    known = [shard.split.about_bytes for shard in missing]
    total = None if None in known else sum(size or 0 for size in known)
    with progress(f"encoding the {split.name} text", total, "B") as more:
        if several:
            for folder in {missing[0].entry.parent, missing[0].documents.parent}:
                clear_leftovers(folder)
            _encode_missing(missing, split.workers, more)
        encoder = TextEncoder(missing[0].tokenizer, available_cores())
        encoded = {shard.entry: shard.load_or_encode(encoder, more) for shard in missing}
    seconds = time.perf_counter() - begin
    log.info(
        "Encoded the %s text: %s tokens in %.1f s (%.1f MB/s)",
        split.name,
        f"{sum(entry.counts['num_tokens'] - 1 for entry in encoded.values()):,}",
        seconds,
        sum(entry.counts["num_bytes"] for entry in encoded.values()) / 1e6 / max(seconds, 1e-9),
    )
    return encoded


def _encode_missing(shards: Sequence[Shard], workers: int, more: Advance) -> None:
    """Have some shards encoded by several processes, the largest ones first."""
    sizes = {shard.entry: _size_of(shard.split) for shard in shards}
    ordered = sorted(shards, key=lambda shard: -sizes[shard.entry])
    # The processes of a run each start some.
    share = max(1, workers // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    processes = min(share, len(shards), sum(sizes.values()) // LEAST_BYTES)
    if processes > 1:
        _encode_parallel(ordered, processes, max(1, share // processes), more)
        return
    encoder = TextEncoder(ordered[0].tokenizer, share)
    for shard in ordered:
        shard.encode_if_free(encoder, more)


def _size_of(split: TextSplit) -> int:
    try:
        return sum(Path(name).stat().st_size for name in split.files)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}).") from error


def _encode_parallel(shards: Sequence[Shard], processes: int, threads: int, more: Advance) -> None:
    """Make what is missing of some shards of a tokenizer, but for what another run is making."""
    # No fork: the tokenizers library has threads here already.
    context = multiprocessing.get_context("spawn")
    at_work: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_worker, args=(threads, theirs), daemon=True)
            process.start()
            theirs.close()
            at_work[ours] = process
        for pipe in at_work:
            with suppress(OSError):  # it has died, and is heard to
                pipe.send(shards)
        while at_work:
            for connection in wait(list(at_work)):
                if isinstance(connection, Connection):
                    _receive(connection, at_work, more)
    finally:
        for process in at_work.values():
            process.terminate()
        for process in at_work.values():
            process.join()


def _receive(pipe: Connection, at_work: dict[Connection, SpawnProcess], more: Advance) -> None:
    try:
        message = pipe.recv()
    except (EOFError, OSError) as end:
        process = at_work.pop(pipe)
        process.join()
        if process.exitcode:
            raise RunError(
                f"a process that encodes text ended with {process.exitcode} (below 0: a signal); "
                "if memory ran out, lower data.workers. What is encoded is kept: start again"
            ) from end
        return
    if isinstance(message, TransferError):
        raise message
    more(message)


def _run_worker(threads: int, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that began it ends it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(-number))  # leaves nothing half done
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Before the tokenizer comes: the library counts its threads when it first encodes.
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    shards: Sequence[Shard] = connection.recv()
    encoder = TextEncoder(shards[0].tokenizer, threads)
    try:
        for shard in shards:
            shard.encode_if_free(encoder, connection.send)
    except TransferError as error:
        connection.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
