"""A split of running text: its lines, where documents begin, what is held out of a file.

Nothing here imports torch, so that a process that does nothing but encode starts at once.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, floor
from pathlib import Path
from typing import TypeVar

from transfer_cli.data import json_tables, readers, sheets
from transfer_cli.data.identity import SplitIdentity
from transfer_cli.data.split import WeightedSource, Whole
from transfer_cli.errors import DataError

TITLE = "= [^=].* ="
"""The first line of an article in WikiText."""

_HOLD_OUT_LINES = 64
"""Maximum number of lines of a held-out block."""

_HOLD_OUT_BLOCKS = 8
"""Number of held-out blocks of a short text, if it has enough lines."""

_HOLD_OUT_OFFSET = 0.5
"""The held-out block of the first 1 / share: one in the middle."""

Lines = Callable[[], Iterator[str]]
Begins = Callable[[], Iterator[bool]]

T = TypeVar("T")


@dataclass(frozen=True)
class TextSplit:
    """One part of a corpus.

    Args:
        name: `train`, `validation` or `test`.
        lines: Yields the text anew at each call: one paragraph or heading a line, without its end.
        begins: Yields for each line whether a document begins with it; None: nobody asks.
        begins_by: How it knows, to tell it from other ways.
        fingerprint: Hex digest that changes when the lines do.
        source: The name of its file, or files, in messages.
        files: The digest of each file.
        size_bytes: The size of the original, where lines lose some of it; None: that of the lines,
            with a byte for the end of each.
        about_bytes: About how many bytes the lines have, to show progress by; None: not known.
        part_of: What it is a part of; None: it is complete.
        parts: The files that it consists of, in order, each to be encoded alone (a *shard*); none:
            it is one.
        workers: Processes that encode parts at once.
        sources: How many parts are from each, in their order; none: all examples come equally
            often.
    """

    name: str
    lines: Lines
    fingerprint: str
    size_bytes: int | None = None
    about_bytes: int | None = None
    part_of: Whole | None = None
    source: str = "this text"
    files: Mapping[str, str] = field(default_factory=dict)
    begins: Begins | None = None
    begins_by: str = ""
    parts: Sequence["TextSplit"] = ()
    workers: int = 1
    sources: Sequence[WeightedSource] = ()

    @property
    def identity(self) -> SplitIdentity:
        """What it is, to be compared later."""
        return SplitIdentity(self.source, self.fingerprint, files=self.files)

    @property
    def shards(self) -> Sequence["TextSplit"]:
        """Its parts, or itself."""
        return self.parts or (self,)

    def check_unchanged(self) -> None:
        """Refuse files whose content is no longer that of their digests.

        Raises:
            DataError: One has changed, or cannot be read.
        """
        for name, digest in self.files.items():
            if not file_digest(Path(name)).startswith(digest):
                raise DataError(f"{name} has changed while it was read; start again.")


def joined(
    parts: Sequence[TextSplit], fingerprint: str, source: str, workers: int = 1
) -> TextSplit:
    """Return several parts, in order, as one split; of one part, that part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    sizes = [part.about_bytes for part in parts]
    return TextSplit(
        first.name,
        partial(_chained, [part.lines for part in parts]),
        fingerprint,
        about_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        source=source,
        files={name: digest for part in parts for name, digest in part.files.items()},
        begins=first.begins and partial(_chained, [part.begins for part in parts if part.begins]),
        begins_by=first.begins_by,
        parts=tuple(parts),
        workers=workers,
    )


def _chained(parts: Sequence[Callable[[], Iterator[T]]]) -> Iterator[T]:
    for part in parts:
        yield from part()


def digest_of(settings: Iterable[str], files: Mapping[Path, str] | None = None) -> str:
    """Return a digest of settings and the content (not the names or dates) of files."""
    total = hashlib.sha256()
    for setting in settings:
        total.update(f"{len(setting)}:{setting}".encode())
    for path, digest in (files or {}).items():
        # The suffix decides how a file is read.
        total.update(bytes.fromhex(digest) + "".join(path.suffixes[-2:]).encode())
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex digits.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


# ----------------------------------------------------------------------------------- lines


def path_lines(path: Path, field: str) -> Iterator[str]:
    """Yield the lines of a text file, or those of the texts in `field` of its rows."""
    texts = _row_texts(path, field)
    if texts is None:
        yield from readers.read_lines(path)
    else:
        yield from itertools.chain.from_iterable(map(readers.paragraphs, texts))


def _row_texts(path: Path, field: str) -> Iterator[str] | None:
    """Return the texts of JSON lines or Parquet; None: it is plain text."""
    if readers.format_of(path) != sheets.PARQUET:
        return json_tables.texts(path, field)
    records = sheets.parquet_records(path, field)
    return (readers.text_of(record, field, str(path)) for record in records)


def begins_of(lines: Lines, heading: str | None) -> Iterator[bool]:
    """Yield for each line of a text whether a document begins with it."""
    is_after_empty = True
    for number, line in enumerate(lines()):
        is_empty = not line.strip()
        if heading is None:
            yield number == 0 or (is_after_empty and not is_empty)
        else:
            yield number == 0 or re.fullmatch(heading, line) is not None
        is_after_empty = is_empty


def path_begins(path: Path, field: str, heading: str | None) -> Iterator[bool]:
    """Yield for each of `path_lines` whether a document begins with it."""
    texts = _row_texts(path, field)
    if texts is None:
        yield from begins_of(partial(readers.read_lines, path), heading)
        return
    for text in texts:
        yield from (number == 0 for number, _ in enumerate(readers.paragraphs(text)))


# -------------------------------------------------------------------------------- hold-out


@dataclass(frozen=True)
class HoldOut:
    """Holds out lines: every (1 / share)-th block of `block` lines that are not empty.

    Args:
        share: The held-out share of the lines.
        block: Lines of a block.
        keeps_held_out: Whether it keeps what is held out, or the rest.
        span: Of a file that is too short, the first line that is held out and the one after the
            last, in place of blocks.
    """

    share: float
    block: int
    keeps_held_out: bool
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return what tells it from others; part of the names of entries of the cache."""
        named = f"share={self.share!r}, block={self.block!r}, keep_held_out={self.keeps_held_out!r}"
        return f"_HoldOut({named})" + ("" if self.span is None else f" {self.span}")

    def about(self, size: int | None) -> int | None:
        """Return about how many bytes of `size` stay."""
        share = self.share if self.keeps_held_out else 1 - self.share
        return None if size is None else round(share * size)

    def part(self, split: TextSplit) -> TextSplit:
        """Return what it keeps of a split."""
        return replace(
            split,
            lines=partial(self.of, split.lines),
            fingerprint=digest_of([split.fingerprint, str(self)]),
            about_bytes=self.about(split.about_bytes),
            begins=split.begins and partial(self.begins, split.lines, split.begins),
        )

    def of(self, lines: Lines) -> Iterator[str]:
        """Yield the lines that it keeps."""
        return (line for line, is_kept in self._marked(lines()) if is_kept)

    def begins(self, lines: Lines, begins: Begins) -> Iterator[bool]:
        """Yield for each line whether a document begins with it, or the part that is kept."""
        is_kept = False
        for (_, keeps), begins_here in zip(self._marked(lines()), begins(), strict=True):
            if keeps:
                yield begins_here or not is_kept
            is_kept = keeps

    def _marked(self, lines: Iterator[str]) -> Iterator[tuple[str, bool]]:
        """Yield each line, and whether it is kept."""
        number = -1
        for line in lines:
            # An empty line goes with the line before it.
            number += bool(line.strip())
            yield line, self._holds_out(max(number, 0)) == self.keeps_held_out

    def _holds_out(self, number: int) -> bool:
        if self.span is not None:
            return self.span[0] <= number < self.span[1]
        block = number // self.block
        before = floor(block * self.share + _HOLD_OUT_OFFSET)
        return floor((block + 1) * self.share + _HOLD_OUT_OFFSET) > before


def lines_that_matter(share: float) -> int:
    """Return how many lines of a file decide how large the blocks are that are held out of it."""
    return ceil(_HOLD_OUT_BLOCKS * _HOLD_OUT_LINES / share)


def count_texts(lines: Iterator[str], enough: int) -> int:
    """Return how many lines are not empty, counted up to `enough`."""
    return sum(1 for _ in itertools.islice(filter(str.strip, lines), enough))


def hold_out_block(count: int, share: float) -> int:
    """Return the number of lines of a block: fewer in a short text, 0 if the share is no line."""
    held_out = int(count * share)
    return min(held_out, _HOLD_OUT_LINES, max(1, held_out // _HOLD_OUT_BLOCKS))


def held_out_whole(fingerprint: str, share: float) -> bool:
    """Return whether a file that is shorter than 1 / share is held out; drawn from its content."""
    return int(fingerprint[:13], 16) < share * 16**13
