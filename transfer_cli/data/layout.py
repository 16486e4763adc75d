"""How a table is written: what stands between its columns, its encoding, whether it has a header.

All of it is recognised from the beginning of the file, by rules that give the same answer for the
same file, so a run that goes on finds what it began with.
"""

import codecs
import csv
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from transfer_cli.data.columns import is_known
from transfer_cli.data.readers import split_lines
from transfer_cli.errors import nearest

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""Those that are recognised, by the names that can be typed for them."""

WINDOWS = "cp1252"
"""Windows' encoding of western languages; Latin-1 is the same where it has letters and marks."""

_SHOWN = {WINDOWS: "Windows-1252"}
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_OF_SEVERAL_BYTES = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_NOT_WINDOWS = re.compile(rb"[\0\x81\x8d\x8f\x90\x9d\xff]")
"""Bytes that have no character in Windows-1252, and one that no text has but broken ones have."""
_NUMBER = re.compile(r"[-+]?[0-9]+([.,][0-9]+)*%?")
_LONGEST_NAME = 40
_MOST_WORDS = 5


@dataclass(frozen=True)
class Layout:
    """How a table is written.

    Args:
        delimiter: What stands between columns, a character or its name in `DELIMITERS`.
        encoding: As Python names it.
        header: Whether the first row names the columns.

    None is for what has to be recognised.
    """

    delimiter: str | None = None
    encoding: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            mark = DELIMITERS.get(self.delimiter, self.delimiter)
            if len(mark) != 1 or mark in '"\n\r\0':
                close = nearest(self.delimiter, DELIMITERS)
                raise ValueError(
                    f"delimiter is {self.delimiter!r}, expected a character or one of "
                    f"{', '.join(DELIMITERS)}.{close}"
                )
            object.__setattr__(self, "delimiter", mark)
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, ValueError) as error:
                close = nearest(self.encoding, ("utf-8", "utf-16", "latin-1", WINDOWS))
                raise ValueError(
                    f"encoding is {self.encoding!r}, which Python does not know.{close}"
                ) from error


def shown(encoding: str) -> str:
    """Return what people call an encoding."""
    return _SHOWN.get(encoding, encoding.upper())


def delimiter_name(delimiter: str) -> str:
    """Return what people call a delimiter."""
    return next((name for name, mark in DELIMITERS.items() if mark == delimiter), repr(delimiter))


def is_wide(encoding: str) -> bool:
    """Return whether a line does not end with one byte."""
    return len("\n".encode(encoding)) > 1


def encoding_of(start: bytes) -> str:
    """Return the encoding of a file from its first bytes, which may end within a character.

    What is not UTF-8 is Windows-1252 if all of it can be that, and if more of it is not UTF-8 than
    is: a UTF-8 file with a few damaged lines stays one.
    """
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        rest, num_valid = _OF_SEVERAL_BYTES.subn(b"", start)
        num_other = len(rest.translate(None, bytes(range(128))))
        if num_other > num_valid and not _NOT_WINDOWS.search(start):
            return WINDOWS
    return "utf-8"


def delimiter_of(lines: Sequence[str], usual: str) -> str:
    """Return what stands between the columns of a table, from its first lines.

    That is what divides the first row, and most rows into as many columns as the first one.

    Args:
        lines: The first lines, with their ends.
        usual: What it is unless another is better.
    """
    best, found = (0.0, False, 0, True), usual
    for mark in DELIMITERS.values():
        rows = rows_of(lines, mark)
        width = len(rows[0]) if rows else 0
        if width > 1:
            share = sum(len(row) == width for row in rows) / len(rows)
            score = (share, any(map(is_known, rows[0])), width, mark == usual)
            if score > best:
                best, found = score, mark
    return found


def has_header(rows: Sequence[Sequence[str]], wanted: Collection[str]) -> bool:
    """Return whether the first row names the columns.

    Args:
        rows: The first rows.
        wanted: Names of columns that are asked for.
    """
    if not rows:
        return True
    first, *others = rows
    if any(name in first for name in wanted):
        return True
    below = [{row[at] for row in others if at < len(row)} for at in range(len(first))]
    # Columns without a name say nothing: numbers of rows, or nothing at all.
    named = [(cell, cells) for cell, cells in zip(first, below, strict=True) if cell.strip()]
    if any(is_known(cell) and cell not in cells for cell, cells in named):
        return True
    names = [cell for cell, cells in named if cell not in cells and _may_be_name(cell)]
    return bool(names) and len(set(names)) == len(named)


def rows_of(lines: Iterable[str], delimiter: str, *, quotes: bool = True) -> list[list[str]]:
    """Return the rows of a table up to one that cannot be read, without empty ones."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(filter(None, split_lines(lines, delimiter, quotes=quotes, strict=False)))
    return rows


def _may_be_name(cell: str) -> bool:
    is_short = len(cell) <= _LONGEST_NAME and len(cell.split()) <= _MOST_WORDS
    return is_short and not _NUMBER.fullmatch(cell.strip())
