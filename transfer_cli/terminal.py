"""What the toolkit looks like on a terminal: one set of styles for listings, tables and errors.

Texts are made of pieces that say what they are (`Piece("tiny", "name")`), never of markup: what a
file holds is shown as it is. In a pipe, with `NO_COLOR` and on a terminal that knows no colours
there is plain text, in which no line is ever broken or cut for the width of a screen.
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from transfer_cli.safe_files import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Style = Literal["", "heading", "name", "own", "mark", "note", "good", "bad", "error", "warning"]

STYLES: dict[Style, str] = {
    "": "",
    "heading": "bold",
    "name": "cyan",
    "own": "bold magenta",
    "mark": "bold green",
    "note": "dim",
    "good": "green",
    "bad": "red",
    "error": "bold red",
    "warning": "bold yellow",
}
"""How each kind of piece looks; of the eight colours that every terminal has its own shades of."""

WIDEST_PROSE = 100
"""Columns beyond which running text is hard to read, however wide the terminal."""

_NARROWEST = 20
"""Columns that a text needs beside another one; with fewer it goes below."""

_INDENT = 4


class Piece(NamedTuple):
    """A text and what it is.

    Args:
        text: One or more words.
        style: A key of `STYLES`.
    """

    text: str
    style: Style = ""


Pieces = Sequence["Piece | str"]


class Line:
    """Pieces side by side, which are never broken: command lines stay fit to be copied."""

    def __init__(self, *pieces: Piece | str) -> None:
        self.pieces = pieces

    def __str__(self) -> str:
        return _plain(self.pieces).rstrip()

    def drawn(self, console: "Console") -> list["Text"]:
        """Return what is shown on a terminal."""
        return [_rich(self.pieces)]


@dataclass(frozen=True)
class Entry:
    """Two columns: what something is called, and what it is.

    Args:
        head: The left column.
        text: The right one; it goes on below itself.
        column: Where it begins.
        width: Columns of the plain text; None: its lines are never broken.
    """

    head: Pieces
    text: Pieces
    column: int
    width: int | None = None

    def __str__(self) -> str:
        head, text = _plain(self.head), _plain(self.text)
        if self.width is None:
            return f"{head:<{self.column}}{text}".rstrip()
        wrapped = textwrap.wrap(text, max(_NARROWEST, self.width - self.column)) or [""]
        below = [" " * self.column + line for line in wrapped]
        if len(head) >= self.column:
            return "\n".join([head, *below])
        return "\n".join([f"{head:<{self.column}}{wrapped[0]}".rstrip(), *below[1:]])

    def drawn(self, console: "Console") -> list["Text"]:
        """Return what is shown on a terminal."""
        width = console.width if self.width is None else min(console.width, self.width)
        head, text = _rich(self.head), _rich(self.text)
        if head.cell_len > width:
            head = _rich(_squeezed(self.head))
        if not text:
            head.rstrip()
            return [head]
        column, beside = self.column, head.cell_len <= self.column
        if width - column < _NARROWEST:
            column, beside = min(_INDENT, width // 2), False
        lines = _wrapped(text, max(1, width - column), console)
        below = [_rich([" " * column]).append_text(line) for line in lines]
        if not beside:
            return [head, *below] if head else below
        room = " " * (column - head.cell_len)
        return [head.append(room).append_text(lines[0]), *below[1:]]


@dataclass(frozen=True)
class Prose:
    """Paragraphs; `what stands in such quotes` is something to type."""

    text: str

    def __str__(self) -> str:
        return escaped(self.text)

    def drawn(self, console: "Console") -> list["Text"]:
        """Return what is shown on a terminal."""
        width = min(console.width, WIDEST_PROSE)
        lines: list[Text] = []
        for paragraph in re.split(r"\n\s*\n", self.text):
            fits = all(len(line) <= width for line in paragraph.splitlines())
            flowing = paragraph if fits else " ".join(paragraph.split())
            typed = [
                Piece(part, "name" if part.startswith("`") else "")
                for part in re.split(r"(`[^`]*`)", flowing)
            ]
            lines += [_rich([])] if lines else []
            lines += _wrapped(_rich(typed), width, console)
        return lines


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: What stands above it.
        right: Whether it holds numbers, which are aligned at their ends and not broken.
    """

    title: str
    right: bool = False


@dataclass(frozen=True)
class Table:
    """Rows below titles. Where a terminal is too narrow for them, each row becomes a block.

    Args:
        columns: From left to right.
        rows: A cell for each column; a cell is one line.
    """

    columns: Sequence[Column]
    rows: Sequence[Pieces]

    def __str__(self) -> str:
        titles = [column.title for column in self.columns]
        texts = [[_one_line(cell).text for cell in row] for row in self.rows]
        widths = [max(map(len, cells)) for cells in zip(titles, *texts, strict=True)]
        return "\n".join(
            "  ".join(
                f"{cell:>{width}}" if column.right else f"{cell:<{width}}"
                for cell, width, column in zip(row, widths, self.columns, strict=True)
            ).rstrip()
            for row in (titles, *texts)
        )

    def drawn(self, console: "Console") -> list["Text"]:
        """Return what is shown on a terminal."""
        from rich.table import Table as RichTable
        from rich.text import Text

        cells = [[_one_line(cell) for cell in row] for row in self.rows]
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        least = 2 * (len(self.columns) - 1)
        for at, column in enumerate(self.columns):
            title = _rich([Piece(column.title, "heading")])
            needed = max(title.cell_len, *(_rich([row[at]]).cell_len for row in cells), 0)
            # Texts give up room, numbers none.
            narrowest = needed if column.right else min(needed, _NARROWEST)
            least += narrowest
            table.add_column(
                title, justify="right" if column.right else "left", min_width=narrowest,
                no_wrap=column.right, overflow="fold",
            )  # fmt: skip
        if least > console.width:
            return self._blocks(cells, console)
        for row in cells:
            table.add_row(*(_rich([cell]) for cell in row))
        lines = [
            Text.assemble(*((part.text, part.style or "") for part in line))
            for line in console.render_lines(table, pad=False)
        ]
        for each in lines:
            each.rstrip()
        return lines

    def _blocks(self, cells: Sequence[Sequence[Piece]], console: "Console") -> list["Text"]:
        """Return each row as lines of title and cell."""
        room = 2 + max(len(column.title) for column in self.columns)
        lines: list[Text] = []
        for row in cells:
            lines += [_rich([])] if lines else []
            for column, cell in zip(self.columns, row, strict=True):
                lines += Entry([Piece(column.title, "heading")], [cell], room).drawn(console)
        return lines


Block = Line | Entry | Prose | Table


class Page:
    """What a command shows: blocks below each other, of which `str` gives the plain text."""

    def __init__(self, *blocks: Block) -> None:
        self.blocks = blocks

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks))


BLANK = Line()


def show(page: Page | Block) -> None:
    """Write to standard output."""
    _write(page, sys.stdout)


def say(page: Page | Block) -> None:
    """Write to standard error."""
    _write(page, sys.stderr)


def error(name: str, message: str) -> Line:
    """Return the line that says why a command ends."""
    return Line(Piece(f"{name}:", "error"), f" {message}")


def paint(text: str, style: Style, stream: TextIO) -> str:
    """Return a text as it is written to a stream, for those that write lines of their own."""
    if not is_colourful(stream):
        return text
    console = _console(stream)
    with console.capture() as captured:
        console.print(_rich([Piece(text, style)]), end="", soft_wrap=True)
    return captured.get()


def is_colourful(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that may be given colours (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return stream.isatty()


def _write(page: Page | Block, stream: TextIO) -> None:
    text = _in_colour(page, stream) if is_colourful(stream) else f"{page}\n"
    stream.write(text)
    stream.flush()


def _in_colour(page: Page | Block, stream: TextIO) -> str:
    console = _console(stream)
    blocks: Iterable[Block] = page.blocks if isinstance(page, Page) else (page,)
    # Rich ends the process where a reader is gone; we have an exit code of our own for that.
    with console.capture() as captured:
        for block in blocks:
            for line in block.drawn(console):
                console.print(line, soft_wrap=True)
    return captured.get()


def _console(stream: TextIO) -> "Console":
    # Only here: what is piped, and what trains, has no use for it.
    from rich.console import Console
    from rich.theme import Theme

    return Console(
        file=stream,
        force_terminal=True,
        theme=Theme({name: look for name, look in STYLES.items() if name}, inherit=False),
        markup=False,
        emoji=False,
        highlight=False,
    )


def _plain(pieces: Pieces) -> str:
    return escaped("".join(piece if isinstance(piece, str) else piece.text for piece in pieces))


def _rich(pieces: Pieces) -> "Text":
    from rich.text import Text

    text = Text()
    for piece in pieces:
        words, style = (piece, "") if isinstance(piece, str) else piece
        text.append(escaped(words), style or None)
    return text


def _squeezed(pieces: Pieces) -> list[Piece]:
    """Return pieces whose columns stand as close as they can."""
    every = (Piece(piece) if isinstance(piece, str) else piece for piece in pieces)
    return [Piece(re.sub(" {2,}", "  ", text), style) for text, style in every]


def _wrapped(text: "Text", width: int, console: "Console") -> list["Text"]:
    lines = list(text.wrap(console, width, tab_size=_INDENT))
    for line in lines:
        line.rstrip()
    return lines


def _one_line(cell: Piece | str) -> Piece:
    piece = Piece(cell) if isinstance(cell, str) else cell
    return Piece(escaped(" ".join(piece.text.splitlines())), piece.style)
