r"""Read files line by line, strictly, in bounded memory.

Every fault of a file becomes a `DataError` that names the file and the line. A fault of one line
alone may be given to a function instead (`on_error`), which lets the reader go on.
The encoding is recognised from the beginning. Only `\n` and `\r\n` end a line, and `\r` in a file
that begins with lines that end by it alone; other characters that Unicode calls line ends belong to
the text. A line of a table that is longer than one may be is refused; one of a text comes in parts.
"""

import io
import json
import logging
import lzma
import os
import re
import shlex
import string
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from glob import has_magic
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from transfer_cli.data.encodings import detect_encoding, encoding_label
from transfer_cli.data.packed import PACKINGS, Unpacked
from transfer_cli.errors import DataError, did_you_mean
from transfer_cli.safe_files import check_no_lfs_pointer, printable

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 8 * 2**20
"""Longer lines are refused, and longer rows of a table, however many lines they have.

A line is encoded in one piece, for which the tokenizers library takes up to 400 bytes of memory for
each byte of text. War and Peace on one line has 3 MB.
"""

TABLE_FORMATS = ("csv", "tsv", "jsonl")
SHEET_FORMATS = ("parquet", "xlsx")
"""Tables that are not made of lines: see `sheets`."""

PEEKED_BYTES = 2**22
"""So much of the beginning of a file is looked at."""

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER_BYTES = 2**20
_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+,= ")

OnError = Callable[[DataError], None]
"""Receives the fault of a row; returns to have the rest read, or raises."""


def refuse(error: DataError) -> None:
    """Raise the error: one broken row is enough to read no more."""
    raise error


class BrokenLine(str):
    """A line that cannot be read, with the readable part of its text: its quotes count."""

    error: DataError

    def __new__(cls, text: str, error: DataError) -> "BrokenLine":
        line = super().__new__(cls, text)
        line.error = error
        return line


# ---------------------------------------------------------------------------------- files


def numbered_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a text file, plain or packed."""
    with closing(open_file(path)) as file:
        yield from sound_lines(_open_source(file, str(path), encoding).lines())


def _open_source(file: BinaryIO, name: str, encoding: str | None) -> "LineSource":
    start, whole = peek(file, PEEKED_BYTES, name)
    source = recognise_source(start, whole, name, encoding)
    if source.note:
        _log_reading(name, source.note)
    return source


@cache
def _log_reading(name: str, note: str) -> None:
    """Say how a text is read, once: it is read several times."""
    log.info("%s: %s", printable(name), note)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or packed, without their ends."""
    for _, line in numbered_lines(path):
        yield line


def paragraphs(text: str) -> list[str]:
    """Return the lines of a text that is a value of a table."""
    return text.replace("\r\n", "\n").split("\n")


def is_parquet(folder: Path) -> bool:
    """Return whether a folder holds Parquet files, which are one table."""
    return folder.is_dir() and any(folder.glob("*.parquet"))


def format_of(path: Path) -> str | None:
    """Return the table format of a file's name, or None."""
    if is_parquet(path):
        return "parquet"
    suffix = suffix_of(path)
    if suffix in _JSON_SUFFIXES:
        return "jsonl"
    return suffix[1:] if suffix[1:] in (*TABLE_FORMATS, *SHEET_FORMATS) else None


def is_packed(path: Path) -> bool:
    """Return whether a file has the name of a packed one."""
    return path.suffix in PACKINGS


def check_readable(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that is not empty, with a name that is text."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        # As bash reads it in $'...'.
        typed = "".join(
            chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(path)
        )
        other = shlex.quote("".join(c if c.isprintable() else "_" for c in str(path)))
        raise DataError(
            f"{typed}: the name is not UTF-8; give it another: mv $'{typed}' {other}"
        ) from error
    try:
        if not path.exists():
            raise _missing_file_error(path)
        if path.is_dir():
            raise DataError(f"{path} is a folder, expected a file.{datasets_folder_hint(path)}")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty.")
        if path.is_file():  # a pipe can be read only once
            with path.open("rb") as file:
                check_no_lfs_pointer(file.read(64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from error


def too_long_error(name: object, line: int) -> DataError:
    """Return the error of a line or row that is longer than one may be."""
    return DataError(
        f"{name}, line {line}: longer than {MAX_LINE_BYTES // 2**20} MiB. Is this text?"
    )


def check_length(size: int, name: object, line: int) -> None:
    """Raise `DataError` if a row has more than so many bytes or characters."""
    if size > MAX_LINE_BYTES:
        raise too_long_error(name, line)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked if its name ends with `.gz`, `.xz` or `.zst`."""
    check_readable(path)
    try:
        if is_packed(path):
            return io.BufferedReader(Unpacked(path), _BUFFER_BYTES)
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def unknown_format_error(path: Path, keys: str) -> DataError:
    """Return what to say of a file whose name does not tell its format."""
    with closing(open_file(path)) as file:
        start, _ = peek(file, _LONGEST_MARK, str(path))
    _check_is_text(start, str(path))
    if start.startswith(b"__label__"):
        source, table = shlex.quote(str(path)), shlex.quote(f"{path}.tsv")
        return DataError(
            f"{path} has labels as fastText writes them. For a table of one label each: sed -E "
            rf"'s/^__label__(\S+)\s+/\1\t/' {source} > {table}, then data.train={table} "
            f"{keys}header=false {keys}label=1 {keys}text=2"
        )
    return DataError(
        f"{path}: its name does not tell the format. For a table set {keys}format=csv; "
        "text without labels is for pretrain data=text."
    )


def count_lines(path: Path) -> int | None:
    """Return how many lines a file has, the last one included where it has no end.

    None: it is a pipe, or a spreadsheet or Parquet, whose rows are no lines.
    """
    if not path.is_file() or format_of(path) in SHEET_FORMATS:
        return None
    count, last = 0, b"\n"
    with open_file(path) as file:
        try:
            while chunk := file.read(2**20):
                count, last = count + chunk.count(b"\n"), chunk
        except UNREADABLE as error:
            raise damaged_file_error(path, count + 1, error) from error
    return count + (not last.endswith(b"\n"))


def suffix_of(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without that of a packed one."""
    return (path.with_suffix("") if is_packed(path) else path).suffix.lower()


def datasets_folder_hint(folder: Path) -> str:
    """Return how to read a folder that the library `datasets` has saved; "" for others."""
    splits = sorted(part.parent.name for part in folder.glob("*/state.json"))
    if not splits and not (folder / "state.json").exists():
        return ""
    split = f'["{splits[0]}"]' if splits else ""
    to = f"{(splits or ['rows'])[0]}.parquet"
    code = f'load_from_disk({json.dumps(str(folder))}){split}.to_parquet("{to}")'
    typed = shlex.quote(f"from datasets import load_from_disk; {code}")
    return f" The library datasets has saved it; python -c {typed} writes a file."


def _missing_file_error(path: Path) -> DataError:
    if has_magic(path.name):
        return DataError(
            f"{path} does not exist; a pattern of names is read in data.train and the like."
        )
    if path.parts[0].endswith(":") and len(path.parts) > 1:
        return DataError(f"{path} is an address; download the file, and name it here.")
    if path.is_symlink():
        return DataError(f"{path} is a link to {path.readlink()}, which does not exist.")
    folder = next(parent for parent in path.parents if parent.is_dir())
    name = path.relative_to(folder).parts[0]
    hint = did_you_mean(name, (entry.name for entry in folder.iterdir()), cutoff=0.7)
    place = f" (in {folder})" if hint else ""
    return DataError(f"{path} does not exist.{hint}{place}")


# ---------------------------------------------------------------------------------- lines


class LineStream(Protocol):
    """A source of lines."""

    def readline(self, size: int, /) -> bytes:
        """Return the bytes up to the end of the line, at most `size`; none at the end."""


def sound_lines(
    lines: Iterable[tuple[int, str]], on_error: OnError = refuse
) -> Iterator[tuple[int, str]]:
    """Yield the lines that can be read; `on_error` receives the faults of the others."""
    for number, line in lines:
        if isinstance(line, BrokenLine):
            on_error(line.error)
        else:
            yield number, line


def all_lines(stream: LineStream, name: str, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield numbered lines, with a `BrokenLine` in place of each that cannot be read."""
    number = 0
    while raw := read_line(stream, name, number + 1):
        # Files that were put together have one where each began.
        raw = raw.removeprefix(BYTE_ORDER_MARK)
        if number == 0 and not raw:
            break
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            yield number, BrokenLine("", too_long_error(name, number))
            # Only now: a caller that stops here does not wait for the end of the line.
            while raw and not raw.endswith(b"\n"):
                raw = read_line(stream, name, number)
            continue
        yield number, decode_line(without_end(raw), name, number, encoding)
    if number == 0:
        raise DataError(f"{name} is empty.")


def without_end(raw: bytes) -> bytes:
    """Return a line without its end."""
    return raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")


def read_line(stream: LineStream, name: str, number: int, most: int = MAX_LINE_BYTES + 1) -> bytes:
    """Return the next line, or its first bytes where it has more than `most`."""
    try:
        return stream.readline(most)
    except UNREADABLE as error:
        raise damaged_file_error(name, number, error) from error


def damaged_file_error(name: object, line: int, error: Exception) -> DataError:
    """Return the error of a file that cannot be read any further."""
    problem = f"cannot be read on ({error}). Is the file damaged or cut off?"
    return DataError(f"{name}, line {line}: {problem}")


UNREADABLE = (
    OSError, EOFError, UnicodeError, zlib.error, lzma.LZMAError, zstandard.ZstdError
)  # fmt: skip


class _ByteStream(io.RawIOBase):
    """The bytes that a function returns, given how many there may be."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        content = self._read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def peek(stream: BinaryIO, size: int, name: str) -> tuple[bytes, io.BufferedReader]:
    """Return the first bytes of a stream, and a stream that has them still."""
    try:
        start = stream.read(size)
    except UNREADABLE as error:
        raise damaged_file_error(name, 1, error) from error
    again = io.BytesIO(start)
    whole = _ByteStream(lambda most: again.read(most) or stream.read(most))
    return start, io.BufferedReader(whole, _BUFFER_BYTES)


@dataclass(frozen=True)
class LineSource:
    """A file as lines: its first bytes, all of it, and what was recognised (`note`, or "").

    `name` is what to call it in messages.
    """

    name: str
    start: bytes
    stream: LineStream
    encoding: str
    note: str = ""

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield its lines, see `all_lines`."""
        return all_lines(self.stream, self.name, self.encoding)


def recognise_source(
    start: bytes, stream: LineStream, name: str, encoding: str | None, key: str | None = None
) -> LineSource:
    """Return a file in an encoding whose lines end with a byte.

    Args:
        name: What to call it in messages.
        encoding: As Python names it; None: it is recognised.
        key: What is typed to say it; None: nothing, a text has to be in UTF-8.
    """
    _check_is_text(start, name)
    note = ""
    if encoding is None:
        reading, *others = detect_encoding(start)
        encoding = reading.encoding
        if others:
            ways = " or ".join(f"{way.encoding} ({way.sample!r})" for way in (reading, *others))
            cure = f"Say {key}={encoding}" if key else f"iconv -f {encoding} -t utf-8 writes UTF-8"
            raise DataError(f"{name} is not UTF-8; it may be {ways}. {cure}, if that is right.")
        if encoding != "utf-8":
            sample = f" ({reading.sample!r})" if reading.sample else ""
            note = f"read as {encoding_label(encoding)}{sample}"
    if not isinstance(stream, io.BufferedReader):  # a pipe, whose lines may come slowly
        return LineSource(name, start, stream, encoding, note)
    if len("\n".encode(encoding)) > 1:
        start = start.decode(encoding, errors="ignore").encode()
        stream, encoding = _with_line_ends(stream, encoding, "utf-8", ""), "utf-8"
    # As many are written at the end of lines, where they are twice.
    alone = start.count(b"\r") - start.count(b"\r\n") - start.count(b"\r\r\n")
    if alone > start.count(b"\n"):
        stream = _with_line_ends(stream, "latin-1", "latin-1", None)
        start = start.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return LineSource(name, start, stream, encoding, note)


def _check_is_text(start: bytes, name: str) -> None:
    kind = next((kind for mark, kind in _NO_TEXTS.items() if start.startswith(mark)), None)
    if kind is not None:
        raise DataError(f"{name} is {kind.format(shlex.quote(name))}.")


_NO_TEXTS = {
    b"PK\3\4": "a zip archive or a spreadsheet; unpack it first (unzip {}), or name it .xlsx",
    b"PAR1": "a Parquet file; name it .parquet",
    b"ARROW1": "an Arrow file; save it as Parquet",
    b"\xd0\xcf\x11\xe0": "a document of an old office program; save it as .xlsx or CSV",
    b"\x1f\x8b": "packed by gzip; name it {}.gz",
    b"\x28\xb5\x2f\xfd": "packed by zstd; name it {}.zst",
    b"\xfd7zXZ": "packed by xz; name it {}.xz",
    b"BZh": "packed by bzip2; unpack it first (bunzip2 {})",
    b"7z\xbc\xaf": "a 7z archive; unpack it first (7z x {})",
    b"{\\rtf": "a document of a word processor; save it as plain text",
    b"$FL2@(#)": "a file of SPSS; save it as CSV",
    b"<stata_dta>": "a file of Stata; save it as CSV",
    b"%PDF": "a PDF; save its text as a file of its own",
    b"SQLite format 3": "a database; export the table as CSV",
}
"""First bytes -> what a file is that is no text, and what to do."""
_LONGEST_MARK = max(map(len, _NO_TEXTS))


def _with_line_ends(
    stream: BinaryIO, encoding: str, to: str, newline: str | None
) -> io.BufferedReader:
    """Return a stream in another encoding; a `newline` of None is any end, and becomes one."""
    text = io.TextIOWrapper(stream, encoding, newline=newline)
    recoded = _ByteStream(lambda most: text.read(most // 4).encode(to))
    return io.BufferedReader(recoded, _BUFFER_BYTES)


def decode_line(raw: bytes, name: str, number: int, encoding: str = "utf-8") -> str:
    """Return the text of a line, a `BrokenLine` where it cannot be read."""
    if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}, line 1: begins as UTF-16 does. Save the file as UTF-8.")
    zero = raw.find(b"\0")
    wrong, reason = f"NUL byte at offset {zero}. Is this a text file?", "a NUL byte"
    if zero < 0:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            place = f"byte 0x{raw[error.start]:02X} at offset {error.start} of the line"
            reason = f"not {encoding.upper()}"
            wrong = f"{place} is {reason}. Save the file as UTF-8."
    fault = DataError(f"{name}, line {number}: {wrong}", reason)
    return BrokenLine(raw.decode(encoding, errors="replace"), fault)


# --------------------------------------------------------------------------- running text

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
    with closing(open_file(path)) as file:
        source = _open_source(file, name, None)
        stream = source.stream
        if source.encoding != "utf-8" and isinstance(stream, io.BufferedReader):
            stream = _with_line_ends(stream, source.encoding, "utf-8", "")
        yield from _running_lines(stream, name)


def _running_lines(stream: LineStream, name: str) -> Iterator[str]:
    number = 0
    while raw := read_line(stream, name, number + 1, _LONGEST):
        is_long = len(raw) == _LONGEST and not raw.endswith(b"\n")
        if number == 0 and not (raw := raw.removeprefix(BYTE_ORDER_MARK)):
            break
        number += 1
        if is_long:
            raw = yield from _line_parts(raw, stream, name, number)
        text = _decode_sound_line(raw, name, number)
        yield text if raw.endswith(b"\n") else LastLine(text)
    if number == 0:
        raise DataError(f"{name} is empty.")


def _decode_sound_line(raw: bytes, name: str, number: int) -> str:
    text = decode_line(without_end(raw), name, number)
    if isinstance(text, BrokenLine):
        raise text.error
    return text


def _line_parts(
    raw: bytes, stream: LineStream, name: str, number: int
) -> Generator[LinePart, None, bytes]:
    """Yield the parts of a line, given its beginning; return what is left of it."""
    at, is_whole = 0, False
    while True:
        if not is_whole and len(raw) - at < 2 * _PART_BYTES:
            more = read_line(stream, name, number, _LONGEST)
            is_whole = len(more) < _LONGEST or more.endswith(b"\n")
            raw, at = raw[at:] + more, 0
        if len(raw) - at < 2 * _PART_BYTES:
            return raw[at:]
        place = _cutting_place(raw, at, at + _PART_BYTES)
        if place is None:
            raise DataError(
                f"{name}, line {number}: longer than {_LONGEST // 2**20} MiB, and without a space "
                f"or a mark for {_PART_BYTES:,} bytes. Is this text? If it is, break its lines: "
                f"fold -w 1000 {shlex.quote(name)} > broken.txt"
            )
        yield LinePart(_decode_sound_line(raw[at:place], name, number))
        at = place


def _cutting_place(raw: bytes, begin: int, end: int) -> int | None:
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
