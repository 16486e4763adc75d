r"""Read text and tables line by line, strictly, in bounded memory.

Everything that can be wrong with a file ends as a `DataError` that names the file and the line.
Only `\n` and `\r\n` end a line; other characters that Unicode calls line ends belong to the text.
"""

import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from transfer_cli.errors import DataError, nearest

MAX_LINE_BYTES = 64 * 2**20
"""Longer lines are refused: they are never text, and would have to fit into memory."""

TABLE_FORMATS = ("csv", "tsv", "jsonl")

_PACKED_SUFFIXES = (".gz", ".xz", ".zst")
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A Zstandard block of 4 bytes can unpack to 128 KiB, so that this much may become 128 MiB.
_ZSTANDARD_READ_BYTES = 2**12


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
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path))
        if path.suffix == ".xz":
            return cast(BinaryIO, lzma.open(path))
        if path.suffix == ".zst":
            return io.BufferedReader(_Unzstandard(path.open("rb")))
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def _numbered_lines_of(path: Path) -> Iterator[tuple[int, str]]:
    with closing(open_file(path)) as stream:
        yield from numbered_lines(stream, str(path))


def _suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix in _PACKED_SUFFIXES else path
    return name.suffix.lower()


def _missing(path: Path) -> DataError:
    folder, name = path.parent, path.name
    while not folder.is_dir() and folder != folder.parent:
        folder, name = folder.parent, folder.name
    hint = nearest(name, (entry.name for entry in folder.iterdir()))
    place = f" (in {folder})" if hint else ""
    return DataError(f"{path} does not exist.{hint}{place}")


class _Unzstandard(io.RawIOBase):
    """Unpacked content of a Zstandard file of any number of frames.

    The library's own reader takes a file that was cut off for a complete one.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        while not self._ready:
            packed = self._source.read(_ZSTANDARD_READ_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the file ends too early")
                return 0
            self._ready = memoryview(self._unpack(packed))
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
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            unpacked.append(self._frame.decompress(packed))
            packed = b""
            if self._frame.eof:
                packed = self._frame.unused_data
                self._frame = None
        return b"".join(unpacked)


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
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    label = text_of(record, column, name).strip()
    if not label:
        raise DataError(f"{name}, line {record.line}: the label in {column!r} is empty.")
    return label


def _value(record: Record, column: str, name: str) -> object:
    if column in record.fields:
        return record.fields[column]
    columns = list(record.fields)
    raise DataError(
        f"{name}, line {record.line}: no column {column!r}; there are "
        f"{', '.join(map(repr, columns)) or 'none'}.{nearest(column, columns)}"
    )


def _json_object(line: str, where: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {_json_kind(value)}, expected one JSON object {{...}} on every line."
        )
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
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise DataError(f"{where}: the column {twice[0]!r} is there twice. Rename one.")


def _rows(
    lines: Iterable[tuple[int, str]], name: str, table_format: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, values) of every row that is not empty."""
    # The limit is the process's, not the reader's; its default of 128 KiB is less than a long text.
    csv.field_size_limit(MAX_LINE_BYTES)
    if table_format == "csv":
        reader = csv.reader((line + "\n" for _, line in lines), strict=True)
    else:
        reader = csv.reader(
            (line + "\n" for _, line in lines), delimiter="\t", quoting=csv.QUOTE_NONE
        )
    while True:
        first = reader.line_num + 1
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
