"""A text of many files as one stream of tokens: each file is a shard with its own entry."""

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transfer_cli.data.encoded_text import EncodedText, JoinedTokens, StoredTokens
from transfer_cli.data.encoding import Shard, TextEncoder
from transfer_cli.data.encoding_processes import encode_in_processes
from transfer_cli.data.split import WeightedSource
from transfer_cli.data.text_split import TextSplit
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.progress import More, progress
from transfer_cli.runs.cache import sweep
from transfer_cli.runs.environment import cores

log = logging.getLogger(__name__)

LEAST_BYTES = 2**21
"""Of a process: fewer are encoded before another one has started."""


def encode_text(split: TextSplit, tokenizer: Tokenizer, cache_dir: Path) -> EncodedText:
    """Return the tokens of a text, from the cache if they are there."""
    shards = [Shard(each, tokenizer, cache_dir) for each in split.shards]
    with ThreadPoolExecutor(cores()) as beside:
        found = list(beside.map(Shard.stored, shards))
    missing = {
        shard.entry: shard for shard, each in zip(shards, found, strict=True) if each is None
    }
    if missing:
        made = _made(split, list(missing.values()))
        found = [each or made[shard.entry] for shard, each in zip(shards, found, strict=True)]
    stored = [each for each in found if each is not None]
    text = replace(EncodedText.of(stored), part_of=split.part_of)
    if split.size_bytes is not None:
        text = replace(text, num_bytes=split.size_bytes)
    return replace(
        text,
        starts=_starts(shards, stored, text.tokens) if split.apart else None,
        sources=_sources(split.sources, text.tokens) if split.sources else [],
    )


def _made(split: TextSplit, missing: Sequence[Shard]) -> dict[Path, StoredTokens]:
    """Return the shards that were missing, by entry; see `Shard.kept`."""
    several = len(split.shards) > 1
    which = f": {len(missing):,} of {len(split.shards):,} files" if several else ""
    log.info("Encoding the %s text%s", split.name, which)
    begin = time.perf_counter()
    known = [shard.split.about_bytes for shard in missing]
    total = None if None in known else sum(size or 0 for size in known)
    with progress(f"encoding the {split.name} text", total, "B") as more:
        if several:
            for folder in {missing[0].entry.parent, missing[0].documents.parent}:
                sweep(folder)
            _share(missing, split.workers, more)
        encoder = TextEncoder(missing[0].tokenizer, cores())
        made = {shard.entry: shard.kept(encoder, more) for shard in missing}
    seconds = time.perf_counter() - begin
    log.info(
        "Encoded the %s text: %s tokens in %.1f s (%.1f MB/s)",
        split.name,
        f"{sum(each.counts['num_tokens'] - 1 for each in made.values()):,}",
        seconds,
        sum(each.counts["num_bytes"] for each in made.values()) / 1e6 / max(seconds, 1e-9),
    )
    return made


def _share(shards: Sequence[Shard], workers: int, more: More) -> None:
    """Have some shards made by several processes, the largest ones first."""
    sizes = {shard.entry: _size_of(shard.split) for shard in shards}
    ordered = sorted(shards, key=lambda shard: -sizes[shard.entry])
    # The processes of a run each start some.
    share = max(1, workers // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    processes = min(share, len(shards), sum(sizes.values()) // LEAST_BYTES)
    if processes > 1:
        encode_in_processes(ordered, processes, max(1, share // processes), more)
        return
    encoder = TextEncoder(ordered[0].tokenizer, share)
    for shard in ordered:
        shard.kept_if_free(encoder, more)


def _size_of(split: TextSplit) -> int:
    try:
        return sum(Path(name).stat().st_size for name in split.files)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}).") from error


def _starts(
    shards: Sequence[Shard],
    stored: Sequence[StoredTokens],
    tokens: npt.NDArray[np.unsignedinteger] | JoinedTokens,
) -> npt.NDArray[np.int64]:
    """Return where documents begin in the tokens of all shards."""
    if not isinstance(tokens, JoinedTokens):
        return shards[0].starts(stored[0])
    return np.concatenate(
        [
            shard.starts(each) + begin - (number > 0 and tokens.shared)
            for number, (shard, each, begin) in enumerate(
                zip(shards, stored, tokens.begins[:-1], strict=True)
            )
        ]
    )


def _sources(
    counted: Sequence[WeightedSource], tokens: npt.NDArray[np.unsignedinteger] | JoinedTokens
) -> list[WeightedSource]:
    """Return sources with their tokens, given how many files they have, and the tokens of all."""
    reached = tokens.begins if isinstance(tokens, JoinedTokens) else [0, len(tokens)]
    ends = [0, *accumulate(source.size for source in counted)]
    return [
        replace(source, size=int(reached[end] - reached[begin]))
        for source, begin, end in zip(counted, ends[:-1], ends[1:], strict=True)
    ]
