"""The rows of spreadsheets, read by a library of the extra `tables`."""

import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from transfer_cli.data.packed import MAX_UNPACKED_RATIO, UNPACKED_FREELY_BYTES
from transfer_cli.data.parquet import as_data_errors, import_library
from transfer_cli.data.readers import check_length
from transfer_cli.data.records import MAX_COLUMNS
from transfer_cli.errors import DataError, list_names

MAX_PART_BYTES = 16 * 2**20
"""Parts that a library turns into a tree, such as the styles, may have this size."""

_ROWS = re.compile(r"xl/worksheets/[^/]+\.xml|xl/sharedStrings\.xml")
_UNREAD = re.compile(r"xl/(media|embeddings|drawings|charts|theme/media|pivot\w*)/.*")
_CHUNK_BYTES = 2**16
_EMPTY_CELLS = 2**24
"""Cells that are not written may be so many beside those that are: a library makes all of them."""

_MOST_LISTED = 10


@dataclass(frozen=True)
class Book:
    """An open spreadsheet."""

    path: Path
    book: Any
    sheets: Sequence[str]
    """The names of those that have a row, in order."""

    def rows(self, sheet: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows of a sheet as CSV would hold them, with their numbers from 1.

        Empty rows are left out, and empty cells at the end of each.
        """
        with as_data_errors(self.path):
            pages = self.book[sheet]
            pages.reset_dimensions()  # what a file says of its own size is often wrong
            for number, cells in enumerate(pages.iter_rows(values_only=True), 1):
                row = [_as_cell(value) for value in cells]
                while row and not row[-1].strip():
                    row.pop()
                if row:
                    check_length(sum(map(len, row)), self.path, number)
                    yield number, row

    def sheet_name(self, sheet: str | int, key: str) -> str:
        """Return the name of a sheet, given its name or its number from 1."""
        names = [page.title for page in self.book.worksheets]
        if sheet in names:
            return str(sheet)
        if str(sheet).isdecimal() and 0 < int(sheet) <= len(names):
            return str(names[int(sheet) - 1])
        listing = list_names(map(repr, names), _MOST_LISTED)
        raise DataError(f"{self.path}: {key}={sheet}, but its sheets are {listing}.")


@contextmanager
def open_book(path: Path) -> Iterator[Book]:
    """Open a spreadsheet."""
    openpyxl = import_library(path, "openpyxl")
    with as_data_errors(path):
        check_size(path)
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        whole_book = Book(path, book, [page.title for page in book.worksheets])
        if not whole_book.sheets:
            raise DataError(f"{path} has no sheet of cells.")
        full = [sheet for sheet in whole_book.sheets if next(whole_book.rows(sheet), None)]
        yield replace(whole_book, sheets=full or whole_book.sheets)
    finally:
        book.close()


def _as_cell(value: object) -> str:
    """Return the value of a cell as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


# ---------------------------------------------------------------------------------- bounds


def check_size(path: Path) -> None:
    """Refuse a spreadsheet that would fill the memory, before a library takes any for it.

    It is a zip archive of XML, which is packed to a thousandth where it repeats itself. Its parts
    are read here once as a stream, without keeping them.
    """
    with zipfile.ZipFile(path) as packed:
        parts = packed.infolist()
        unpacked = sum(part.file_size for part in parts)
        if unpacked > max(UNPACKED_FREELY_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size):
            raise DataError(f"{path} unpacks to {unpacked:,} bytes. Is this a spreadsheet?")
        for part in parts:
            if _ROWS.fullmatch(part.filename):
                with packed.open(part) as stream:
                    is_shared = part.filename.endswith("sharedStrings.xml")
                    # Texts that cells share are counted, not in which rows they stand.
                    _RowCounter(f"{path}, texts of cells" if is_shared else str(path)).read(stream)
            elif part.file_size > MAX_PART_BYTES and not _UNREAD.fullmatch(part.filename):
                raise DataError(
                    f"{path}: its {part.filename} has {part.file_size:,} bytes, the most is "
                    f"{MAX_PART_BYTES:,}. Save the sheet as CSV."
                )


class _RowCounter:
    """Counts the text and the cells of each row; a text that cells share is a row of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._row = self._size = 0
        self._width = self._num_cells = self._num_made = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.EntityDeclHandler = self._entity

    def read(self, stream: IO[bytes]) -> None:
        """Read a part."""
        num_bytes = 0
        while chunk := stream.read(_CHUNK_BYTES):
            self._parser.Parse(chunk)
            num_bytes += len(chunk)
            # What has not ended yet, such as the value of an attribute, is kept by the parser.
            check_length(num_bytes - self._parser.CurrentByteIndex, self._path, self._row + 1)

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if name.endswith("row"):
            number = attributes.get("r", "")
            self._row = int(number) if number.isdigit() else self._row + 1
            self._size = self._width = 0
        elif name.rpartition(":")[2] == "si":
            self._row, self._size = self._row + 1, 0
        elif name.rpartition(":")[2] == "c":
            self._num_cells += 1
            self._width = _column(attributes.get("r", ""), self._width + 1)
            if self._width > MAX_COLUMNS:
                raise DataError(
                    f"{self._path}, line {self._row}: {self._width:,} columns, the most is "
                    f"{MAX_COLUMNS:,}. Delete the cells that lie far out."
                )

    def _end(self, name: str) -> None:
        if name.endswith("row"):
            self._num_made += self._width
            if self._num_made > _EMPTY_CELLS + 64 * self._num_cells:
                raise DataError(
                    f"{self._path}, line {self._row}: up to here {self._num_made:,} cells, of "
                    f"which {self._num_cells:,} are written. Delete the cells that lie far out."
                )

    def _text(self, text: str) -> None:
        self._size += len(text)
        check_length(self._size, self._path, self._row)

    def _entity(self, *_: object) -> None:
        raise DataError(f"{self._path} defines entities of XML, which no spreadsheet needs.")


def _column(place: str, default: int) -> int:
    """Return the number of the column of a place such as `AB12`."""
    letters = re.match("[A-Z]{1,3}", place)
    if letters is None:
        return default
    number = 0
    for letter in letters[0]:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number
