r"""The lines of a text file, whatever editor wrote it.

Its encoding is recognised from its beginning, as that of a table is. `\n` and `\r\n` end a line,
and `\r` in a file that begins with lines that end by it alone. A line that is longer than one may
be comes in parts.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

from transfer_cli.data import readers
from transfer_cli.errors import DataError

_LONGEST = 2**20
"""Bytes of a line; longer ones come in parts."""

_PART_BYTES = 2**12
"""Of a part: small, since parts are held out as lines are."""

_MARK = re.compile(rb"[^\w\x80-\xff]|\xe3\x80[\x81\x82]|\xef\xbc[\x81\x8c\x9f]")
"""Marks after which a line is cut where it has no space, those of Chinese and Japanese too."""


class LastLine(str):
    """The last line of a text, where no line break ends it."""


class LinePart(str):
    """What is read at once of a line that is too long; the rest of the line follows."""


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or packed, without their ends."""
    name = str(path)
    with closing(readers.open_file(path)) as stream:
        yield from _lines(readers.in_utf8(stream, name), name)


def _lines(stream: readers.LineStream, name: str) -> Iterator[str]:
    number = 0
    while raw := readers.read_line(stream, name, number + 1, _LONGEST):
        is_long = len(raw) == _LONGEST and not raw.endswith(b"\n")
        if number == 0 and not (raw := raw.removeprefix(readers.BYTE_ORDER_MARK)):
            break
        number += 1
        if is_long:
            raw = yield from _parts(raw, stream, name, number)
        text = _decoded(raw, name, number)
        yield text if raw.endswith(b"\n") else LastLine(text)
    if number == 0:
        raise DataError(f"{name} is empty.")


def _decoded(raw: bytes, name: str, number: int) -> str:
    text = readers.decoded(readers.without_end(raw), name, number)
    if isinstance(text, readers.BrokenLine):
        raise text.error
    return text


def _parts(
    raw: bytes, stream: readers.LineStream, name: str, number: int
) -> Generator[LinePart, None, bytes]:
    """Yield the parts of a line, given its beginning; return what is left of it."""
    at, is_whole = 0, False
    while True:
        if not is_whole and len(raw) - at < 2 * _PART_BYTES:
            more = readers.read_line(stream, name, number, _LONGEST)
            is_whole = len(more) < _LONGEST or more.endswith(b"\n")
            raw, at = raw[at:] + more, 0
        if len(raw) - at < 2 * _PART_BYTES:
            return raw[at:]
        place = _place(raw, at, at + _PART_BYTES)
        if place is None:
            raise DataError(
                f"{name}, line {number}: longer than {_LONGEST // 2**20} MiB, and without a space "
                f"or a mark for {_PART_BYTES:,} bytes. Is this text? If it is, break its lines: "
                f"fold -w 1000 {name} > broken.txt"
            )
        yield LinePart(_decoded(raw[at:place], name, number))
        at = place


def _place(raw: bytes, begin: int, end: int) -> int | None:
    """Return where a line is cut: before a space, after a mark, or between letters beyond ASCII."""
    place = raw.rfind(b" ", begin + 1, end)
    if place > 0:
        return place
    marks = [mark.end() for mark in _MARK.finditer(raw, begin, end)]
    if marks:
        return marks[-1]
    if raw[begin:end].isascii():
        return None
    while raw[end] & 0xC0 == 0x80:  # the second byte of a letter, or a later one
        end -= 1
    return end
