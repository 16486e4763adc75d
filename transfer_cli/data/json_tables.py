"""Rows in JSON: lines, and tables that become such: arrays, objects of columns, rows below a key.

Of an array one row at a time is in memory; an object is read whole, up to a limit.
"""

import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

from transfer_cli.data import readers
from transfer_cli.data.readers import (
    MAX_LINE_BYTES,
    PEEKED_BYTES,
    LineSource,
    OnError,
    check_length,
    refuse,
    sound_lines,
)
from transfer_cli.data.records import MAX_COLUMNS, Record, json_kind
from transfer_cli.data.usual_names import is_usual_name
from transfer_cli.errors import DataError
from transfer_cli.safe_files import STRICT_JSON

MAX_WHOLE_BYTES = 64 * 2**20
"""An object has at most this size: a value of 2 bytes takes 60 in memory."""

_ROW_KEYS = ("data", "rows", "records", "examples", "items", "instances", "results", "documents")
"""Names below which people write rows."""

_TURN_KEYS = {"role", "content"}, {"from", "value"}
"""What turns of a conversation hold."""

_OPENING, _COMMAS, _EMPTY = (re.compile(way) for way in (r"[\s\ufeff]*\[?\s*", r"[\s,\]]*", ""))
_CHUNK_CHARACTERS = 2**18
_LOOKED_AT_ROWS = 1000


def as_json_lines(source: LineSource) -> LineSource:
    """Return a file in JSON as JSON lines; one that has them is returned as it is."""
    name, stream = source.name, source.stream
    if not isinstance(stream, io.BufferedReader):
        return source
    start = source.start.decode(source.encoding, errors="ignore").lstrip("\ufeff \t\r\n")
    if start.startswith("["):
        return _rows_as_lines(source, _elements(io.TextIOWrapper(stream, source.encoding), name))
    if not start.startswith("{"):
        return source
    line, _, rest = start.partition("\n")
    if rest.strip() and _parse_object(line) is not None:
        return source
    end = _end_of_first(start)
    if end is not None and start[end:].strip():  # objects of several lines each
        return _rows_as_lines(source, _elements(io.TextIOWrapper(stream, source.encoding), name))
    # A byte that is no character is reported where the line is read.
    escaped = io.TextIOWrapper(stream, source.encoding, "surrogateescape")
    text = _read_more(escaped, "", name, MAX_WHOLE_BYTES + 1)
    if len(text) > MAX_WHOLE_BYTES:
        raise DataError(
            f"{name} is one JSON object of more than {MAX_WHOLE_BYTES // 2**20} MiB. Write a line "
            "for each row, as jq -c and pandas' to_json(orient='records', lines=True) do."
        )
    whole = _parse_object(text.lstrip("\ufeff"))
    rows = None if whole is None else _table_rows(whole, name)
    if rows is None:
        raw = text.encode(source.encoding, "surrogateescape")
        return replace(source, start=raw[:PEEKED_BYTES], stream=io.BytesIO(raw))
    return _rows_as_lines(source, rows)


def json_rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a file of JSON lines, plain or packed."""
    return json_records(readers.numbered_lines(path), str(path))


def json_file_rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a JSON file, of lines or of one list or object."""
    name = str(path)
    with closing(readers.open_file(path)) as file:
        start, stream = readers.peek(file, PEEKED_BYTES, name)
        source = as_json_lines(readers.recognise_source(start, stream, name, None))
        yield from json_records(source.lines(), name)


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
        fault = f"{where}: not JSON ({error.msg} at column {error.colno})."
        raise DataError(fault, "not JSON") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {json_kind(value)}, expected one JSON object {{...}} on every line."
        )
    if len(value) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(value):,} values, the most is {MAX_COLUMNS:,}.")
    return value


class _RowLines:
    """Rows as the lines of a stream."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._left = b""

    def readline(self, size: int, /) -> bytes:
        line = self._left or next(self._lines, b"")
        self._left = line[size:]
        return line[:size]


def _rows_as_lines(source: LineSource, rows: Iterable[object]) -> LineSource:
    lines = (_json_line(row) for row in rows)
    first: list[bytes] = []
    for line in islice(lines, _LOOKED_AT_ROWS):
        first.append(line)
        if len(line) > MAX_LINE_BYTES // 2:
            break
    stream = _RowLines(chain(first, lines))
    return replace(source, start=b"".join(first), stream=stream, encoding="utf-8")


def _json_line(row: object) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which is refused where it is read
        return json.dumps(row).encode() + b"\n"


def _elements(text: TextIO, name: str) -> Iterator[object]:
    """Yield the values of an array, or those that stand one after the other."""
    buffer, number = _read_more(text, "", name), 0
    first = between = _OPENING.match(buffer)
    while between and (at := between.end()) < len(buffer):
        if "[" in between[0] and buffer[at] == "]":
            return
        where = f"{name}, row {number + 1}"
        try:
            value, end = STRICT_JSON.raw_decode(buffer, at)
        except json.JSONDecodeError as error:
            check_length(len(buffer) - at, name, number + 1)
            more = _read_more(text, buffer[at:], where)
            if len(more) == len(buffer) - at:
                raise DataError(f"{where}: not JSON ({error.msg}).") from error
            buffer, between = more, _EMPTY.match(more)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}).") from error
        else:
            number += 1
            yield value
            between = _COMMAS.match(buffer, end)
            if between and between.end() == len(buffer):
                buffer = _read_more(text, between[0], where)
                between = _COMMAS.match(buffer)
    if first and between and "[" in first[0] and "]" not in between[0]:
        raise DataError(f"{name}, row {number + 1}: the array ends too early.")


def _read_more(text: TextIO, left: str, where: str, size: int = _CHUNK_CHARACTERS) -> str:
    """Return what is left of a text with more of it."""
    try:
        return left + text.read(max(size, len(left)))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: a byte that is not {error.encoding.upper()}.") from error
    except readers.UNREADABLE as error:
        raise DataError(f"{where}: cannot be read on ({error}). Is the file damaged?") from error


def _parse_object(text: str) -> dict[str, object] | None:
    """Return the object that a text is, or None."""
    try:
        value = STRICT_JSON.decode(text)
    except (ValueError, RecursionError):  # reported where it is read as lines
        return None
    return value if isinstance(value, dict) else None


def _end_of_first(text: str) -> int | None:
    """Return where the first value of a text ends, or None."""
    try:
        return STRICT_JSON.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None


def _table_rows(whole: Mapping[str, object], name: str) -> Iterator[object] | None:
    """Return the rows of a table that one object holds; None: it is a row itself."""
    columns, data = whole.get("columns"), whole.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        rows = [row for row in data if isinstance(row, list)]
        if len(rows) == len(data):
            _check_widths(rows, len(columns), name)
            return (dict(zip(map(str, columns), row, strict=True)) for row in rows)
    for key in (key for key in whole if key in _ROW_KEYS or len(whole) == 1):
        value = whole[key]
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            # One conversation is a row, and not the table of its turns.
            return None if any(turn <= value[0].keys() for turn in _TURN_KEYS) else iter(value)
    values = list(whole.values())
    if all(isinstance(value, list) for value in values):
        lists = [value for value in values if isinstance(value, list)]
        is_table = len({*map(len, lists)}) == 1 and any(map(is_usual_name, whole))
        return _rows_of_columns(whole, lists) if is_table else None
    inner = [value for value in values if isinstance(value, dict)]
    if len(inner) < len(values) or not inner:
        return None
    keys = inner[0].keys()
    if any(value.keys() != keys for value in inner) or not keys:
        return None
    if all(key.isdigit() for key in keys):
        return _rows_of_columns(whole, [list(value.values()) for value in inner])
    return iter(inner) if any(map(is_usual_name, keys)) else None


def _check_widths(rows: Iterable[list[object]], width: int, name: str) -> None:
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            cells = f"{len(row):,} cells for {width:,} columns"
            raise DataError(f"{name}, row {number}: {cells}; give each column one.")


def _rows_of_columns(
    names: Collection[str], columns: Iterable[Iterable[object]]
) -> Iterator[object]:
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
