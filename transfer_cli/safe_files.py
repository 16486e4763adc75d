"""Reads small files of unknown origin whole, in bounded memory, as plain values.

A run directory can come from a stranger. A file that is larger, deeper or of another kind than our
own is refused (`UnreadableError`); the caller adds its name. What stands in one has one escape for
each place where it is shown: a terminal, Markdown, a spreadsheet; templates of HTML have their own.
"""

import errno
import json
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

MAX_FILE_BYTES = 16 * 2**20
"""None of our small files is larger; parsed JSON can take 30 times its size in memory."""

MAX_DEPTH = 50
"""Nothing that we write is nested deeper, and what walks through it calls itself at each level."""

MAX_WHOLE_NUMBER = 2**63 - 1
"""Nothing that we count is larger, and no tensor holds more."""

MAX_SHOWN_CHARACTERS = 2000
"""A message quotes no more of what it found: one that fills the screen says nothing."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class UnreadableError(ValueError):
    """What is wrong with a file, without its name."""


def check_no_lfs_pointer(start: bytes) -> None:
    """Refuse the beginning of what Git LFS leaves in place of a file that it has not fetched."""
    if start.startswith(_LFS_POINTER):
        raise UnreadableError(
            "it is a pointer of Git LFS in place of the file; `git lfs pull` in its folder "
            "fetches that"
        )


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file."""
    try:
        try:
            raw = _read_start(path, most_bytes + 1)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # Another machine has replaced it on a network disk, just as it was opened.
            raw = _read_start(path, most_bytes + 1)
    except ValueError as error:
        raise UnreadableError(str(error)) from error
    if len(raw) > most_bytes:
        raise UnreadableError(f"it is larger than {most_bytes // 2**10:,} KiB")
    check_no_lfs_pointer(raw)
    return raw


def _read_start(path: Path, size: int) -> bytes:
    kind = path.stat().st_mode
    if not stat.S_ISREG(kind):
        # To open a pipe could wait for ever.
        raise UnreadableError("it is a folder, a device or a pipe, expected a plain file")
    with path.open("rb") as file:
        return file.read(size)


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the content of a UTF-8 file."""
    raw = read_bytes(path, most_bytes)
    zero = raw.find(b"\0")
    if zero >= 0:
        raise UnreadableError(f"line {_line_number(raw, zero)} holds a NUL byte")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        byte = f"0x{raw[at]:02X}"
        raise UnreadableError(f"line {_line_number(raw, at)} is not UTF-8 (byte {byte})") from error


def _line_number(raw: bytes, place: int) -> int:
    return raw.count(b"\n", 0, place) + 1


def read_json(path: Path, most_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return parse_json(read_text(path, most_bytes))


def parse_json(text: str) -> dict[str, Any]:
    """Return the JSON object in a text."""
    try:
        value = STRICT_JSON.decode(text)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"line {error.lineno} is not JSON ({error.msg})") from error
    except RecursionError as error:
        raise UnreadableError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # two equal names, or thousands of digits
        raise UnreadableError(str(error)) from error
    if not isinstance(value, dict):
        raise UnreadableError("it is no JSON object")
    check_plain(value)
    return value


def check_plain(value: Any) -> None:
    """Refuse what none of our files holds: deep nesting, a name that is no text, a huge number."""
    left = [(value, 0)]
    while left:
        node, depth = left.pop()
        if depth > MAX_DEPTH:
            raise UnreadableError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, Mapping):
            for name in node:
                if not isinstance(name, str):
                    raise UnreadableError(f"the name {name!r} is no text; put it in quotes")
            left += [(below, depth + 1) for below in node.values()]
        elif isinstance(node, list):
            left += [(below, depth + 1) for below in node]
        elif isinstance(node, int) and abs(node) > MAX_WHOLE_NUMBER:
            raise UnreadableError("a whole number has more than 64 bits")


def check_field_types(record: Any) -> None:
    """Refuse a dataclass with a value of another kind than its field; an `int` is a `float`."""
    for name, hint in get_type_hints(type(record)).items():
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        kinds = tuple(get_origin(kind) or kind for kind in kinds)
        kind = type(getattr(record, name))
        if Any not in kinds and kind not in kinds and not (kind is int and float in kinds):
            raise UnreadableError(f"its {name} is no {' or '.join(k.__name__ for k in kinds)}")


def printable(text: str) -> str:
    """Return `text` as one line for a terminal, cut where it is long."""
    line = " ".join(text.split())
    if len(line) > MAX_SHOWN_CHARACTERS:
        line = f"{line[:MAX_SHOWN_CHARACTERS]} ..."
    return escaped(line)


def escaped(text: str) -> str:
    """Return `text` without control characters: names in a file may hold anything.

    Line ends and tabs stay, and the joiners that Persian, Hindi and families of emoji are written
    with; what turns the direction of writing round is a control character, too.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in "\n\t\u200c\u200d"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def in_one_line(text: str) -> str:
    """Return `text` without control characters, line ends included."""
    return escaped(text).replace("\n", "\\n")


_MARKUP = re.compile(r"[\\`*<>\[\]#&~$]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown may obey in the middle of a line; it leaves `_` within a word as it is."""


def markdown_text(text: str) -> str:
    """Return a text as one line in which Markdown finds nothing to do."""
    return _MARKUP.sub(lambda mark: f"\\{mark[0]}", " ".join(escaped(text).split()))


def markdown_code(text: str) -> str:
    """Return a text as code in a line, which Markdown leaves as it is."""
    line = " ".join(escaped(text).split()) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a table; the cells are Markdown."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_FORMULA_STARTS = tuple("=+-@\t\r\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}"
                 "\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
"""How a cell begins that a spreadsheet would compute."""


def spreadsheet_cell(text: str) -> str:
    """Return a text as one line that a spreadsheet does not compute."""
    line = in_one_line(text)
    return f"'{line}" if line.startswith(_FORMULA_STARTS) else line


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs; readers disagree on which of two equal names counts."""
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the name {counts.most_common(1)[0][0][:40]!r} is there twice")
    return members


STRICT_JSON = json.JSONDecoder(object_pairs_hook=_unique_names)
"""Reads JSON in which every name of an object occurs once."""
