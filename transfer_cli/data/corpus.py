"""Unlabelled text as one stream of tokens, and as blocks of it.

Legend: B blocks, T positions.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import IGNORE, Batch, gather
from transfer_cli.data.documents import TextSplit
from transfer_cli.data.shards import Shard, StoredTokens, make_missing
from transfer_cli.data.split import WeightedSource, Whole
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.runs.environment import available_cores

MAX_MAPPED = 128
"""Shards of a text that are mapped at once: each holds a file open, and 1024 may be open."""


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
        self._mapped = lru_cache(maxsize=MAX_MAPPED)(self._map)

    def __len__(self) -> int:
        return int(self.begins[-1])

    def __getitem__(self, places: slice | npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]:
        """Return a copy of the tokens at some places, from 0."""
        if isinstance(places, slice):
            return self._piece(*places.indices(len(self)))
        tokens = np.empty(places.shape, self.dtype)
        shard = np.searchsorted(self.begins, places, side="right") - 1
        for number in np.unique(shard).tolist():
            here = shard == number
            tokens[here] = self._mapped(number)[places[here] - self.begins[number]]
        return tokens

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
        path: Its folder in the cache; of several shards, the one that their folders are in.
        part_of: What it is a part of; None: it is complete.
        starts: Where documents begin, in tokens: at the end of the line before. None: they are not
            told apart.
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


def encode_text(split: TextSplit, tokenizer: Tokenizer, cache_dir: Path) -> EncodedText:
    """Return the tokens of a text, from the cache if they are there."""
    shards = [Shard(part, tokenizer, cache_dir) for part in split.shards]
    with ThreadPoolExecutor(available_cores()) as beside:
        tokens = list(beside.map(Shard.load_if_sound, shards))
    missing = {
        shard.entry: shard for shard, entry in zip(shards, tokens, strict=True) if entry is None
    }
    encoded = make_missing(split, list(missing.values())) if missing else {}
    stored = [entry or encoded[shard.entry] for shard, entry in zip(shards, tokens, strict=True)]
    first, is_one = stored[0], len(stored) == 1
    joined = first.mapped() if is_one else JoinedTokens(stored)
    counts: dict[str, Any] = {
        name: sum(entry.counts[name] for entry in stored)
        for name in first.counts
        if name != "num_tokens"
    }
    if split.size_bytes is not None:
        counts["num_bytes"] = split.size_bytes
    return EncodedText(
        joined,
        **counts,
        path=first.path if is_one else first.path.parent,
        part_of=split.part_of,
        starts=_document_starts(shards, stored, joined) if split.apart else None,
        num_shards=len(stored),
        sources=_token_sources(split.sources, joined) if split.sources else [],
    )


def _document_starts(
    shards: Sequence[Shard],
    stored: Sequence[StoredTokens],
    tokens: npt.NDArray[np.unsignedinteger] | JoinedTokens,
) -> npt.NDArray[np.int64]:
    """Return where documents begin in the tokens of all shards."""
    if not isinstance(tokens, JoinedTokens):
        return shards[0].starts(stored[0])
    shifts = tokens.begins[:-1] - tokens.shared
    shifts[0] = 0
    parts = zip(shards, stored, shifts, strict=True)
    return np.concatenate([shard.starts(entry) + shift for shard, entry, shift in parts])


def _token_sources(
    counted: Sequence[WeightedSource], tokens: npt.NDArray[np.unsignedinteger] | JoinedTokens
) -> list[WeightedSource]:
    """Return sources with their tokens, given how many files they have, and the tokens of all."""
    reached = tokens.begins if isinstance(tokens, JoinedTokens) else [0, len(tokens)]
    ends = [0, *accumulate(source.size for source in counted)]
    return [
        replace(source, size=int(reached[end] - reached[begin]))
        for source, begin, end in zip(counted, ends[:-1], ends[1:], strict=True)
    ]


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
    def sources(self) -> list[WeightedSource]:
        """Weighted sources of the text: a block belongs to the one in which it begins."""
        sources: list[WeightedSource] = []
        tokens = 0
        for counted in self.text.sources:
            tokens += counted.size
            begin = sum(source.size for source in sources)
            end = min(-(-tokens // self.length), len(self))
            if end == begin:
                raise DataError(
                    f"data.weights: {counted.name} has {counted.size:,} tokens, less than a block; "
                    "leave it out of data.train, or take a smaller data.length"
                )
            sources.append(WeightedSource(counted.name, end - begin, counted.weight))
        return sources

    @property
    def num_targets(self) -> int:
        """How many tokens are predicted: all but the first."""
        return len(self.text.tokens) - 1

    def __len__(self) -> int:
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
