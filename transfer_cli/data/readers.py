r"""Read text and tables line by line, strictly, in bounded memory.

Every fault of a file becomes a `DataError` that names the file and the line. A fault of one row
alone may be given to a function instead (`on_error`), which lets the reader go on.
Only `\n` and `\r\n` end a line, and `\r` in a file that has more of them; other characters that
Unicode calls line ends belong to the text.
"""

import csv
import io
import json
import logging
import lzma
import os
import re
import shlex
import string
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from glob import has_magic
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from transfer_cli.data import encodings
from transfer_cli.data.encodings import encoding_of
from transfer_cli.data.packed import PACKINGS, Unpacked
from transfer_cli.data.records import Record, json_kind
from transfer_cli.errors import DataError, nearest
from transfer_cli.safe_files import STRICT_JSON, check_no_pointer, printable

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 8 * 2**20
"""Longer lines are refused, and longer rows of a table, however many lines they have.

A line is encoded in one piece, for which the tokenizers library takes up to 400 bytes of memory for
each byte of text. War and Peace on one line has 3 MB.
"""

MAX_COLUMNS = 10_000
"""Wider tables are refused: no column can be found in one, and each row is a mapping of all."""

TABLE_FORMATS = ("csv", "tsv", "jsonl")
SHEET_FORMATS = ("parquet", "xlsx")
"""Tables that are not made of lines: see `sheets`."""

QUOTES = DOUBLE, BACKSLASH, LETTERS = ("double", "backslash", "none")
"""What a quote in a quoted value is written as, or that quotes are letters."""

LOOKED_AT_BYTES = 2**22
"""So much of the beginning of a file is looked at."""

USUAL_DELIMITER: Mapping[str, str] = {"csv": ",", "tsv": "\t"}

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER_BYTES = 2**20
_REREAD = 8
"""How often lines may be read again on average, in search of a row after a broken one."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+,= ")

OnError = Callable[[DataError], None]
"""Receives the fault of a row; returns to have the rest read, or raises."""


def refuse(error: DataError) -> None:
    """Raise the error: one broken row is enough to read no more."""
    raise error


class BrokenLine(str):
    """A line that cannot be read, with the readable part of its text: its quotes count."""

    error: DataError

    @classmethod
    def of(cls, text: str, error: DataError) -> "BrokenLine":
        """Return the line with its error."""
        line = cls(text)
        line.error = error
        return line


# ---------------------------------------------------------------------------------- files


def numbered_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a text file, plain or packed.

    Args:
        path: The file.
        encoding: As Python names it; None: it is recognised.
    """
    name = str(path)
    with closing(open_file(path)) as file:
        source = _told(file, name, encoding)
        yield from sound_lines(all_lines(source.stream, name, source.encoding))


def in_utf8(file: BinaryIO, name: str) -> "LineStream":
    """Return the lines of a file in UTF-8; its encoding is recognised, and said."""
    source = _told(file, name, None)
    if source.encoding == "utf-8" or not isinstance(source.stream, io.BufferedReader):
        return source.stream
    return _with_line_ends(source.stream, source.encoding, "utf-8", "")


def _told(file: BinaryIO, name: str, encoding: str | None) -> "LineSource":
    start, whole = looked_at(file, LOOKED_AT_BYTES, name)
    source = recognised(start, whole, name, encoding)
    if source.said:
        _tell(name, source.said)
    return source


@cache
def _tell(name: str, said: str) -> None:
    """Say how a text is read, once: it is read several times."""
    log.info("%s: %s", printable(name), said)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or packed, without their ends."""
    for _, line in numbered_lines(path):
        yield line


def paragraphs(text: str) -> list[str]:
    """Return the lines of a text that is a value of a table."""
    return text.replace("\r\n", "\n").split("\n")


def read_table(path: Path, table_format: str, *, header: bool = True) -> Iterator[Record]:
    """Yield the rows of a table file, plain or packed; see `table_records`."""
    return table_records(numbered_lines(path), str(path), table_format, header=header)


def format_of(path: Path) -> str | None:
    """Return the table format of a file's name, or None; a folder of Parquet files is one table."""
    if path.is_dir() and any(path.glob("*.parquet")):
        return "parquet"
    suffix = suffix_of(path)
    if suffix in _JSON_SUFFIXES:
        return "jsonl"
    return suffix[1:] if suffix[1:] in (*TABLE_FORMATS, *SHEET_FORMATS) else None


def is_packed(path: Path) -> bool:
    """Return whether a file has the name of a packed one."""
    return path.suffix in PACKINGS


def check_readable(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that is not empty, with a name that is text."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        # As bash reads it in $'...'.
        typed = "".join(
            chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(path)
        )
        other = shlex.quote("".join(c if c.isprintable() else "_" for c in str(path)))
        raise DataError(
            f"{typed}: the name is not UTF-8; give it another: mv $'{typed}' {other}"
        ) from error
    try:
        if not path.exists():
            raise _missing(path)
        if path.is_dir():
            raise DataError(f"{path} is a folder, expected a file.{_saved_by_datasets(path)}")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty.")
        if path.is_file():  # a pipe can be read only once
            with path.open("rb") as file:
                check_no_pointer(file.read(64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from error


def too_long(name: object, line: int) -> DataError:
    """Return the error of a line or row that is longer than one may be."""
    return DataError(
        f"{name}, line {line}: longer than {MAX_LINE_BYTES // 2**20} MiB. Is this text?"
    )


def check_length(size: int, name: object, line: int) -> None:
    """Raise `DataError` if a row has more than so many bytes or characters."""
    if size > MAX_LINE_BYTES:
        raise too_long(name, line)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked if its name ends with `.gz`, `.xz` or `.zst`."""
    check_readable(path)
    try:
        if path.suffix in PACKINGS:
            return io.BufferedReader(Unpacked(path), _BUFFER_BYTES)
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def unknown_format(path: Path, keys: str) -> DataError:
    """Return what to say of a file whose name does not tell its format."""
    with closing(open_file(path)) as file:
        start = file.read(_LONGEST_MARK)
    _check_is_text(start, str(path))
    if start.startswith(b"__label__"):
        source, table = shlex.quote(str(path)), shlex.quote(f"{path}.tsv")
        return DataError(
            f"{path} has labels as fastText writes them. For a table of one label each: sed -E "
            rf"'s/^__label__(\S+)\s+/\1\t/' {source} > {table}, then data.train={table} "
            f"{keys}header=false {keys}label=1 {keys}text=2"
        )
    return DataError(
        f"{path}: its name does not tell the format. For a table set {keys}format=csv; "
        "text without labels is for pretrain data=text."
    )


def count_lines(path: Path) -> int | None:
    """Return how many lines a file has, the last one included where it has no end.

    None: it is a pipe, or a spreadsheet or Parquet, whose rows are no lines.
    """
    if not path.is_file() or format_of(path) in SHEET_FORMATS:
        return None
    count, last = 0, b"\n"
    with open_file(path) as file:
        while chunk := file.read(2**20):
            count, last = count + chunk.count(b"\n"), chunk
    return count + (not last.endswith(b"\n"))


def suffix_of(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without that of a packed one."""
    name = path.with_suffix("") if path.suffix in PACKINGS else path
    return name.suffix.lower()


def _saved_by_datasets(folder: Path) -> str:
    """Return how to read a folder that the library `datasets` has saved; "" for others."""
    splits = sorted(part.parent.name for part in folder.glob("*/state.json"))
    if not splits and not (folder / "state.json").exists():
        return ""
    split = f'["{splits[0]}"]' if splits else ""
    to = f"{(splits or ['rows'])[0]}.parquet"
    code = f'load_from_disk({json.dumps(str(folder))}){split}.to_parquet("{to}")'
    typed = shlex.quote(f"from datasets import load_from_disk; {code}")
    return f" The library datasets has saved it; python -c {typed} writes a file."


def _missing(path: Path) -> DataError:
    if has_magic(path.name):
        return DataError(f"{path} does not exist, and a pattern of names is read for text alone.")
    if path.is_symlink():
        return DataError(f"{path} is a link to {path.readlink()}, which does not exist.")
    folder = next(each for each in path.parents if each.is_dir())
    name = path.relative_to(folder).parts[0]
    hint = nearest(name, (entry.name for entry in folder.iterdir()), cutoff=0.7)
    place = f" (in {folder})" if hint else ""
    return DataError(f"{path} does not exist.{hint}{place}")


# ---------------------------------------------------------------------------------- lines


class LineStream(Protocol):
    """A source of lines."""

    def readline(self, size: int, /) -> bytes:
        """Return the bytes up to the end of the line, at most `size`; none at the end."""


def sound_lines(
    lines: Iterable[tuple[int, str]], on_error: OnError = refuse
) -> Iterator[tuple[int, str]]:
    """Yield the lines that can be read; `on_error` receives the faults of the others."""
    for number, line in lines:
        if isinstance(line, BrokenLine):
            on_error(line.error)
        else:
            yield number, line


def all_lines(stream: LineStream, name: str, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield numbered lines, with a `BrokenLine` in place of each that cannot be read.

    Raises:
        DataError: The stream is empty, cannot be unpacked, or is UTF-16.
    """
    number = 0
    while raw := read_line(stream, name, number + 1):
        # Files that were put together have one where each began.
        raw = raw.removeprefix(BYTE_ORDER_MARK)
        if number == 0 and not raw:
            break
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            yield number, BrokenLine.of("", too_long(name, number))
            # Only now: a caller that stops here does not wait for the end of the line.
            while raw and not raw.endswith(b"\n"):
                raw = read_line(stream, name, number)
            continue
        yield number, decoded(without_end(raw), name, number, encoding)
    if number == 0:
        raise DataError(f"{name} is empty.")


def without_end(raw: bytes) -> bytes:
    """Return a line without its end."""
    return raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")


def read_line(stream: LineStream, name: str, number: int, most: int = MAX_LINE_BYTES + 1) -> bytes:
    """Return the next line, or its first bytes where it has more than `most`."""
    try:
        return stream.readline(most)
    except _UNREADABLE as error:
        raise DataError(
            f"{name}, line {number}: cannot be read on ({error}). Is the file damaged or cut off?"
        ) from error


_UNREADABLE = (
    OSError, EOFError, UnicodeError, zlib.error, lzma.LZMAError, zstandard.ZstdError
)  # fmt: skip


class _LookedAt(io.RawIOBase):
    """Bytes that were read already, and those that follow."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start = io.BytesIO(start)
        self._rest = rest

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        """Fill a buffer; return how many bytes that are, 0 at the end."""
        found = self._start.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def looked_at(stream: BinaryIO, size: int, name: str) -> tuple[bytes, io.BufferedReader]:
    """Return the first bytes of a stream, and a stream that has them still."""
    try:
        start = stream.read(size)
    except _UNREADABLE as error:
        raise DataError(
            f"{name}, line 1: cannot be read on ({error}). Is the file damaged or cut off?"
        ) from error
    return start, io.BufferedReader(_LookedAt(start, stream), _BUFFER_BYTES)


@dataclass(frozen=True)
class LineSource:
    """A file as lines: its first bytes, all of it, and what was recognised (`said`, or "")."""

    start: bytes
    stream: LineStream
    encoding: str
    said: str = ""


def recognised(
    start: bytes, stream: LineStream, name: str, encoding: str | None, key: str | None = None
) -> LineSource:
    """Return a file in an encoding whose lines end with a byte.

    Args:
        start: Its first bytes.
        stream: All of it.
        name: What to call it in messages.
        encoding: As Python names it; None: it is recognised.
        key: What is typed to say it; None: nothing, a text has to be in UTF-8.
    """
    _check_is_text(start, name)
    said = ""
    if encoding is None:
        reading, *others = encoding_of(start)
        encoding = reading.encoding
        if others:
            ways = " or ".join(f"{each.encoding} ({each.sample!r})" for each in (reading, *others))
            cure = f"Say {key}={encoding}" if key else f"iconv -f {encoding} -t utf-8 writes UTF-8"
            raise DataError(f"{name} is not UTF-8; it may be {ways}. {cure}, if that is right.")
        if encoding != "utf-8":
            sample = f" ({reading.sample!r})" if reading.sample else ""
            said = f"read as {encodings.shown(encoding)}{sample}"
    if not isinstance(stream, io.BufferedReader):  # a pipe, whose lines may come slowly
        return LineSource(start, stream, encoding, said)
    if encodings.is_wide(encoding):
        start = start.decode(encoding, errors="ignore").encode()
        stream, encoding = _with_line_ends(stream, encoding, "utf-8", ""), "utf-8"
    # As many are written at the end of lines, where they are twice.
    alone = start.count(b"\r") - start.count(b"\r\n") - start.count(b"\r\r\n")
    if alone > start.count(b"\n"):
        stream = _with_line_ends(stream, "latin-1", "latin-1", None)
        start = start.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return LineSource(start, stream, encoding, said)


def _check_is_text(start: bytes, name: str) -> None:
    kind = next((kind for mark, kind in _NO_TEXTS.items() if start.startswith(mark)), None)
    if kind is not None:
        raise DataError(f"{name} is {kind.format(shlex.quote(name))}.")


_NO_TEXTS = {
    b"PK\3\4": "a zip archive or a spreadsheet; unpack it first (unzip {}), or name it .xlsx",
    b"PAR1": "a Parquet file; name it .parquet",
    b"ARROW1": "an Arrow file; save it as Parquet",
    b"\xd0\xcf\x11\xe0": "a document of an old office program; save it as .xlsx or CSV",
    b"\x1f\x8b": "packed by gzip; name it {}.gz",
    b"\x28\xb5\x2f\xfd": "packed by zstd; name it {}.zst",
    b"\xfd7zXZ": "packed by xz; name it {}.xz",
    b"BZh": "packed by bzip2; unpack it first (bunzip2 {})",
    b"7z\xbc\xaf": "a 7z archive; unpack it first (7z x {})",
    b"{\\rtf": "a document of a word processor; save it as plain text",
    b"$FL2@(#)": "a file of SPSS; save it as CSV",
    b"<stata_dta>": "a file of Stata; save it as CSV",
    b"%PDF": "a PDF; save its text as a file of its own",
    b"SQLite format 3": "a database; export the table as CSV",
}
"""First bytes -> what a file is that is no text, and what to do."""
_LONGEST_MARK = max(map(len, _NO_TEXTS))


class _Recoded(io.RawIOBase):
    def __init__(self, text: io.TextIOWrapper, encoding: str) -> None:
        self._text, self._encoding = text, encoding

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        found = self._text.read(len(buffer) // 4).encode(self._encoding)
        buffer[: len(found)] = found
        return len(found)


def _with_line_ends(
    stream: BinaryIO, encoding: str, to: str, newline: str | None
) -> io.BufferedReader:
    """Return a stream in another encoding; a `newline` of None is any end, and becomes one."""
    text = io.TextIOWrapper(stream, encoding, newline=newline)
    return io.BufferedReader(_Recoded(text, to), _BUFFER_BYTES)


def decoded(raw: bytes, name: str, number: int, encoding: str = "utf-8") -> str:
    """Return the text of a line, a `BrokenLine` where it cannot be read."""
    if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}, line 1: begins as UTF-16 does. Save the file as UTF-8.")
    zero = raw.find(b"\0")
    if zero >= 0:
        wrong = f"NUL byte at offset {zero}. Is this a text file?"
    else:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            place = f"byte 0x{raw[error.start]:02X} at offset {error.start} of the line"
            wrong = f"{place} is not {encoding.upper()}. Save the file as UTF-8."
    error_found = DataError(f"{name}, line {number}: {wrong}")
    return BrokenLine.of(raw.decode(encoding, errors="replace"), error_found)


# -------------------------------------------------------------------------------- records


def table_records(
    lines: Iterable[tuple[int, str]],
    name: str,
    table_format: str,
    *,
    delimiter: str | None = None,
    quotes: str | None = None,
    header: bool = True,
    on_error: OnError = refuse,
    keys: str = "data.",
) -> Iterator[Record]:
    """Yield the rows of a table, given its lines.

    Empty lines are left out. CSV has quotes as RFC 4180 says, so that a value may hold commas and
    line ends; TSV has none if its columns are parted by tabs: a quote there is a quote. A carriage
    return within a line is part of a value.

    Args:
        lines: Numbered lines, from `all_lines` if `on_error` is to receive broken ones.
        name: What to call the table in messages.
        table_format: One of `TABLE_FORMATS`.
        delimiter: What stands between columns; None: what is usual for the format.
        quotes: One of `QUOTES`; None: what is usual for the format.
        header: Whether the first row names the columns; without it they are called "1", "2" and so
            on. JSON lines name their values themselves.
        on_error: Receives the fault of each ragged or broken row, which is left out. After a broken
            row of several lines, the next row may begin in its second line.
        keys: What stands before the names of keys in messages.
    """
    if table_format == "jsonl":
        yield from not_empty(partial(json_records, lines, name), name, on_error)
        return
    mark = delimiter or USUAL_DELIMITER[table_format]
    quotes = quotes or usual_quotes(table_format, mark)

    def records(note: OnError) -> Iterator[Record]:
        rows = partial(_rows, lines, name, mark, quotes=quotes, keys=keys)
        cure = f"Part columns by one {mark!r} each." if quotes == LETTERS else _QUOTE.format(mark)
        return named_rows(rows, name, note, header=header, cure=cure)

    yield from not_empty(records, name, on_error)


def usual_quotes(table_format: str, delimiter: str) -> str:
    """Return what quotes mean in a format."""
    return DOUBLE if table_format == "csv" or delimiter != "\t" else LETTERS


def not_empty(
    records: Callable[[OnError], Iterator[Record]], name: str, on_error: OnError
) -> Iterator[Record]:
    """Yield records, of which there must be at least one, or a fault that is told of."""
    empty = True

    def note(error: DataError) -> None:
        nonlocal empty
        empty = False
        on_error(error)

    for record in records(note):
        empty = False
        yield record
    if empty:
        raise DataError(f"{name} has no rows.")


def json_records(
    lines: Iterable[tuple[int, str]], name: str, on_error: OnError = refuse
) -> Iterator[Record]:
    """Yield the objects of JSON lines; empty lines are left out, and lines that are no objects."""
    for number, line in sound_lines(lines, on_error):
        if not line or line.isspace():
            continue
        try:
            fields = _json_object(line, f"{name}, line {number}")
        except DataError as error:
            on_error(error)
        else:
            yield Record(number, fields)


def _json_object(line: str, where: str) -> dict[str, object]:
    try:
        value = STRICT_JSON.decode(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {json_kind(value)}, expected one JSON object {{...}} on every line."
        )
    if len(value) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(value):,} values, the most is {MAX_COLUMNS:,}.")
    return value


_QUOTE = 'Put values that hold "{0}" in quotes: "like{0} this".'


def named_rows(
    rows: Callable[[OnError], Iterable[tuple[int, list[str]]]],
    name: str,
    on_error: OnError,
    *,
    header: bool,
    cure: str,
) -> Iterator[Record]:
    """Yield rows of cells as records.

    Args:
        rows: Yields the number and the cells of each row, and tells of those that are broken.
        name: What to call the table in messages.
        on_error: Receives the fault of each ragged or broken row.
        header: See `table_records`.
        cure: For a row of more or fewer cells than there are columns.
    """
    columns: list[str] | None = None
    expected = ""

    def note(error: DataError) -> None:
        # Without the names of the columns nothing can be read.
        (refuse if columns is None else on_error)(error)

    for number, row in rows(note):
        if columns is None:
            columns = column_names(row, header=header)
            check_columns(columns, f"{name}, line {number}")
            expected = f"the {'header' if header else 'row'} in line {number}"
            if header:
                continue
        while len(row) > len(columns) and not row[-1].strip():
            row.pop()  # delimiters at the end
        if len(row) > 1 and not any(map(str.strip, row)):
            continue
        if len(row) == len(columns):
            yield Record(number, dict(zip(columns, row, strict=True)))
            continue
        found = "1 column" if len(row) == 1 else f"{len(row)} columns"
        note(
            DataError(f"{name}, line {number}: {found}, but {expected} has {len(columns)}. {cure}")
        )


def column_names(first: Sequence[str], *, header: bool) -> list[str]:
    """Return the names of the columns, given the first row; one without a name has its number."""
    return [name if header and name.strip() else str(place) for place, name in enumerate(first, 1)]


def check_columns(columns: Sequence[str], where: str) -> None:
    """Raise `DataError` if there are too many columns, or two of one name."""
    if len(columns) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(columns):,} columns, the most is {MAX_COLUMNS:,}.")
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise DataError(f"{where}: the column {twice[0][:80]!r} is there twice. Rename one.")


class Reader(Protocol):
    """Yields the cells of rows; `line_num` is how many lines were taken."""

    @property
    def line_num(self) -> int:
        """How many lines were taken."""

    def __iter__(self) -> "Reader":
        """Return itself."""

    def __next__(self) -> list[str]:
        """Return the next row; after a `csv.Error` it can be called again."""


def split_lines(
    lines: Iterable[str], mark: str, quotes: str = DOUBLE, *, strict: bool = True
) -> Reader:
    """Return the cells of each row; misplaced quotes are an error if `strict`."""
    # The limit is the process's; its default of 128 KiB is less than a long text.
    csv.field_size_limit(2 * MAX_LINE_BYTES)
    lines = map(_without_carriage_returns, lines)
    if quotes == DOUBLE:
        return _Cells(csv.reader(lines, delimiter=mark, strict=strict))
    if quotes == LETTERS:
        return _Cells(csv.reader(lines, delimiter=mark, quoting=csv.QUOTE_NONE))
    # Other backslashes are those of paths, not marks of a quote.
    escaped = (_OTHER_BACKSLASH.sub(r"\\\\", line) for line in lines)
    return _Cells(csv.reader(escaped, delimiter=mark, strict=strict, escapechar="\\"))


_OTHER_BACKSLASH = re.compile(r'\\(?![\\"])')


def _without_carriage_returns(line: str) -> str:
    # The library takes one for the end of a row. NUL is in no line: it is refused before.
    return line.rstrip("\r\n").replace("\r", "\0") + "\n" if "\r" in line else line


class _Cells:
    """Rows of the library, with the carriage returns that a NUL stands for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def line_num(self) -> int:
        return self._reader.line_num

    def __iter__(self) -> "_Cells":
        return self

    def __next__(self) -> list[str]:
        return [cell.replace("\0", "\r") for cell in next(self._reader)]


class _LinesOfRows:
    """Hands lines to a reader of CSV, keeps those of the row being read, and takes some back.

    What is read again is limited, or a hostile file could take a time that is the square of its
    size.
    """

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        self._new, self._again = iter(lines), deque[tuple[int, str]]()
        self._size, self._spare = 0, _REREAD * MAX_LINE_BYTES
        self.row: list[tuple[int, str]] = []

    def __iter__(self) -> "_LinesOfRows":
        return self

    def __next__(self) -> str:
        # Unlike a generator, this goes on after its end where lines were taken back.
        found = self._again.popleft() if self._again else next(self._new)
        self.row.append(found)
        self._size += len(found[1]) + 1
        if self._size > MAX_LINE_BYTES:
            raise csv.Error(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
        return f"{found[1]}\n"

    def begin_row(self) -> None:
        self._spare += _REREAD * self._size
        self.row.clear()
        self._size = 0

    def take_back(self) -> bool:
        """Have all lines of the row but the first read again; False where that is too much."""
        (_, first), *rest = self.row
        again = self._size - len(first)
        if again > self._spare:
            return not rest
        self._spare -= again
        self._size = len(first)
        self._again.extendleft(reversed(rest))
        return True


def _rows(
    lines: Iterable[tuple[int, str]],
    name: str,
    mark: str,
    on_error: OnError,
    *,
    quotes: str,
    keys: str,
) -> Iterator[tuple[int, list[str]]]:
    """Yield the values of each row with the number of its first line; empty rows are left out.

    A missing quote makes one row of all that follows, so the lines of a broken row are read again,
    without the first one.
    """
    source = _LinesOfRows(lines)
    reader = split_lines(source, mark, quotes)
    while True:
        source.begin_row()
        try:
            values = next(reader, None)  # takes all lines of a row
        except csv.Error as error:
            (first, _), (last, _) = source.row[0], source.row[-1]
            cure = f"Is a quote missing or too many? If quotes are letters: {keys}quotes=none."
            if not source.take_back():
                cure += f" Up to line {last}, all is left out with it."
            on_error(DataError(f"{name}, line {first}: a broken row ({error}). {cure}"))
            continue
        if values is None:
            return
        broken = [line for _, line in source.row if isinstance(line, BrokenLine)]
        if broken:
            on_error(broken[0].error)
        elif values:
            yield source.row[0][0], values
