r"""Read text and tables line by line, strictly, in bounded memory.

Everything that can be wrong with a file ends as a `DataError` that names the file and the line.
Only `\n` and `\r\n` end a line; other characters that Unicode calls line ends belong to the text.
"""

import csv
import io
import json
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from transfer_cli.errors import DataError, nearest
from transfer_cli.safe_files import STRICT_JSON

MAX_LINE_BYTES = 8 * 2**20
"""Longer lines are refused, and longer rows of a table, however many lines they stand on.

A line is encoded in one piece, for which the tokenizers library takes up to 400 bytes of memory for
each byte of text. War and Peace on one line has 3 MB.
"""

MAX_COLUMNS = 10_000
"""Wider tables are refused: nobody names a column in one, and each row is a mapping of all."""

MAX_LABEL_CHARACTERS = 1000
"""A longer label is a text in the wrong column. Results and messages repeat labels."""

MAX_UNPACKED_RATIO = 200
"""A packed file that grows more than this, beyond the first GiB, is no text.

Text is packed to a third or a tenth, logs and tables to a fiftieth.
"""

UNPACKED_FREELY_BYTES = 2**30
"""How much may come out of any packed file: a small one can hold what a person wants repeated."""

MAX_WINDOW_BYTES = 2**28
"""Memory that unpacking may take. Files of `xz -9` need 64 MiB, of `zstd --ultra -22` 128 MiB."""

TABLE_FORMATS = ("csv", "tsv", "jsonl")

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER_BYTES = 2**20
_MOST_LISTED = 20


@dataclass(frozen=True)
class Record:
    """One row of a table.

    Args:
        line: The line on which it begins, counted from 1.
        fields: Column name -> value; values are strings except in JSON lines.
    """

    line: int
    fields: Mapping[str, object]


# ---------------------------------------------------------------------------------- files


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or packed, without their ends."""
    for _, line in _numbered_lines_of(path):
        yield line


def read_text(path: Path, field: str) -> Iterator[str]:
    """Yield lines of text: those of a text file, or those of `field` in every JSON line."""
    if _suffix(path) not in _JSON_SUFFIXES:
        yield from read_lines(path)
        return
    for record in json_records(_numbered_lines_of(path), str(path)):
        yield from text_of(record, field, str(path)).replace("\r\n", "\n").split("\n")


def read_table(path: Path, table_format: str, *, header: bool = True) -> Iterator[Record]:
    """Yield the rows of a table file, plain or packed; see `table_records`."""
    return table_records(_numbered_lines_of(path), str(path), table_format, header=header)


def format_of(path: Path) -> str | None:
    """Return the table format that a file's name tells, or None."""
    suffix = _suffix(path)
    if suffix in _JSON_SUFFIXES:
        return "jsonl"
    return suffix[1:] if suffix[1:] in TABLE_FORMATS else None


def check_readable(path: Path) -> None:
    """Raise `DataError` unless there is a file with something in it at `path`."""
    try:
        if not path.exists():
            raise _missing(path)
        if path.is_dir():
            raise DataError(f"{path} is a folder, expected a file.")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty.")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from error


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked if its name ends with `.gz`, `.xz` or `.zst`."""
    check_readable(path)
    try:
        if path.suffix in _PACKINGS:
            return io.BufferedReader(_Unpacked(path), _BUFFER_BYTES)
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def _numbered_lines_of(path: Path) -> Iterator[tuple[int, str]]:
    with closing(open_file(path)) as stream:
        yield from numbered_lines(stream, str(path))


def _suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix in _PACKINGS else path
    return name.suffix.lower()


def _missing(path: Path) -> DataError:
    folder, name = path.parent, path.name
    while not folder.is_dir() and folder != folder.parent:
        folder, name = folder.parent, folder.name
    hint = nearest(name, (entry.name for entry in folder.iterdir()))
    place = f" (in {folder})" if hint else ""
    return DataError(f"{path} does not exist.{hint}{place}")


class _Piece(Protocol):
    """What unpacks one of the pieces that a packed file is made of."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True)
class _Packing:
    """A way of packing.

    Args:
        begin: Makes what unpacks a piece.
        read_bytes: How much is unpacked at once: less than 128 MiB can come of it.
    """

    begin: Callable[[], _Piece]
    read_bytes: int


_PACKINGS = {
    # 1032 times as much comes out, at most.
    ".gz": _Packing(lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), 2**15),
    # About 7000 times.
    ".xz": _Packing(lambda: lzma.LZMADecompressor(memlimit=MAX_WINDOW_BYTES), 2**12),
    # A block of 4 bytes can unpack to 128 KiB.
    ".zst": _Packing(
        lambda: zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj(), 2**12
    ),
}


class _Unpacked(io.RawIOBase):
    """Unpacked content of a file of any number of packed pieces.

    The libraries' own readers take as much memory as the file asks for, or a file that was cut off
    for a complete one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._packing = _PACKINGS[path.suffix]
        self._source = path.open("rb")
        self._piece: _Piece | None = None
        self._ready = memoryview(b"")
        self._num_packed = self._num_unpacked = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        while not self._ready:
            packed = self._source.read(self._packing.read_bytes)
            if not packed:
                if self._piece is not None:
                    raise EOFError("the file ends too early")
                return 0
            self._ready = memoryview(self._unpack(packed))
            self._check_ratio(len(packed), len(self._ready))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()

    def _unpack(self, packed: bytes) -> bytes:
        unpacked = []
        while packed:
            if self._piece is None:
                packed = packed.lstrip(b"\0")  # pieces may be filled up with zeros
                if not packed:
                    break
                self._piece = self._packing.begin()
            unpacked.append(self._piece.decompress(packed))
            packed = b""
            if self._piece.eof:
                packed = self._piece.unused_data
                self._piece = None
        return b"".join(unpacked)

    def _check_ratio(self, num_packed: int, num_unpacked: int) -> None:
        self._num_packed += num_packed
        self._num_unpacked += num_unpacked
        free = self._num_unpacked <= UNPACKED_FREELY_BYTES
        if not free and self._num_unpacked > MAX_UNPACKED_RATIO * self._num_packed:
            raise DataError(
                f"{self._path}: unpacks to more than {MAX_UNPACKED_RATIO} times its size, which no "
                "text does. If it is right, unpack it yourself and name the unpacked file."
            )


# ---------------------------------------------------------------------------------- lines


def numbered_lines(
    stream: BinaryIO, name: str, encoding: str = "utf-8"
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end).

    Args:
        stream: Bytes.
        name: What to call the stream in messages.
        encoding: Of the text; a byte order mark at its beginning is left out.

    Raises:
        DataError: The stream is empty, cannot be unpacked, or a line is too long, holds a NUL byte
            or a byte that the encoding does not have.
    """
    number = 0
    while raw := _read_line(stream, name, number + 1):
        if number == 0:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
            if not raw:
                break
        number += 1
        raw = raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
        yield number, _decode(raw, name, number, encoding)
    if number == 0:
        raise DataError(f"{name} is empty.")


def _read_line(stream: BinaryIO, name: str, number: int) -> bytes:
    try:
        raw = stream.readline(MAX_LINE_BYTES + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise DataError(
            f"{name}, line {number}: cannot be read on ({error}). Is the file damaged or cut off?"
        ) from error
    if len(raw) > MAX_LINE_BYTES:
        raise DataError(
            f"{name}, line {number}: longer than {MAX_LINE_BYTES // 2**20} MiB. Is this text?"
        )
    return raw


def _decode(raw: bytes, name: str, number: int, encoding: str) -> str:
    if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}, line 1: begins as UTF-16 does. Save the file as UTF-8.")
    zero = raw.find(b"\0")
    if zero >= 0:
        raise DataError(f"{name}, line {number}: NUL byte at offset {zero}. Is this a text file?")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: byte 0x{raw[error.start]:02X} at offset {error.start} of the "
            "line is not UTF-8. Save the file as UTF-8."
        ) from error


# -------------------------------------------------------------------------------- records


def table_records(
    lines: Iterable[tuple[int, str]], name: str, table_format: str, *, header: bool = True
) -> Iterator[Record]:
    """Yield the rows of a table, whose lines are given, one by one.

    Empty lines are left out. CSV has quotes as RFC 4180 says, so that a value may hold commas and
    line ends; TSV has none: a quote there is a quote.

    Args:
        lines: Numbered lines.
        name: What to call the table in messages.
        table_format: One of `TABLE_FORMATS`.
        header: Whether the first row names the columns; without it they are called "1", "2" and so
            on. JSON lines name their values themselves.

    Raises:
        DataError: A row that is ragged or broken, two columns of one name, or no rows.
    """
    if table_format == "jsonl":
        records = json_records(lines, name)
    else:
        records = _delimited_records(lines, name, table_format, header=header)
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        raise DataError(f"{name} has no rows.")


def json_records(lines: Iterable[tuple[int, str]], name: str) -> Iterator[Record]:
    """Yield the objects of JSON lines; empty lines are left out."""
    for number, line in lines:
        if line and not line.isspace():
            yield Record(number, _json_object(line, f"{name}, line {number}"))


def text_of(record: Record, column: str, name: str) -> str:
    """Return the text in a column."""
    value = _value(record, column, name)
    where = f"{name}, line {record.line}: {column!r}"
    if not isinstance(value, str):
        raise DataError(f"{where} is {_json_kind(value)}, expected text.")
    if "\0" in value:
        raise DataError(f"{where} holds a NUL character. Is this text?")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} holds half of a surrogate pair, which is no character."
        ) from error
    return value


def label_of(record: Record, column: str, name: str) -> str:
    """Return the label in a column; JSON numbers and truth values as JSON writes them."""
    value = _value(record, column, name)
    where = f"{name}, line {record.line}: the label in {column!r}"
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{where} is {value}. Leave rows without a label out.")
    number = isinstance(value, bool | int | float)
    label = json.dumps(value) if number else text_of(record, column, name).strip()
    if not label:
        raise DataError(f"{where} is empty.")
    if len(label) > MAX_LABEL_CHARACTERS:
        raise DataError(
            f"{where} has {len(label):,} characters, the most is {MAX_LABEL_CHARACTERS:,}. "
            "Is it the text?"
        )
    return label


def _value(record: Record, column: str, name: str) -> object:
    if column in record.fields:
        return record.fields[column]
    columns = list(record.fields)
    raise DataError(
        f"{name}, line {record.line}: no column {column!r}; there are "
        f"{_listed(columns)}.{nearest(column, columns)}"
    )


def _listed(columns: list[str]) -> str:
    shown = ", ".join(repr(column[:80]) for column in columns[:_MOST_LISTED]) or "none"
    left = len(columns) - _MOST_LISTED
    return f"{shown} and {left:,} more" if left > 0 else shown


def _json_object(line: str, where: str) -> dict[str, object]:
    try:
        value = STRICT_JSON.decode(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {_json_kind(value)}, expected one JSON object {{...}} on every line."
        )
    if len(value) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(value):,} values, the most is {MAX_COLUMNS:,}.")
    return value


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", bool: "true or false", str: "a string"}
    return names.get(type(value), "a number")


def _delimited_records(
    lines: Iterable[tuple[int, str]], name: str, table_format: str, *, header: bool
) -> Iterator[Record]:
    columns: list[str] | None = None
    expected = "the first row"
    for number, row in _rows(lines, name, table_format):
        if columns is None:
            columns = row if header else [str(place + 1) for place in range(len(row))]
            _check_columns(columns, f"{name}, line {number}")
            expected = f"the {'header' if header else 'row'} in line {number}"
            if header:
                continue
        if len(row) != len(columns):
            raise DataError(
                f"{name}, line {number}: {_columns(len(row))}, but {expected} has {len(columns)}. "
                f"{_RAGGED_CURE[table_format]}"
            )
        yield Record(number, dict(zip(columns, row, strict=True)))


_RAGGED_CURE = {
    "csv": 'Put values that hold a comma in quotes: "like, this".',
    "tsv": "Separate columns by one tab each.",
}


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _check_columns(columns: list[str], where: str) -> None:
    if len(columns) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(columns):,} columns, the most is {MAX_COLUMNS:,}.")
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise DataError(f"{where}: the column {twice[0][:80]!r} is there twice. Rename one.")


class _RowLines:
    """Lines for a CSV reader, which takes as many as a row goes on for."""

    def __init__(self, lines: Iterable[tuple[int, str]], name: str) -> None:
        self._lines = iter(lines)
        self._name = name
        self._first = 1
        self._size = 0

    def begin_row(self, line: int) -> None:
        self._first, self._size = line, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        _, line = next(self._lines)
        self._size += len(line) + 1
        if self._size > MAX_LINE_BYTES:
            raise DataError(
                f"{self._name}, line {self._first}: a row that is longer than "
                f"{MAX_LINE_BYTES // 2**20} MiB. Is a quote missing?"
            )
        return line + "\n"


def _rows(
    lines: Iterable[tuple[int, str]], name: str, table_format: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, values) of every row that is not empty."""
    # The limit is the process's, not the reader's; its default of 128 KiB is less than a long text.
    csv.field_size_limit(2 * MAX_LINE_BYTES)
    given = _RowLines(lines, name)
    if table_format == "csv":
        reader = csv.reader(given, strict=True)
    else:
        reader = csv.reader(given, delimiter="\t", quoting=csv.QUOTE_NONE)
    while True:
        first = reader.line_num + 1
        given.begin_row(first)
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{name}, line {first}: a broken row ({error}). Is a quote missing or too many?"
            ) from error
        if row is None:
            return
        if row:
            yield first, row
