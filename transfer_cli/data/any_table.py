"""Tables of any format, looked at before they are read, and rows of them that are left out."""

import io
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from transfer_cli.data import layout, readers, sheets
from transfer_cli.data.columns import ANY, TEXT, Chosen, Wanted, choose
from transfer_cli.data.layout import Layout
from transfer_cli.data.readers import BrokenLine, LineStream, OnError, Record, nested_names
from transfer_cli.errors import DataError
from transfer_cli.safe_files import printable

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOKED_AT_BYTES = 2**22
"""So much of the beginning of a file is looked at, and of it so many rows."""
LOOKED_AT_ROWS = 10_000

MOST_NAMED = 20
"""Bad rows that are named one by one; of the others it is said how many there are."""

_DELIMITER_ROWS = 200


@dataclass(frozen=True)
class OpenTable:
    """A table that was looked at and not read yet.

    Args:
        name: What to call it in messages.
        names: Of its columns, in order; none if the beginning cannot be read.
        sample: Its first rows.
        records: Yields the rows, and tells a function of those that cannot be read.
    """

    name: str
    names: Sequence[str]
    sample: Sequence[Mapping[str, object]]
    records: Callable[[OnError], Iterator[Record]]
    unusual: Mapping[str, str]
    is_uneven: bool = False

    def columns(self, asked: Wanted, own: Wanted = ANY) -> Chosen:
        """Return the columns to read; say in one line what was recognised of the table.

        Args:
            asked: What was typed.
            own: The columns of another table, which are taken where this one has them.

        Raises:
            DataError: It is not clear which are meant.
        """
        asked = asked.or_like(own, self.names)
        found = choose(self.names, self.sample, asked, self.name)
        said = [*self.unusual.values(), *found.said]
        if said:
            keys = [*self.unusual, *(each.partition(" ")[0] for each in found.said)]
            others = ", ".join(f"{asked.keys}{key}" for key in keys)
            log.info("%s: %s; otherwise say %s", printable(self.name), ", ".join(said), others)
        return found


@contextmanager
def opened(path: Path, table_format: str, given: Layout, asked: Wanted) -> Iterator[OpenTable]:
    """Open the file of a table and look at it.

    Args:
        path: The file.
        table_format: One of `readers.TABLE_FORMATS` or `readers.SHEET_FORMATS`, or `text`: each
            line is a row, and its column is called "text".
        given: What need not be recognised.
        asked: The columns that are wanted.

    Raises:
        DataError: It cannot be opened or unpacked.
    """
    name = str(path)
    if table_format == "parquet":
        rows = partial(sheets.parquet_records, path)
        yield _open(name, rows, _not_empty(name, lambda _: rows()), {})
    elif table_format == "xlsx":
        cells = partial(sheets.sheet_rows, path)
        unusual: dict[str, str] = {}
        header = _header([row for _, row in _first(cells)], given, asked, unusual)
        read = partial(
            readers.named_rows, lambda _: cells(), name, header=header, cure="Empty the others."
        )
        yield _open(name, partial(read, on_error=_ignore), _not_empty(name, read), unusual)
    else:
        with closing(readers.open_file(path)) as stream:
            start, whole = readers.looked_at(stream, LOOKED_AT_BYTES, name)
            yield of_lines(start, whole, name, table_format, given, asked)


def of_lines(
    start: bytes, stream: LineStream, name: str, table_format: str, given: Layout, asked: Wanted
) -> OpenTable:
    """Return a table of lines, given its first bytes and all of it; for the others see `opened`."""
    encoding = given.encoding or layout.encoding_of(start)
    unusual = {}
    if given.encoding is None and encoding != "utf-8":
        unusual["encoding"] = f"read as {layout.shown(encoding)}"
    if layout.is_wide(encoding) and isinstance(stream, io.BufferedReader):
        start = start.decode(encoding, errors="ignore").encode()
        stream, encoding = readers.in_utf8(stream, encoding), "utf-8"
    if table_format == "text":
        return OpenTable(name, [], [], partial(_lines, stream, name, encoding), unusual)
    lines = _first_lines(start, name, encoding)
    read = partial(readers.table_records, name=name, table_format=table_format)
    names: list[str] = []
    if table_format != "jsonl":
        usual = readers.USUAL_DELIMITER[table_format]
        mark = given.delimiter or layout.delimiter_of(lines[:_DELIMITER_ROWS], usual)
        if given.delimiter is None and mark != usual:
            unusual["delimiter"] = f"columns parted by {layout.delimiter_name(mark)}s"
        rows = layout.rows_of(lines, mark, quotes=table_format == "csv" or mark != "\t")
        header = _header(rows, given, asked, unusual)
        read = partial(read, delimiter=mark, header=header)
        names = readers.column_names(rows[0], header=header) if rows else []
    return _open(
        name,
        lambda: read(enumerate(lines, 1), on_error=_ignore),
        lambda on_error: read(readers.all_lines(stream, name, encoding), on_error=on_error),
        unusual,
        names,
        is_uneven=table_format == "jsonl",
    )


def _open(
    name: str,
    first: Callable[[], Iterator[Record]],
    records: Callable[[OnError], Iterator[Record]],
    unusual: Mapping[str, str],
    names: Sequence[str] = (),
    *,
    is_uneven: bool = False,
) -> OpenTable:
    sample = [record.fields for record in _first(first)]
    found = dict.fromkeys(name for fields in sample for name in fields)
    names = list(found) or names
    return OpenTable(name, names, sample, records, unusual, is_uneven)


def _lines(stream: LineStream, name: str, encoding: str, on_error: OnError) -> Iterator[Record]:
    """Yield the lines of a text as rows with one column."""
    for number, line in readers.sound_lines(readers.all_lines(stream, name, encoding), on_error):
        yield Record(number, {TEXT: line})


def _not_empty(
    name: str, read: Callable[[OnError], Iterator[Record]]
) -> Callable[[OnError], Iterator[Record]]:
    return partial(readers.not_empty, read, name)


def _first(records: Callable[[], Iterator[T]]) -> list[T]:
    """Return the first rows, up to one that cannot be read: all of them are read again."""
    found: list[T] = []
    with suppress(DataError):
        found.extend(islice(records(), LOOKED_AT_ROWS))
    return found


def _ignore(error: DataError) -> None:
    """Look on: what is wrong with a row is said when it is read."""


def _first_lines(start: bytes, name: str, encoding: str) -> list[str]:
    """Return the first lines, without one that may be cut off; none if the first is broken."""
    lines: list[str] = []
    with suppress(DataError):
        numbered = readers.all_lines(io.BytesIO(start), name, encoding)
        lines += (line for _, line in islice(numbered, LOOKED_AT_ROWS))
    if lines and isinstance(lines[0], BrokenLine):
        return []
    return lines[:-1] if len(start) >= LOOKED_AT_BYTES else lines


def _header(
    rows: Sequence[Sequence[str]], given: Layout, asked: Wanted, unusual: dict[str, str]
) -> bool:
    if given.header is not None:
        return given.header
    header = layout.has_header(rows, asked.names)
    if not header:
        unusual["header"] = "no header, so columns have numbers"
    return header


class Skipped:
    """Rows that are left out: each of the first is named, and at the end they are counted."""

    def __init__(self) -> None:
        self.count = 0
        self.first: DataError | None = None

    def __call__(self, error: DataError) -> None:
        """Name a row, if not too many were named before."""
        self.count += 1
        self.first = self.first or error
        if self.count <= MOST_NAMED:
            log.warning("skipped: %s", printable(str(error)))
        if self.count == MOST_NAMED:
            log.warning("further rows that cannot be read are only counted")

    def say(self, answered: int, name: str) -> None:
        """Say how many were left out.

        Raises:
            DataError: All of them were.
        """
        if self.first is None:
            return
        if answered == 0:
            raise DataError(
                f"{name}: none of its {self.count:,} rows can be read. The first: {self.first}"
            )
        rows = self.count + answered
        log.warning("skipped %s of %s rows, which cannot be read", f"{self.count:,}", f"{rows:,}")


@dataclass(frozen=True)
class Refuse:
    """Raises the fault of a row, with the way round it: a key to type."""

    key: str

    def __call__(self, error: DataError) -> None:
        """Raise the error."""
        raise DataError(f"{error} With {self.key}=skip such rows are left out.") from error


def sound_rows(
    table: OpenTable,
    columns: Collection[str],
    made: Callable[[Record], T],
    on_error: OnError,
) -> Iterator[T]:
    """Yield what is made of each record; `on_error` receives the faults of rows.

    Raises:
        DataError: The table lacks one of the columns, so that every row would be faulty.
    """
    for record in table.records(on_error):
        try:
            found = made(record)
        except DataError as error:
            # JSON lines may each have other names.
            if not table.is_uneven and not {*nested_names(record.fields)} >= set(columns):
                raise
            on_error(error)
        else:
            yield found
