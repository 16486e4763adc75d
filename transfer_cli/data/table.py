"""Tables of any format: looked at, then read row by row.

What cannot be read is refused or left out; a fault names the file and the line. Columns are chosen
in `columns`, and what parts them is recognised in `layout`.
"""

import csv
import io
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile, islice
from pathlib import Path
from typing import TypeVar

from transfer_cli.data import json_tables, layout, parquet, readers, sheets
from transfer_cli.data.columns import choose_columns
from transfer_cli.data.layout import LETTERS, Beginning, Layout
from transfer_cli.data.readers import MAX_LINE_BYTES, BrokenLine, LineSource, LineStream, OnError
from transfer_cli.data.records import Record, check_columns, nested_names
from transfer_cli.data.sheets import Book
from transfer_cli.data.usual_names import is_usual_name
from transfer_cli.data.wanted import ANY, TEXT, Chosen, Wanted
from transfer_cli.errors import DataError, list_names
from transfer_cli.safe_files import printable

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOKED_AT_ROWS = 10_000
"""So many rows of the beginning of a file are looked at."""

_MAX_REREADS = 8
"""How often lines may be read again on average, in search of a row after a broken one."""

_DELIMITER_ROWS = 200
_MOST_LINES = 5
_MOST_REASONS = 5
_QUOTES = {
    layout.DOUBLE: "values in quotes",
    layout.BACKSLASH: "quotes in values behind backslashes",
    LETTERS: "quotes read as letters",
}
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class OpenTable:
    """A table that was looked at and not read yet.

    Args:
        name: What to call it in messages.
        names: Of its columns, in order; none if the beginning cannot be read.
        records: Yields the rows, and tells a function of those that cannot be read.
    """

    name: str
    names: Sequence[str]
    sample: Sequence[Mapping[str, object]]
    records: Callable[[OnError], Iterator[Record]]
    unusual: Mapping[str, str]
    is_uneven: bool = False

    def columns(self, wanted: Wanted, other: Wanted = ANY) -> Chosen:
        """Return the columns to read; say in one line what was recognised of the table.

        Args:
            other: The columns of another table, which are taken where this one has them.
        """
        wanted = wanted.filled_from(other, self.names)
        try:
            chosen = choose_columns(self.names, self.sample, wanted, self.name)
        except DataError:
            if not self.sample:  # what is wrong with the first row says more
                next(self.records(readers.refuse), None)
            raise
        notes = [*self.unusual.values(), *chosen.notes]
        if notes:
            keys = [*self.unusual, *(words.partition(" ")[0] for words in chosen.notes)]
            others = ", ".join(f"{wanted.keys}{key}" for key in keys)
            log.info("%s: %s; otherwise say %s", printable(self.name), ", ".join(notes), others)
        return chosen


@contextmanager
def open_table(path: Path, table_format: str, known: Layout, wanted: Wanted) -> Iterator[OpenTable]:
    """Open the file of a table and look at it.

    Args:
        table_format: One of `readers.TABLE_FORMATS` or `readers.SHEET_FORMATS`, or `text`: each
            line is a row, and its column is called "text".
        known: What need not be recognised.
    """
    name = str(path)
    if table_format == "parquet":
        rows = partial(parquet.parquet_records, path)
        yield _make_table(name, rows(), partial(not_empty, lambda _: rows(), name), {})
    elif table_format == "xlsx":
        with sheets.open_book(path) as book:
            yield _sheet_table(book, name, known, wanted)
    else:
        with closing(readers.open_file(path)) as stream:
            start, whole = readers.peek(stream, readers.PEEKED_BYTES, name)
            yield table_of_lines(start, whole, name, table_format, known, wanted)


def table_of_lines(
    start: bytes, stream: LineStream, name: str, table_format: str, known: Layout, wanted: Wanted
) -> OpenTable:
    """Return a table of lines, given its first bytes and all of it; else see `open_table`."""
    source = readers.recognise_source(start, stream, name, known.encoding, f"{wanted.keys}encoding")
    unusual = {"encoding": source.note} if source.note else {}
    if table_format == "text":
        return OpenTable(name, [], [], partial(_lines, source), unusual)
    if table_format == "jsonl":
        source = json_tables.as_json_lines(source)
        return _make_table(
            name,
            json_tables.json_records(enumerate(_first_lines(source), 1), name, _ignore),
            lambda on_error: table_records(source.lines(), name, "jsonl", on_error=on_error),
            unusual,
            is_uneven=True,
        )
    lines = _first_lines(source)
    separator = layout.separator_in(lines[0]) if lines else None
    begins = _first_line(known, 2 if separator else 1)
    below = lines[begins - 1 :]
    usual = layout.USUAL_DELIMITER[table_format]
    mark = known.delimiter or separator or layout.detect_delimiter(below[:_DELIMITER_ROWS], usual)
    if known.delimiter is None and mark != usual:
        unusual["delimiter"] = f"columns parted by {layout.delimiter_name(mark)}s"
    usual_quotes = layout.usual_quotes(table_format, mark)
    quotes = known.quotes or layout.detect_quotes(below, mark, usual_quotes)
    if known.quotes is None and quotes != usual_quotes:
        unusual["quotes"] = _QUOTES[quotes]
    rows = [(begins - 1 + line, row) for line, row in layout.rows_of(below, mark, quotes)]
    beginning = _beginning(rows, begins, name, known, wanted, unusual)

    def records(numbered: Iterable[tuple[int, str]], on_error: OnError) -> Iterator[Record]:
        below = dropwhile(lambda line: line[0] < beginning.line, numbered)
        return table_records(
            below, name, table_format, delimiter=mark, quotes=quotes, header=beginning.header,
            on_error=on_error, keys=wanted.keys
        )  # fmt: skip

    return _make_table(
        name,
        records(enumerate(lines, 1), _ignore),
        lambda on_error: records(source.lines(), on_error),
        unusual,
        _names(rows, beginning),
        header=beginning.header,
    )


def _sheet_table(book: Book, name: str, known: Layout, wanted: Wanted) -> OpenTable:
    """Return a sheet of a spreadsheet as a table."""
    unusual: dict[str, str] = {}
    sheet = book.sheet_name(known.sheet, f"{wanted.keys}sheet") if known.sheet is not None else None
    if sheet is None:
        sheet = max(book.sheets, key=lambda candidate: _likeness(book, candidate, wanted))
        if len(book.sheets) > 1:
            unusual["sheet"] = f"sheet {sheet!r} of {len(book.sheets)}"
    rows = _first_rows(book.rows(sheet))
    begins = _first_line(known, 1)
    beginning = _beginning(
        [row for row in rows if row[0] >= begins], begins, name, known, wanted, unusual
    )
    names = _names(rows, beginning)

    def cells(_: OnError) -> Iterator[tuple[int, list[str]]]:
        for number, row in book.rows(sheet):
            if number >= beginning.line:
                yield number, row + [""] * (len(names) - len(row))

    read = partial(named_rows, cells, name, header=beginning.header, cure="Empty the others.")
    return _make_table(
        name,
        read(on_error=_ignore),
        partial(not_empty, read, name),
        unusual,
        names,
        header=beginning.header,
    )


def _likeness(book: Book, sheet: str, wanted: Wanted) -> tuple[bool, bool, bool]:
    """Return how much a sheet is like a table: its header is known, it has columns, and rows."""
    rows = list(islice(book.rows(sheet), _DELIMITER_ROWS))
    beginning = layout.detect_beginning(rows, wanted.names)
    names = _names(rows, beginning)
    is_named = any(name in wanted.names or is_usual_name(name) for name in names)
    return is_named and beginning.header, len(names) > 1, len(rows) > 1


def _first_line(known: Layout, first: int) -> int:
    """Return the line from which a table is read, at least `first`."""
    is_line = known.header is not None and not isinstance(known.header, bool)
    return max(first, int(known.header or 1)) if is_line else first


def _beginning(
    rows: layout.Rows, start: int, name: str, known: Layout, wanted: Wanted, unusual: dict[str, str]
) -> Beginning:
    """Return where a table begins, as typed or recognised; what is unusual is noted."""
    if not rows and start > 2:
        raise DataError(f"{name} has no rows from line {start} on, see {wanted.keys}header.")
    if known.header is not None:
        return Beginning(start, known.header is not False)
    beginning = layout.detect_beginning(rows, wanted.names)
    if not beginning.is_sure:
        line, row = rows[0]
        shown = printable(", ".join(row))[:_LONGEST_SHOWN]
        raise DataError(
            f"{name}: line {line} ({shown}) may be the header or not; say {wanted.keys}header="
            f"{line}, the line of another, or {wanted.keys}header=false."
        )
    if not beginning.header:
        unusual["header"] = "no header, so columns have numbers"
    elif rows and beginning.line > rows[0][0]:
        unusual["header"] = f"header in line {beginning.line}"
    return beginning


def _names(rows: layout.Rows, beginning: Beginning) -> list[str]:
    first = next((row for number, row in rows if number >= beginning.line), [])
    return column_names(first, header=beginning.header)


def _make_table(
    name: str,
    first: Iterator[Record],
    records: Callable[[OnError], Iterator[Record]],
    unusual: Mapping[str, str],
    names: Sequence[str] = (),
    *,
    header: bool = False,
    is_uneven: bool = False,
) -> OpenTable:
    whole = partial(_without_headers, records, name) if header else records
    begun = _without_headers(lambda _: first, name, _ignore) if header else first
    sample = [record.fields for record in _first_rows(begun)]
    seen = dict.fromkeys(name for fields in sample for name in fields)
    names = list(seen) or names
    return OpenTable(name, names, sample, whole, unusual, is_uneven)


def _without_headers(
    records: Callable[[OnError], Iterator[Record]], name: str, on_error: OnError
) -> Iterator[Record]:
    """Yield records without those that repeat the header, as in files that were put together.

    Of several columns the names may be in other capitals, with spaces around them.
    With its names in another order all that follows would be read into wrong columns.
    """
    lines: list[str] = []
    for record in records(on_error):
        names, cells = [*record.fields], [str(value) for value in record.fields.values()]
        if len(names) > 1:
            names = [name.strip().casefold() for name in names]
            cells = [cell.strip().casefold() for cell in cells]
        if any(cells) and all(cell in (key, "") for key, cell in zip(names, cells, strict=True)):
            lines.append(str(record.line))
        elif len(names) > 1 and {*cells} == {*names}:
            fault = "the names of the columns in another order"
            cure = "Were files put together? Give them one by one."
            on_error(DataError(f"{name}, line {record.line}: {fault}. {cure}"))
        else:
            yield record
    if lines and on_error is not _ignore:
        shown = list_names(lines, _MOST_LINES)
        log.warning("%s: the header comes again in line %s, left out", printable(name), shown)


def _lines(source: LineSource, on_error: OnError) -> Iterator[Record]:
    """Yield the lines of a text as rows with one column."""
    for number, line in readers.sound_lines(source.lines(), on_error):
        yield Record(number, {TEXT: line})


def _first_rows(records: Iterator[T]) -> list[T]:
    """Return the first rows, up to one that cannot be read: all of them are read again."""
    rows: list[T] = []
    with suppress(DataError):
        rows.extend(islice(records, LOOKED_AT_ROWS))
    return rows


def _ignore(error: DataError) -> None:
    """Look on: what is wrong with a row is said when it is read."""


def _first_lines(source: LineSource) -> list[str]:
    """Return the first lines, without one that may be cut off; none if the first is broken."""
    lines: list[str] = []
    with suppress(DataError):
        begun = replace(source, stream=io.BytesIO(source.start))
        lines += (line for _, line in islice(begun.lines(), LOOKED_AT_ROWS))
    if lines and isinstance(lines[0], BrokenLine):
        return []
    is_cut = len(lines) < LOOKED_AT_ROWS and len(source.start) >= readers.PEEKED_BYTES
    return lines[:-1] if is_cut else lines


# ---------------------------------------------------------------------------------- rows


def table_records(
    lines: Iterable[tuple[int, str]],
    name: str,
    table_format: str,
    *,
    delimiter: str | None = None,
    quotes: str | None = None,
    header: bool = True,
    on_error: OnError = readers.refuse,
    keys: str = "data.",
) -> Iterator[Record]:
    """Yield the rows of a table, given its lines.

    Empty lines are left out. CSV has quotes as RFC 4180 says, so that a value may hold commas and
    line ends; TSV has none if its columns are parted by tabs: a quote there is a quote. A carriage
    return within a line is part of a value.

    Args:
        lines: Numbered lines, from `all_lines` if `on_error` is to receive broken ones.
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
        yield from not_empty(partial(json_tables.json_records, lines, name), name, on_error)
        return
    mark = delimiter or layout.USUAL_DELIMITER[table_format]
    quotes = quotes or layout.usual_quotes(table_format, mark)

    def records(note: OnError) -> Iterator[Record]:
        rows = partial(_rows, lines, name, mark, quotes=quotes, keys=keys)
        cure = (_LETTERS if quotes == LETTERS else _QUOTE).format(mark, keys)
        return named_rows(rows, name, note, header=header, cure=cure)

    yield from not_empty(records, name, on_error)


def not_empty(
    records: Callable[[OnError], Iterator[Record]], name: str, on_error: OnError
) -> Iterator[Record]:
    """Yield records: at least one, or a fault that is reported."""
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


_LETTERS = "Part columns by one {0!r} each. If values are in quotes: {1}quotes=double."
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
        on_error: Receives the fault of each ragged or broken row.
        header: See `table_records`.
        cure: For a row of more or fewer cells than there are columns.
    """
    columns: list[str] | None = None
    expected = ""

    def note(error: DataError) -> None:
        # Without the names of the columns nothing can be read.
        (readers.refuse if columns is None else on_error)(error)

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
        width = "1 column" if len(row) == 1 else f"{len(row)} columns"
        fault = f"{name}, line {number}: {width}, but {expected} has {len(columns)}. {cure}"
        note(DataError(fault, f"more or fewer than {len(columns)} columns"))


def column_names(first: Sequence[str], *, header: bool) -> list[str]:
    """Return the names of the columns, given the first row; one without a name has its number."""
    return [name if header and name.strip() else str(place) for place, name in enumerate(first, 1)]


class _LinesOfRows:
    """Hands lines to a reader of CSV, keeps those of the row being read, and takes some back.

    What is read again is limited, or a hostile file could take a time that is the square of its
    size.
    """

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        self._new, self._again = iter(lines), deque[tuple[int, str]]()
        self._size, self._spare = 0, _MAX_REREADS * MAX_LINE_BYTES
        self.row: list[tuple[int, str]] = []

    def __iter__(self) -> "_LinesOfRows":
        return self

    def __next__(self) -> str:
        # Unlike a generator, this goes on after its end where lines were taken back.
        numbered = self._again.popleft() if self._again else next(self._new)
        self.row.append(numbered)
        self._size += len(numbered[1]) + 1
        if self._size > MAX_LINE_BYTES:
            raise csv.Error(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
        return f"{numbered[1]}\n"

    def begin_row(self) -> None:
        self._spare += _MAX_REREADS * self._size
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
    reader = layout.split_lines(source, mark, quotes)
    while True:
        source.begin_row()
        try:
            values = next(reader, None)  # takes all lines of a row
        except csv.Error as error:
            (first, _), (last, _) = source.row[0], source.row[-1]
            cure = f"Is a quote missing or too many? If quotes are letters: {keys}quotes=none."
            if not source.take_back():
                cure += f" Up to line {last}, all is left out with it."
            fault = f"{name}, line {first}: a broken row ({error}). {cure}"
            on_error(DataError(fault, "a broken row"))
            continue
        if values is None:
            return
        broken = [line for _, line in source.row if isinstance(line, BrokenLine)]
        if broken:
            on_error(broken[0].error)
        elif values:
            yield source.row[0][0], values


# ------------------------------------------------------------------------- rows left out


class Skipped:
    """Rows that are left out, by what is wrong with them.

    Args:
        name: What to call their table in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = self.answered = 0
        self.first: DataError | None = None
        self._lines: dict[str, list[str]] = {}

    def __call__(self, error: DataError) -> None:
        """Note a row."""
        self.count += 1
        self.first = self.first or error
        line, _, fault = str(error).removeprefix(f"{self.name}, line ").partition(": ")
        self._lines.setdefault(error.reason or fault.partition(". ")[0], []).append(line)

    def __str__(self) -> str:
        """Return how many were left out, why, and the first lines of each reason."""
        reasons = sorted(self._lines.items(), key=lambda reason: -len(reason[1]))
        shown = [
            f"{reason}{f' ({len(lines):,})' if len(reasons) > 1 else ''}, "
            f"line{'s' * (len(lines) > 1)} {', '.join(lines[:_MOST_LINES])}"
            f"{', ...' if len(lines) > _MOST_LINES else ''}"
            for reason, lines in reasons
        ]
        rows = f"{self.count:,} of {self.count + self.answered:,} rows left out"
        return f"{self.name}: {rows}: {'; '.join(shown[:_MOST_REASONS])}" + (
            f"; {len(shown) - _MOST_REASONS:,} more reasons" if len(shown) > _MOST_REASONS else ""
        )


def warn_of_skipped(tables: Sequence[Skipped]) -> None:
    """Say in one line what was left out of tables; of each something must be left."""
    for skipped in tables:
        if skipped.first is not None and skipped.answered == 0:
            raise DataError(
                f"{skipped.name}: none of its {skipped.count:,} rows can be read. The first: "
                f"{skipped.first}"
            )
    if shown := [str(skipped) for skipped in tables if skipped.count]:
        log.warning("%s", printable("; ".join(shown)))


@dataclass(frozen=True)
class Refuse:
    """Raises the fault of a row, with the way round it: a key to type."""

    key: str

    def __call__(self, error: DataError) -> None:
        """Raise the error."""
        raise DataError(f"{error} With {self.key}=skip such rows are left out.") from error


def sound_rows(
    table: OpenTable, columns: Collection[str], make_row: Callable[[Record], T], on_error: OnError
) -> Iterator[T]:
    """Yield what is made of each record; `on_error` receives the faults of rows."""
    for record in table.records(on_error):
        try:
            row = make_row(record)
        except DataError as error:
            # JSON lines may each have other names.
            if not table.is_uneven and not {*nested_names(record.fields)} >= set(columns):
                raise
            on_error(error)
        else:
            yield row
