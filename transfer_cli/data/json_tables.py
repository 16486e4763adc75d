"""Rows in JSON: lines, and tables that become such: arrays, objects of columns, rows below a key.

Of an array one row at a time is in memory; an object is read whole, up to a limit.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

from transfer_cli.data import readers
from transfer_cli.data.readers import (
    LOOKED_AT_BYTES,
    MAX_LINE_BYTES,
    LineSource,
    OnError,
    check_length,
    refuse,
    sound_lines,
)
from transfer_cli.data.records import MAX_COLUMNS, Record, json_kind
from transfer_cli.data.usual_names import is_known
from transfer_cli.errors import DataError
from transfer_cli.safe_files import STRICT_JSON

MAX_WHOLE_BYTES = 64 * 2**20
"""An object has at most this size: a value of 2 bytes takes 60 in memory."""

_ROWS = ("data", "rows", "records", "examples", "items", "instances", "results", "documents")
"""Names below which people write rows."""

_TURNS = {"role", "content"}, {"from", "value"}
"""What turns of a conversation hold."""

_FIRST, _BETWEEN, _NOTHING = (re.compile(way) for way in (r"[\s\ufeff]*\[?\s*", r"[\s,\]]*", ""))
_CHUNK_CHARACTERS = 2**18
_LOOKED_AT_ROWS = 1000


def as_lines(source: LineSource, name: str) -> LineSource:
    """Return a file in JSON as JSON lines; one that has them is returned as it is."""
    stream = source.stream
    if not isinstance(stream, io.BufferedReader):
        return source
    start = source.start.decode(source.encoding, errors="ignore").lstrip("\ufeff \t\r\n")
    if start.startswith("["):
        return _of_rows(_elements(_text_of(stream, source.encoding), name), source.said)
    if not start.startswith("{"):
        return source
    line, _, rest = start.partition("\n")
    if rest.strip() and _object_in(line) is not None:
        return source
    end = _end_of_first(start)
    if end is not None and start[end:].strip():  # objects of several lines each
        return _of_rows(_elements(_text_of(stream, source.encoding), name), source.said)
    # A byte that is no character is said where the line is read.
    text = _text_of(stream, source.encoding, "surrogateescape").read(MAX_WHOLE_BYTES + 1)
    if len(text) > MAX_WHOLE_BYTES:
        raise DataError(
            f"{name} is one JSON object of more than {MAX_WHOLE_BYTES // 2**20} MiB. Write a line "
            "for each row, as jq -c and pandas' to_json(orient='records', lines=True) do."
        )
    whole = _object_in(text.lstrip("\ufeff"))
    rows = None if whole is None else _rows_in(whole)
    if rows is None:
        raw = text.encode(source.encoding, "surrogateescape")
        return LineSource(raw[:LOOKED_AT_BYTES], io.BytesIO(raw), source.encoding, source.said)
    return _of_rows(rows, source.said)


def json_rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a file of JSON lines, plain or packed."""
    return json_records(readers.numbered_lines(path), str(path))


def whole_file(path: Path) -> Iterator[Record]:
    """Yield the rows of a JSON file, of lines or of one list or object."""
    name = str(path)
    with closing(readers.open_file(path)) as file:
        start, stream = readers.looked_at(file, LOOKED_AT_BYTES, name)
        source = as_lines(readers.recognised(start, stream, name, None), name)
        yield from json_records(readers.all_lines(source.stream, name, source.encoding), name)


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
        said = f"{where}: not JSON ({error.msg} at column {error.colno})."
        raise DataError(said, "not JSON") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {json_kind(value)}, expected one JSON object {{...}} on every line."
        )
    if len(value) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(value):,} values, the most is {MAX_COLUMNS:,}.")
    return value


class _Lines:
    """Rows as the lines of a stream."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._left = b""

    def readline(self, size: int, /) -> bytes:
        line = self._left or next(self._lines, b"")
        self._left = line[size:]
        return line[:size]


def _of_rows(rows: Iterable[object], said: str) -> LineSource:
    lines = (_line(row) for row in rows)
    first: list[bytes] = []
    for line in islice(lines, _LOOKED_AT_ROWS):
        first.append(line)
        if len(line) > MAX_LINE_BYTES // 2:
            break
    return LineSource(b"".join(first), _Lines(chain(first, lines)), "utf-8", said)


def _line(row: object) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which is refused where it is read
        return json.dumps(row).encode() + b"\n"


def _text_of(stream: io.BufferedReader, encoding: str, errors: str = "strict") -> TextIO:
    return io.TextIOWrapper(stream, encoding, errors)


def _elements(text: TextIO, name: str) -> Iterator[object]:
    """Yield the values of an array, or those that stand one after the other."""
    buffer, number = _more(text, "", name), 0
    first = between = _FIRST.match(buffer)
    while between and (at := between.end()) < len(buffer):
        where = f"{name}, row {number + 1}"
        try:
            value, end = STRICT_JSON.raw_decode(buffer, at)
        except json.JSONDecodeError as error:
            check_length(len(buffer) - at, name, number + 1)
            more = _more(text, buffer[at:], where)
            if len(more) == len(buffer) - at:
                raise DataError(f"{where}: not JSON ({error.msg}).") from error
            buffer, between = more, _NOTHING.match(more)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}).") from error
        else:
            number += 1
            yield value
            between = _BETWEEN.match(buffer, end)
            if between and between.end() == len(buffer):
                buffer = _more(text, between[0], where)
                between = _BETWEEN.match(buffer)
    if first and between and "[" in first[0] and "]" not in between[0]:
        raise DataError(f"{name}, row {number + 1}: the array ends too early.")


def _more(text: TextIO, left: str, where: str) -> str:
    """Return what is left of a text with more of it."""
    try:
        return left + text.read(max(_CHUNK_CHARACTERS, len(left)))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: a byte that is not {error.encoding.upper()}.") from error


def _object_in(text: str) -> dict[str, object] | None:
    """Return the object that a text is, or None."""
    try:
        value = STRICT_JSON.decode(text)
    except (ValueError, RecursionError):  # said where it is read as lines
        return None
    return value if isinstance(value, dict) else None


def _end_of_first(text: str) -> int | None:
    """Return where the first value of a text ends, or None."""
    try:
        return STRICT_JSON.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None


def _rows_in(whole: Mapping[str, object]) -> Iterator[object] | None:
    """Return the rows of a table that one object holds; None: it is a row itself."""
    columns, data = whole.get("columns"), whole.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        return (dict(zip(map(str, columns), row, strict=False)) for row in data)
    for key in (name for name in whole if name in _ROWS or len(whole) == 1):
        rows = whole[key]
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            # One conversation is a row, and not the table of its turns.
            return None if any(turn <= rows[0].keys() for turn in _TURNS) else iter(rows)
    values = list(whole.values())
    if all(isinstance(value, list) for value in values):
        lists = [value for value in values if isinstance(value, list)]
        is_table = len({*map(len, lists)}) == 1 and any(map(is_known, whole))
        return _joined(whole, lists) if is_table else None
    inner = [value for value in values if isinstance(value, dict)]
    if len(inner) < len(values) or not inner:
        return None
    keys = inner[0].keys()
    if any(value.keys() != keys for value in inner) or not keys:
        return None
    if all(key.isdigit() for key in keys):
        return _joined(whole, [list(value.values()) for value in inner])
    return iter(inner) if any(map(is_known, keys)) else None


def _joined(names: Iterable[str], columns: Iterable[Iterable[object]]) -> Iterator[object]:
    every = list(names)
    return (dict(zip(every, row, strict=True)) for row in zip(*columns, strict=True))
