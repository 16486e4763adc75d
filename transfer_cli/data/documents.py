"""Files of running text: found, cut into lines and documents, held out of, told apart by content.

Nothing here imports torch, so that a process that does nothing but encode starts at once.
"""

import glob
import hashlib
import itertools
import logging
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, floor
from pathlib import Path

from transfer_cli.data import json_tables, parquet, readers
from transfer_cli.data.hub_client import resolve_path
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.readers import LastLine, text_lines
from transfer_cli.data.records import Record, nested_names, text_of
from transfer_cli.data.split import LineRule, WeightedSource, Whole
from transfer_cli.errors import DataError, list_names
from transfer_cli.progress import progress
from transfer_cli.runs.directory import HUB

log = logging.getLogger(__name__)

TITLE = "= [^=].* ="
"""The first line of an article in WikiText."""

_HOLD_OUT_LINES = 64
"""Maximum number of lines of a held-out block."""

HOLD_OUT_BLOCKS = 8
"""Number of held-out blocks of a short text, if it has enough lines."""

_HOLD_OUT_OFFSET = 0.5
"""The held-out block of the first 1 / share: one in the middle."""

Field = str | Sequence[str]
"""The column of a text in the rows of a file; of several columns each is a line of its text."""

Lines = Callable[[], Iterator[str]]
Begins = Callable[[], Iterator[bool]]

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")
"""Endings of the files of a folder that are read as tables."""

_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".parquet")
"""Of the files of text in a folder, before the suffix of a packed one."""


@dataclass(frozen=True)
class TextSplit:
    """One part of a corpus.

    Args:
        name: `train`, `validation` or `test`.
        lines: Yields the text anew at each call: one paragraph or heading a line, without its end.
        begins: Yields for each line whether a document begins with it; None: with the first alone.
        begins_by: How it knows, to tell it from other ways.
        fingerprint: Hex digest that changes when the lines do.
        source: The name of its file, or files, in messages.
        size_bytes: The size of the original, where lines lose some of it; None: that of the lines,
            with a byte for the end of each.
        about_bytes: About how many bytes the lines have, to show progress by; None: not known.
        part_of: What it is a part of; None: it is complete.
        parts: The files that it consists of, in order, each to be encoded alone (a *shard*); none:
            it is one.
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
    rule: LineRule = "end"
    begins: Begins | None = None
    begins_by: str = ""
    apart: bool = False
    parts: Sequence["TextSplit"] = ()
    workers: int = 1
    sources: Sequence[WeightedSource] = ()

    @property
    def shards(self) -> Sequence["TextSplit"]:
        """Its parts, or itself."""
        return self.parts or (self,)

    def with_rule(self, rule: LineRule) -> "TextSplit":
        """Return it with another rule for line breaks."""
        return replace(self, rule=rule, parts=tuple(part.with_rule(rule) for part in self.parts))

    def marked_lines(self) -> Iterator[tuple[str, bool]]:
        """Yield each line, and whether a document begins with it."""
        first_alone = (number == 0 for number in itertools.count())
        begins = first_alone if self.begins is None else self.begins()
        return zip(self.lines(), begins, strict=False)

    def check_unchanged(self) -> None:
        """Refuse files whose content is no longer that of their digests."""
        for name, digest in self.files.items():
            if not file_digest(Path(name)).startswith(digest):
                raise DataError(f"{name} has changed while it was read; start again.")


def join_splits(
    parts: Sequence[TextSplit], fingerprint: str, source: str, workers: int
) -> TextSplit:
    """Return several parts, in order, as one split; of one part, that part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    sizes = [part.about_bytes for part in parts]
    return TextSplit(
        first.name,
        lambda: itertools.chain.from_iterable(part.lines() for part in parts),
        fingerprint,
        about_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        source=source,
        files={name: digest for part in parts for name, digest in part.files.items()},
        rule=first.rule,
        begins=lambda: (begins for part in parts for _, begins in part.marked_lines()),
        begins_by=first.begins_by,
        apart=first.apart,
        parts=tuple(parts),
        workers=workers,
    )


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
    """Return the SHA-256 of a file in hex digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


# ----------------------------------------------------------------------------------- lines


def path_lines(path: Path, field: Field) -> Iterator[str]:
    """Yield the lines of a text file, or those of the texts in `field` of its rows."""
    texts = _row_texts(path, field)
    if texts is None:
        yield from text_lines(path)
        return
    for text in texts:
        *lines, last = readers.paragraphs(text)
        yield from lines
        yield LastLine(last)


def _row_texts(path: Path, field: Field) -> Iterator[str] | None:
    """Return the texts of JSON lines or Parquet; None: it is plain text."""
    match readers.format_of(path):
        case "jsonl":
            records = json_tables.json_file_rows(path)
        case "parquet":
            records = parquet.parquet_records(path, field if isinstance(field, str) else None)
        case None:
            return None
        case _:
            typed = f"data=table_text data.task.train={shlex.quote(str(path))}"
            raise DataError(f"{path} is a table, whose header and marks are no text; say {typed}")
    return (_text_in(record, field, str(path)) for record in records)


def _text_in(record: Record, field: Field, name: str) -> str:
    if isinstance(field, str):
        try:
            return text_of(record, field, name)
        except DataError as error:
            if field in nested_names(record.fields):
                raise
            raise DataError(f"{error} Those of another column: data.field=COLUMN") from error
    return "\n".join(" ".join(text_of(record, column, name).split()) for column in field)


def document_begins(lines: Lines, heading: str | None) -> Iterator[bool]:
    """Yield for each line of a text whether a document begins with it."""
    is_after_empty = True
    for number, line in enumerate(lines()):
        is_empty = not line.strip()
        if heading is None:
            yield number == 0 or (is_after_empty and not is_empty)
        else:
            yield number == 0 or re.fullmatch(heading, line) is not None
        is_after_empty = is_empty


def path_begins(path: Path, field: Field, heading: str | None) -> Iterator[bool]:
    """Yield for each of `path_lines` whether a document begins with it."""
    texts = _row_texts(path, field)
    if texts is None:
        yield from document_begins(partial(text_lines, path), heading)
        return
    for text in texts:
        yield from (number == 0 for number, _ in enumerate(readers.paragraphs(text)))


# -------------------------------------------------------------------------------- hold-out


@dataclass(frozen=True)
class HoldOut:
    """Holds out every (1 / share)-th block of `block` lines that are not empty, or documents.

    Args:
        keeps_held_out: Whether it keeps what is held out, or the rest.
        span: Of a file that is too short, the first line that is held out and the one after the
            last, in place of blocks.
    """

    share: float
    block: int
    keeps_held_out: bool
    span: tuple[int, int] | None = None
    documents: bool = False

    def __str__(self) -> str:
        """Return what tells it from others; part of the names of entries of the cache."""
        named = f"share={self.share!r}, block={self.block!r}, keep_held_out={self.keeps_held_out!r}"
        span = "" if self.span is None else f" {self.span}"
        return f"_HoldOut({named}){span}" + (" documents" if self.documents else "")

    def kept_part(self, split: TextSplit) -> TextSplit:
        """Return what it keeps of a split."""
        size, share = split.about_bytes, self.share if self.keeps_held_out else 1 - self.share
        return replace(
            split,
            lines=partial(self.kept_lines, split),
            fingerprint=digest_of([split.fingerprint, str(self)]),
            about_bytes=None if size is None else round(share * size),
            begins=split.begins and partial(self.kept_begins, split),
        )

    def kept_lines(self, split: TextSplit) -> Iterator[str]:
        """Yield the lines that it keeps."""
        return (line for line, is_kept in self._mark_kept(split) if is_kept)

    def kept_begins(self, split: TextSplit) -> Iterator[bool]:
        """Yield for each line that it keeps of a split whether a document begins with it.

        One begins where lines were left out, too, if documents are told apart or one began there.
        """
        begins = False
        marked = zip(self._mark_kept(split), split.marked_lines(), strict=True)
        for (_, is_kept), (_, begins_here) in marked:
            begins = begins or begins_here
            if is_kept:
                yield begins
            begins = not is_kept and (begins or split.apart)

    def _mark_kept(self, split: TextSplit) -> Iterator[tuple[str, bool]]:
        """Yield each line, and whether it is kept."""
        number = -1
        # An empty line goes with the line before it.
        not_empty = ((line, bool(line.strip())) for line in split.lines())
        for line, is_new in split.marked_lines() if self.documents else not_empty:
            number += is_new
            yield line, self._holds_out(max(number, 0)) == self.keeps_held_out

    def _holds_out(self, number: int) -> bool:
        if self.span is not None:
            return self.span[0] <= number < self.span[1]
        block = number // self.block
        before = floor(block * self.share + _HOLD_OUT_OFFSET)
        return floor((block + 1) * self.share + _HOLD_OUT_OFFSET) > before


def hold_out_block_size(count: int, share: float, blocks: int) -> int:
    """Return the number of lines of a block: fewer in a short text, 0 if the share is no line.

    Of a text that has enough lines, so many `blocks` are held out at least.
    """
    held_out = int(count * share)
    return min(held_out, _HOLD_OUT_LINES, max(1, held_out // blocks))


# ----------------------------------------------------------------------------------- files


def expand_paths(
    patterns: str | list[str],
    suffixes: Sequence[str] = _SUFFIXES,
    is_single: Callable[[Path], bool] = lambda folder: False,
) -> list[Path]:
    """Return the files of paths, folders and globs, each once.

    Args:
        suffixes: Of the files of a folder that are read.
        is_single: Whether a folder stands for one file.
    """
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not pattern:
            raise DataError("A name of a file is empty, expected a path, folder or glob.")
        path = resolve_path(pattern)
        if path.is_dir() and is_single(path):
            _check_is_one_split(path, path.rglob("*.*"))
            paths.append(path)
            continue
        if path.is_dir():
            files = _files_in_folder(path, pattern, suffixes)
            _check_is_one_split(path, files)
        elif glob.has_magic(pattern) and not path.exists():
            # `Path.glob` takes no absolute pattern.
            names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - as said above
            files = [Path(name) for name in names if Path(name).is_file()]
            if not files:
                raise DataError(f"No file matches {pattern} (in {Path.cwd()}).")
        else:
            files = [path]
        for file in files:
            readers.check_readable(file)
        paths += files
    return list(dict.fromkeys(paths))


def files_of_one_format(
    names: Sequence[str],
    suffixes: Sequence[str],
    read_as: str | None,
    is_single: Callable[[Path], bool] = readers.is_parquet,
) -> list[Path]:
    """Return the files of paths, folders and globs, each named once, all of one format.

    Args:
        names: See `expand_paths`, as for the others.
        read_as: The format that was typed; None or auto: that of the endings.
    """
    files = [path for name in names for path in expand_paths(name, suffixes, is_single)]
    twice = [path for path, count in Counter(files).items() if count > 1]
    if twice:
        raise DataError(f"{twice[0]} is named twice; name it once.")
    kinds = {str(readers.format_of(path)): path for path in files}
    if len(kinds) > 1 and read_as in (None, "auto"):
        raise DataError(
            f"its files are of different formats ({list_names(kinds.values(), 4)}); name those of "
            "one, or a glob such as '*.csv'."
        )
    return files


def _files_in_folder(folder: Path, pattern: str, suffixes: Sequence[str]) -> list[Path]:
    """Return the files in a folder and those below it, without hidden ones."""
    if pattern.startswith(HUB):
        return sorted(folder.glob("*.parquet"))
    if hint := readers.datasets_folder_hint(folder):
        raise DataError(f"{folder} is a folder of Arrow files.{hint}")
    files = [
        path
        for path in _walk_folder(folder, set())
        # A link to a file that is gone is refused later: its text would be missing.
        if readers.suffix_of(path) in suffixes and (path.is_file() or path.is_symlink())
    ]
    if not files:
        raise DataError(
            f"{folder} is a folder without a file that is read ({', '.join(suffixes)}, also "
            "packed). Name the files, or a glob."
        )
    return files


_SPLIT_NAME = re.compile("(train|test|validation|valid|dev)(?![^\\W\\d_])", re.IGNORECASE)


def _check_is_one_split(folder: Path, files: Iterable[Path]) -> None:
    """Refuse a folder in which files or folders side by side are called as several splits are."""
    splits_by_folder = defaultdict[Path, dict[str, str]](dict)
    for file in files:
        for part in (file, *file.parents)[: len(file.relative_to(folder).parts)]:
            if match := _SPLIT_NAME.match(part.name):
                named = part if part.is_dir() else part.with_name(f"{match[1]}*")
                splits_by_folder[part.parent][match[1].lower()] = shlex.quote(str(named))
    for place, splits in splits_by_folder.items():
        if {"train"} < splits.keys():
            raise DataError(f"{place} has splits; name one: {list_names(splits.values())}")


def _walk_folder(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield what is no folder in one and those below it, in order; a linked folder once."""
    real = folder.resolve()
    if real in seen:
        return
    seen.add(real)
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror or error}).") from error
    for path in inside:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk_folder(path, seen)
        else:
            yield path


def check_disjoint(files: Mapping[str, Sequence[Path]]) -> None:
    """Refuse a file that several splits or sources name."""
    for one, other in itertools.combinations(files, 2):
        common = {path.resolve() for path in files[one]} & {path.resolve() for path in files[other]}
        if common:
            raise DataError(
                f"{min(common)} is in {one} and in {other}. Leave it out of one of them."
            )


def file_parts(
    paths: Sequence[Path], name: str, field: Field, known: KnownFiles
) -> tuple[list[TextSplit], str]:
    """Return each of some files as a split of its own, and the fingerprint of all together."""
    digests = _digests(paths, known)
    parts = []
    for path in paths:
        lines = partial(path_lines, path, field)
        if not known.fact(path, f"lines 1 {field}", partial(_count_lines, lines, 1)):
            raise DataError(f"{path}: nothing but empty lines in the {name} text.")
        table_format = readers.format_of(path)
        has_rows = table_format in ("jsonl", "parquet")  # each is a document
        is_plain = not readers.is_packed(path) and table_format != "parquet"
        parts.append(
            TextSplit(
                name,
                lines,
                digest_of(["text", str(field)], {path: digests[path]}),
                about_bytes=path.stat().st_size if is_plain else None,
                source=str(path),
                files={str(path): digests[path][:16]},
                begins=partial(path_begins, path, field, None) if has_rows else None,
                begins_by="a row" if has_rows else "",
            )
        )
    return parts, digest_of(["text", str(field)], digests)


def _count_lines(lines: Lines, enough: int) -> int:
    """Return how many lines are not empty, counted up to `enough`."""
    return sum(1 for _ in itertools.islice(filter(str.strip, lines()), enough))


def _digests(paths: Sequence[Path], known: KnownFiles) -> dict[Path, str]:
    sizes = {path: path.stat().st_size for path in paths}
    digests: dict[Path, str] = {}
    same = defaultdict(list)
    with progress(f"reading {list_names(paths, 1)}", sum(sizes.values()), "B") as more:
        for path, size in sizes.items():
            digests[path] = known.fact(path, "sha256", partial(file_digest, path))
            same[digests[path]].append(path)
            more(size)
    twice = next((names for names in same.values() if len(names) > 1), None)
    if twice is not None:
        log.warning("%s hold the same text, which is read as often", list_names(twice, 3))
    return digests


def held_out_parts(
    parts: Sequence[TextSplit], share: float, field: Field, known: KnownFiles, *, whole: bool
) -> tuple[list[TextSplit], list[TextSplit]]:
    """Return what is left of each file to train on, and what is held out of it.

    `whole` is for text whose lines go on in the next one: documents are held out where a file has
    enough, and else, of a short file, lines that follow each other.
    What is held out of a file depends on that file alone. Of several that are all too short to hold
    out a line, and of which none is drawn, each gives the line in its middle.
    """
    # More lines do not change how large the blocks are.
    enough = ceil(HOLD_OUT_BLOCKS * _HOLD_OUT_LINES / share)

    def counted(part: TextSplit) -> tuple[int, bool]:
        """Return how many documents a file has, and True, or how many lines, and False."""
        if whole and part.begins is not None:
            begins = filter(None, (begins for _, begins in part.marked_lines()))
            count = sum(itertools.islice(begins, enough))
            if hold_out_block_size(count, share, 1):
                return count, True
        count = known.fact(
            Path(*part.files), f"lines {enough} {field}", partial(_count_lines, part.lines, enough)
        )
        return count, False

    counts = [counted(part) for part in parts]
    least = 1 if whole else HOLD_OUT_BLOCKS
    blocks = [hold_out_block_size(count, share, least) for count, _ in counts]
    # By its content: of 1 / share such files one is held out as a whole.
    drawn = [len(parts) > 1 and int(part.fingerprint[:13], 16) < share * 16**13 for part in parts]
    from_middle = not any(blocks) and not any(drawn) and len(parts) > 1
    train: list[TextSplit] = []
    validation: list[TextSplit] = []
    for part, (count, documents), block, is_drawn in zip(parts, counts, blocks, drawn, strict=True):
        if block == 0 and is_drawn:
            validation.append(part)
        elif block == 0 and not (from_middle and count > 1):
            train.append(part)
        else:
            span = None if block else (count // 2, count // 2 + 1)
            held_out = HoldOut(share, block, keeps_held_out=True, span=span, documents=documents)
            train.append(replace(held_out, keeps_held_out=False).kept_part(part))
            validation.append(held_out.kept_part(part))
    if not train or not validation:
        raise DataError(
            f"{list_names((part.source for part in parts), 1)}: validation_share={share} of the "
            "lines is less than one line. Name data.validation, raise data.validation_share, or "
            "break long lines: fold -s FILE > BROKEN.txt"
        )
    return train, validation
