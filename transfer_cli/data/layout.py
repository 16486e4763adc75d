"""How a table is written: what stands between its columns, what quotes mean, where it begins.

All of it is recognised from the beginning of the file, by rules that give the same answer for the
same file, so a run that goes on finds what it began with.
"""

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from transfer_cli.data.encodings import WINDOWS
from transfer_cli.data.readers import MAX_LINE_BYTES
from transfer_cli.data.usual_names import is_usual_name
from transfer_cli.errors import did_you_mean

QUOTES = DOUBLE, BACKSLASH, LETTERS = ("double", "backslash", "none")
"""What a quote in a quoted value is written as, or that quotes are letters."""

USUAL_DELIMITER: Mapping[str, str] = {"csv": ",", "tsv": "\t"}

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""Those that are recognised, by the names that can be typed for them."""

Rows = Sequence[tuple[int, list[str]]]
"""Rows of cells, with the numbers of the lines on which they begin."""

_SEPARATOR = re.compile(r'"?sep=(.|\\t)"?', re.IGNORECASE)
"""The line that tells a spreadsheet program what parts columns."""

_NUMBER = re.compile(r"[-+]?[0-9]+([.,][0-9]+)*%?")
_LONGEST_NAME = 40
_MOST_WORDS = 5
_MOST_ABOVE = 20
"""Rows that may stand above a header."""


@dataclass(frozen=True)
class Layout:
    """How a table is written.

    Args:
        delimiter: What stands between columns, a character or its name in `DELIMITERS`.
        header: Whether the first row names the columns, or the line that does.
        quotes: What they mean, one of `QUOTES`.
        sheet: The name of a sheet of a spreadsheet, or its number from 1.

    None is for what has to be recognised.
    """

    delimiter: str | None = None
    encoding: str | None = None
    header: bool | int | None = None
    quotes: str | None = None
    sheet: str | int | None = None

    def __post_init__(self) -> None:
        if self.quotes is not None and self.quotes not in QUOTES:
            close = did_you_mean(self.quotes, QUOTES)
            raise ValueError(f"quotes is {self.quotes!r}, expected {', '.join(QUOTES)}.{close}")
        if self.header is not None and not isinstance(self.header, bool) and self.header < 1:
            raise ValueError(f"header is {self.header}, expected true, false or a line from 1.")
        if self.delimiter is not None:
            mark = DELIMITERS.get(self.delimiter, self.delimiter)
            if len(mark) != 1 or mark in '"\n\r\0':
                close = did_you_mean(self.delimiter, DELIMITERS)
                raise ValueError(
                    f"delimiter is {self.delimiter!r}, expected a character or one of "
                    f"{', '.join(DELIMITERS)}.{close}"
                )
            object.__setattr__(self, "delimiter", mark)
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, ValueError) as error:
                close = did_you_mean(self.encoding, ("utf-8", "utf-16", "latin-1", WINDOWS))
                raise ValueError(
                    f"encoding is {self.encoding!r}, which Python does not know.{close}"
                ) from error


@dataclass(frozen=True)
class Beginning:
    """Where a table begins: on which line, and whether the first row from there names the columns.

    `is_sure` is False where rows stand above that may be its first ones, or names may be values.
    """

    line: int = 1
    header: bool = True
    is_sure: bool = True


def delimiter_name(delimiter: str) -> str:
    """Return what people call a delimiter."""
    return next((name for name, mark in DELIMITERS.items() if mark == delimiter), repr(delimiter))


def separator_in(line: str) -> str | None:
    """Return the delimiter that a first line such as `sep=;` says, or None."""
    match = _SEPARATOR.fullmatch(line.strip(" \r\n,;"))
    # The marks that are cut off may be the one that is meant.
    match = match or _SEPARATOR.fullmatch(line.strip("\r\n"))
    return match and match[1].replace("\\t", "\t")


def detect_delimiter(lines: Sequence[str], usual: str) -> str:
    """Return what stands between the columns of a table, from its first lines.

    That is what divides most rows into as many columns.

    Args:
        usual: What it is unless another is better.
    """
    best, delimiter = (0.0, False, 0, True), usual
    for mark in DELIMITERS.values():
        rows = [row for _, row in rows_of(lines, mark)]
        width = _most_common(map(len, rows))
        if width > 1 and not (len(rows[0]) == 1 and is_usual_name(rows[0][0])):
            share = sum(len(row) == width for row in rows) / len(rows)
            is_named = any(map(is_usual_name, (cell for row in rows[:_MOST_ABOVE] for cell in row)))
            score = (share, is_named, width, mark == usual)
            if score > best:
                best, delimiter = score, mark
    return delimiter


def detect_quotes(lines: Sequence[str], delimiter: str, usual: str) -> str:
    """Return what quotes mean in a table: what makes most lines rows of equal width.

    Where they are letters, all lines are rows, and cells that begin with one rarely end with one.
    Where they are `usual`ly letters, they are unless more rows are sound otherwise, or as many, and
    quotes are doubled within a cell.
    """
    shares = {quotes: _sound_share(lines, delimiter, quotes) for quotes in QUOTES}
    if not any('\\"' in line for line in lines):
        del shares[BACKSLASH]
    cells = [cell for _, row in rows_of(lines, delimiter, LETTERS) for cell in row]
    if usual == LETTERS:
        doubled = any(cell[:1] == cell[-1:] == '"' and '""' in cell[1:-1] for cell in cells)
        return DOUBLE if (shares[DOUBLE], doubled) > (shares[LETTERS], False) else LETTERS
    begun = [cell for cell in cells if cell.startswith('"')]
    num_ended = sum(len(cell) > 1 and cell.endswith('"') for cell in begun)
    if shares[LETTERS] < 1 or 2 * num_ended > len(begun):
        del shares[LETTERS]
    return max(shares, key=lambda quotes: (shares[quotes], quotes == DOUBLE))


def detect_beginning(rows: Rows, wanted: Collection[str]) -> Beginning:
    """Return where a table begins and whether it has a header.

    Rows above a header hold less than others do, such as a title; a row that is named as columns
    of texts and labels are is one wherever it stands.
    """
    if not rows:
        return Beginning()
    cells = [row for _, row in rows]
    widths = [sum(map(bool, map(str.strip, row))) for row in cells]
    width, length = _most_common(widths), _most_common(map(len, cells))
    for at, (line, row) in enumerate(rows[:_MOST_ABOVE]):
        above = all(_is_above(row, width, length) for row in cells[:at])
        num_known = _num_known(row, cells[at + 1 :], wanted)
        if num_known > 1 or (num_known and above):
            return Beginning(line)
    first = next((at for at, row in enumerate(cells) if not _is_above(row, width, length)), 0)
    if first > _MOST_ABOVE:
        first = 0
    header = has_header(cells[first:], wanted)
    if header is None and wanted:
        header = True  # who asks for a column by its name knows of one
    if first and header is False:
        return Beginning(rows[0][0], header=False, is_sure=False)
    return Beginning(rows[first][0], bool(header), is_sure=header is not None)


def has_header(rows: Sequence[Sequence[str]], wanted: Collection[str]) -> bool | None:
    """Return whether the first row names the columns; None: it may be like the rows below."""
    first, *others = rows
    if _num_known(first, others, wanted):
        return True
    # A header that is not known comes once in so many rows at most, where files were put together.
    repeated = 10
    if repeated * sum(list(other) == list(first) for other in others) > len(others):
        return False
    # Columns without a name say nothing: numbers of rows, or nothing at all.
    below = _cells_below(first, others)
    named = [(cell, cells) for cell, cells in zip(first, below, strict=True) if cell.strip()]
    names = [cell for cell, cells in named if cell not in cells and _may_be_name(cell)]
    if not names or len(set(names)) < len(named):
        return False
    if len(first) == 1:
        return _heads_texts(names[0], below[0])
    if len(named) < len(first) and all(len(cell.split()) == 1 for cell in names):
        return True
    return any(map(_is_surely_name, names, [cells for _, cells in named])) or None


def rows_of(
    lines: Iterable[str], delimiter: str, quotes: str = DOUBLE
) -> list[tuple[int, list[str]]]:
    """Return the rows of a table up to one that cannot be read, without empty ones."""
    rows: list[tuple[int, list[str]]] = []
    line = 1
    with suppress(csv.Error):
        reader = split_lines(lines, delimiter, quotes, strict=False)
        for row in reader:
            if row:
                rows.append((line, row))
            line = reader.line_num + 1
    return rows


def _sound_share(lines: Sequence[str], delimiter: str, quotes: str) -> float:
    """Return how many of some lines are in rows of the usual width."""
    reader = split_lines(lines, delimiter, quotes)
    widths = Counter[int]()
    before = 0
    while before < len(lines):
        with suppress(csv.Error, StopIteration):
            widths[len(next(reader))] += reader.line_num - before
        before = max(reader.line_num, before + 1)
    return max(widths.values(), default=0) / max(len(lines), 1)


def _most_common(numbers: Iterable[int]) -> int:
    return max(Counter(numbers).most_common(1), default=(0, 0))[0]


def _is_above(row: Sequence[str], width: int, length: int) -> bool:
    """Return whether a row may stand above a header: it is a title, a comment or a rule."""
    filled = sum(map(bool, map(str.strip, row)))
    return width > 1 and (filled < 2 or len(row) < length or row[0].startswith("# "))


def _num_known(row: Sequence[str], others: Sequence[Sequence[str]], wanted: Collection[str]) -> int:
    """Return how many cells are names of columns that are asked for, or as people call them."""
    below = _cells_below(row, others)
    return sum(
        cell in wanted or (is_usual_name(cell) and cell not in cells)
        for cell, cells in zip(row, below, strict=True)
    )


def _cells_below(row: Sequence[str], others: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the cells below each of a row, but for those of rows that are the same."""
    differing = [other for other in others if list(other) != list(row)]
    return [[other[at] for other in differing if at < len(other)] for at in range(len(row))]


def _heads_texts(cell: str, below: Sequence[str]) -> bool | None:
    """Return whether a cell is the name of the only column; a text among texts is none."""
    if "_" in cell and len(cell.split()) == 1:
        return True
    num_words = sum(len(text.split()) for text in below) / max(len(below), 1)
    return None if len(cell.split()) == 1 or num_words >= 2 * len(cell.split()) else False


def _is_surely_name(cell: str, below: Sequence[str]) -> bool:
    """Return whether a cell is surely no value: numbers, long or the same texts are below it."""
    if len(below) > 1 and all(_NUMBER.fullmatch(text.strip()) for text in below):
        return True
    num_words = sum(len(text.split()) for text in below) / max(len(below), 1)
    is_repeated = len(below) > 3 and 2 * len(set(below)) <= len(below)
    return is_repeated or (len(cell.split()) == 1 and num_words >= 3)


def _may_be_name(cell: str) -> bool:
    is_short = len(cell) <= _LONGEST_NAME and len(cell.split()) <= _MOST_WORDS
    return is_short and not _NUMBER.fullmatch(cell.strip())


def usual_quotes(table_format: str, delimiter: str) -> str:
    """Return what quotes mean in a format."""
    return DOUBLE if table_format == "csv" or delimiter != "\t" else LETTERS


def split_lines(
    lines: Iterable[str], mark: str, quotes: str = DOUBLE, *, strict: bool = True
) -> "_Cells":
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

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def line_num(self) -> int:
        """How many lines were taken."""
        return int(self._reader.line_num)

    def __iter__(self) -> "_Cells":
        return self

    def __next__(self) -> list[str]:
        """Return the next row; after a `csv.Error` it can be called again."""
        return [cell.replace("\0", "\r") for cell in next(self._reader)]
