"""The tokens of a text: files in the cache, mapped into memory, of one shard or of many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transfer_cli.data.split import WeightedSource, Whole
from transfer_cli.errors import RunError
from transfer_cli.safe_files import read_json

TOKENS, META = "tokens.bin", "meta.json"
"""The files of an entry."""

MOST_MAPPED = 128
"""Shards of a text that are mapped at once: each holds a file open, of which there may be 1024."""

_DTYPES = {name: np.dtype(name) for name in ("uint16", "uint32")}


@dataclass(frozen=True)
class StoredTokens:
    """An entry of the cache: the tokens of a shard.

    Args:
        path: Its folder.
        dtype: Of a token.
        counts: What `EncodedText` says of them, and `num_tokens`.
    """

    path: Path
    dtype: np.dtype[Any]
    counts: Mapping[str, int]

    @classmethod
    def read(cls, entry: Path) -> "StoredTokens":
        """Return the entry in a folder."""
        meta = read_json(entry / META)
        return cls(entry, _DTYPES[meta["dtype"]], meta["counts"])

    def mapped(self) -> npt.NDArray[Any]:
        """Return the tokens, mapped into memory."""
        try:
            return np.memmap(self.path / TOKENS, dtype=self.dtype, mode="r")
        except OSError as error:
            raise RunError(
                f"{self.path} in the cache cannot be read ({error.strerror or error}); start again"
            ) from error


class JoinedTokens:
    """The tokens of several shards, as of one text.

    The `sep` that a later shard begins with is left out: that is what the one before ends with.

    Args:
        shards: In order, with tokens of one kind.

    Attributes:
        shared: 1, or 0 where shards begin otherwise than they end.
    """

    def __init__(self, shards: Sequence[StoredTokens]) -> None:
        tokens = shards[0].mapped()
        self.shared = int(tokens[0] == tokens[-1])
        sizes = [shard.counts["num_tokens"] - self.shared for shard in shards]
        sizes[0] += self.shared
        self.dtype = shards[0].dtype
        self.begins = np.cumsum([0, *sizes])
        self._shards = shards
        self._mapped = lru_cache(maxsize=MOST_MAPPED)(self._map)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self.begins[-1])

    def __getitem__(self, places: slice | npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]:
        """Return a copy of the tokens at some places, from 0."""
        if isinstance(places, slice):
            return self._piece(*places.indices(len(self)))
        found = np.empty(places.shape, self.dtype)
        shard = np.searchsorted(self.begins, places, side="right") - 1
        for number in np.unique(shard).tolist():
            here = shard == number
            found[here] = self._mapped(number)[places[here] - self.begins[number]]
        return found

    def _piece(self, start: int, stop: int, step: int) -> npt.NDArray[Any]:
        first, last = np.searchsorted(self.begins, [start, max(start, stop - 1)], side="right") - 1
        pieces = [np.empty(0, self.dtype)]
        for number in range(first, min(last, len(self._shards) - 1) + 1):
            begin = int(self.begins[number])
            pieces.append(self._mapped(number)[max(0, start - begin) : max(0, stop - begin)])
        return np.concatenate(pieces)[::step]

    def _map(self, number: int) -> npt.NDArray[Any]:
        return self._shards[number].mapped()[self.shared if number else 0 :]


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text as one stream of tokens.

    Attributes:
        tokens: Memory-mapped. `sep` comes first, so that every token of the text is a target, and
            ends each line; or documents alone (`TextSplit.rule`), which the tokenizer's own token
            may begin.
        num_words: Space-separated words, and one for the end of every line.
        num_bytes: UTF-8 bytes, with one for the end of every line; see `TextSplit.size_bytes`.
        num_lines: Lines, with the empty ones.
        num_unknown: Unknown tokens.
        path: Its folder in the cache; of several shards, the one that their folders are in.
        part_of: What it is a part of; None: it is complete.
        starts: Where documents begin, in tokens: at the end of the line before. None: they are not
            told apart.
        num_shards: How many files it is encoded in.
        sources: How many tokens are from each; none: all blocks come equally often.
    """

    tokens: npt.NDArray[Any] | JoinedTokens
    num_words: int
    num_bytes: int
    num_lines: int
    num_unknown: int
    path: Path
    part_of: Whole | None = None
    starts: npt.NDArray[np.int64] | None = None
    num_shards: int = 1
    sources: Sequence[WeightedSource] = ()

    @classmethod
    def of(cls, shards: Sequence[StoredTokens]) -> "EncodedText":
        """Return the text of some shards, in order."""
        first, is_one = shards[0], len(shards) == 1
        counts: dict[str, Any] = {
            name: sum(shard.counts[name] for shard in shards)
            for name in first.counts
            if name != "num_tokens"
        }
        return cls(
            first.mapped() if is_one else JoinedTokens(shards),
            **counts,
            path=first.path if is_one else first.path.parent,
            num_shards=len(shards),
        )
