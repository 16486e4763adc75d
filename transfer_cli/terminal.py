"""Terminal output: one set of styles for listings, tables and errors.

Text consists of styled pieces (`Piece("tiny", "name")`), without markup: the text of a file is
printed verbatim. In a pipe, with `NO_COLOR` and on a terminal without colours the output is plain
text, in which no line is wrapped or cut.
"""

import errno
import fcntl
import logging
import os
import re
import signal
import sys
import termios
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from transfer_cli.errors import RunError
from transfer_cli.safe_files import escaped, in_one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals by which a scheduler, or a connection that drops, asks for an end."""

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
"""The style of each kind of piece, from the eight standard colours of terminals."""

_NARROWEST = 20
"""Minimum width of a text beside another one; with less room it is printed below."""

_INDENT = 4


class Piece(NamedTuple):
    """A text and its style, a key of `STYLES`."""

    text: str
    style: Style = ""


Pieces = Sequence["Piece | str"]


class Line:
    """Pieces side by side, never wrapped: command lines can be copied."""

    def __init__(self, *pieces: Piece | str) -> None:
        self.pieces = pieces

    def __str__(self) -> str:
        return _plain_text(self.pieces).rstrip()

    def render(self, console: "Console") -> list["Text"]:
        """Return the lines for a terminal."""
        return [_rich_text(_as_one_line(piece) for piece in self.pieces)]


@dataclass(frozen=True)
class Entry:
    """Two columns: a name and its description, which wraps, in plain text up to a `width`."""

    head: Pieces
    text: Pieces
    column: int
    width: int | None = None

    def __str__(self) -> str:
        head, text = _plain_text(self.head), _plain_text(self.text)
        if self.width is None:
            return f"{head:<{self.column}}{text}".rstrip()
        wrapped = textwrap.wrap(text, max(_NARROWEST, self.width - self.column)) or [""]
        below = [" " * self.column + line for line in wrapped]
        if len(head) >= self.column:
            return "\n".join([head, *below])
        return "\n".join([f"{head:<{self.column}}{wrapped[0]}".rstrip(), *below[1:]])

    def render(self, console: "Console") -> list["Text"]:
        """Return the lines for a terminal."""
        width = console.width if self.width is None else min(console.width, self.width)
        head = _rich_text(map(_as_one_line, self.head))
        text = _rich_text(map(_as_one_line, self.text))
        if head.cell_len > width:
            pieces = _as_pieces(self.head)
            head = _rich_text(Piece(re.sub(" {2,}", "  ", p.text), p.style) for p in pieces)
        if not text:
            head.rstrip()
            return [head]
        column, beside = self.column, head.cell_len <= self.column
        if width - column < _NARROWEST:
            column, beside = min(_INDENT, width // 2), False
        lines = _wrap(text, max(1, width - column), console)
        below = [_rich_text([" " * column]).append_text(line) for line in lines]
        if not beside:
            return [head, *below] if head else below
        room = " " * (column - head.cell_len)
        return [head.append(room).append_text(lines[0]), *below[1:]]


@dataclass(frozen=True)
class Prose:
    """Paragraphs; text in `backticks` is styled as something to type."""

    text: str

    def __str__(self) -> str:
        return escaped(self.text)

    def render(self, console: "Console") -> list["Text"]:
        """Return the lines for a terminal."""
        widest_prose = 100  # maximum width of running text, on wide terminals too
        width = min(console.width, widest_prose)
        lines: list[Text] = []
        for paragraph in re.split(r"\n\s*\n", self.text):
            fits = all(len(line) <= width for line in paragraph.splitlines())
            flowing = paragraph if fits else " ".join(paragraph.split())
            typed = [
                Piece(part, "name" if part.startswith("`") else "")
                for part in re.split(r"(`[^`]*`)", flowing)
            ]
            lines += [_rich_text([])] if lines else []
            lines += _wrap(_rich_text(typed), width, console)
        return lines


@dataclass(frozen=True)
class Column:
    """A column of a table; `right` is for numbers, which are right-aligned and not wrapped."""

    title: str
    right: bool = False


@dataclass(frozen=True)
class TextTable:
    """Rows of cells below titles. On a terminal that is too narrow, each row becomes a block."""

    columns: Sequence[Column]
    rows: Sequence[Pieces]

    def __str__(self) -> str:
        titles = [column.title for column in self.columns]
        texts = [[_as_one_line(cell).text for cell in row] for row in self.rows]
        widths = [max(map(len, cells)) for cells in zip(titles, *texts, strict=True)]
        return "\n".join(
            "  ".join(
                f"{cell:>{width}}" if column.right else f"{cell:<{width}}"
                for cell, width, column in zip(row, widths, self.columns, strict=True)
            ).rstrip()
            for row in (titles, *texts)
        )

    def render(self, console: "Console") -> list["Text"]:
        """Return the lines for a terminal."""
        from rich.table import Table as RichTable
        from rich.text import Text

        cells = [[_as_one_line(cell) for cell in row] for row in self.rows]
        # rich measures a tab as no cell, and cuts off what follows it.
        cells = [[Piece(text.replace("\t", " "), style) for text, style in row] for row in cells]
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        least = 2 * (len(self.columns) - 1)
        for at, column in enumerate(self.columns):
            title = _rich_text([Piece(column.title, "heading")])
            needed = max(title.cell_len, *(_rich_text([row[at]]).cell_len for row in cells), 0)
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
            table.add_row(*(_rich_text([cell]) for cell in row))
        lines = [
            Text.assemble(*((part.text, part.style or "") for part in line))
            for line in console.render_lines(table, pad=False)
        ]
        for line in lines:
            line.rstrip()
        return lines

    def _blocks(self, cells: Sequence[Sequence[Piece]], console: "Console") -> list["Text"]:
        room = 2 + max(len(column.title) for column in self.columns)
        lines: list[Text] = []
        for row in cells:
            lines += [_rich_text([])] if lines else []
            for column, cell in zip(self.columns, row, strict=True):
                lines += Entry([Piece(column.title, "heading")], [cell], room).render(console)
        return lines


Renderable = Line | Entry | Prose | TextTable


class Page:
    """The output of a command: renderables below each other; `str` returns the plain text."""

    def __init__(self, *blocks: Renderable) -> None:
        self.blocks = blocks

    def __str__(self) -> str:
        return "\n".join(map(str, self.blocks))


BLANK = Line()


_IS_SILENT = ContextVar("is_silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Print nothing, and leave signals to others, within the block."""
    token = _IS_SILENT.set(True)
    try:
        yield
    finally:
        _IS_SILENT.reset(token)


@contextmanager
def silence_logging() -> Iterator[None]:
    """Log no warnings, and nothing less, within the block: of what is only measured or tried."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def is_silent() -> bool:
    """Return whether nothing is printed here."""
    return _IS_SILENT.get()


def print_out(page: Page | Renderable) -> None:
    """Print to standard output."""
    write_out(_rendered(page, sys.stdout))


def print_err(page: Page | Renderable) -> None:
    """Print to standard error."""
    if _IS_SILENT.get():
        return
    try:
        sys.stderr.write(_rendered(page, sys.stderr))
        sys.stderr.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_dead_terminal()  # SIGHUP was ignored, as `nohup` has it


@contextmanager
def replace_closed_streams() -> Iterator[Callable[[], None]]:
    """Put the null device in the place of closed standard streams.

    Else the next file that is opened would get their number, and what a library prints. Standard
    input stays None, so that whoever reads it can refuse to. In the end, drop what cannot be
    written: Python would try again at its exit, and complain.

    Yields:
        A function that raises RunError if standard output is closed.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
        os.set_inheritable(number, True)  # noqa: FBT003 - takes no keyword
        if name != "stdin":
            setattr(sys, name, os.fdopen(number, "w", closefd=False))

    def check() -> None:
        if "stdout" in closed or not _can_be_written(sys.stdout):
            raise RunError("standard output is closed; send it to a file, or to /dev/null")

    try:
        yield check
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                with suppress(OSError):
                    _redirect_to_null(stream.fileno())


def _can_be_written(stream: TextIO) -> bool:
    try:
        return fcntl.fcntl(stream.fileno(), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:  # something in memory
        return True


def write_out(text: str = "") -> None:
    """Write a text, and all that was printed; BrokenPipeError where its reader has gone."""
    if _IS_SILENT.get():
        return
    try:
        if text:
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno != errno.EIO:
            raise RunError(f"standard output cannot be written: {error.strerror}") from error
        leave_dead_terminal()  # SIGHUP was ignored, as `nohup` has it


def print_line(text: str) -> None:
    """Print a line of plain text to standard output."""
    print_out(Line(text))


def without_ignored(signals: Iterable[int]) -> list[int]:
    """Return the signals without those that this process was begun to ignore, as by `nohup`."""
    if _IS_SILENT.get():
        return []
    return [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]


def leave_dead_terminal() -> None:
    """Write nowhere from now on where a standard stream's terminal has gone, as after SIGHUP.

    To write there is an error (EIO), which must not break into the saving of a run.
    """
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                _redirect_to_null(stream)


def _redirect_to_null(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


@contextmanager
def handle_signals(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Have `handler` called at `numbers`, but those that are ignored, during the block."""

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_dead_terminal()
        handler(number, frame)

    with ExitStack() as stack:
        for number in without_ignored(numbers):
            stack.callback(signal.signal, number, signal.signal(number, handle))
        yield


def error(name: str, message: str) -> Line:
    """Return the error message of a command."""
    return Line(Piece(f"{name}:", "error"), f" {message}")


def paint(text: str, style: Style, stream: TextIO) -> str:
    """Return a text, styled if the stream is a colour terminal."""
    if not is_colourful(stream):
        return text
    console = _console(stream)
    with console.capture() as captured:
        console.print(_rich_text([Piece(text, style)]), end="", soft_wrap=True)
    return captured.get()


def is_colourful(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return stream.isatty()


def _rendered(page: Page | Renderable, stream: TextIO) -> str:
    return _in_colour(page, stream) if is_colourful(stream) else f"{page}\n"


def _in_colour(page: Page | Renderable, stream: TextIO) -> str:
    console = _console(stream)
    blocks: Iterable[Renderable] = page.blocks if isinstance(page, Page) else (page,)
    # On a closed pipe rich would end the process; the command line has its own exit code.
    with console.capture() as captured:
        for block in blocks:
            for line in block.render(console):
                console.print(line, soft_wrap=True)
    return captured.get()


def _console(stream: TextIO) -> "Console":
    # Imported here: piped output and training do not need rich.
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


def _as_pieces(pieces: Iterable[Piece | str]) -> list[Piece]:
    return [Piece(piece) if isinstance(piece, str) else piece for piece in pieces]


def _plain_text(pieces: Pieces) -> str:
    return in_one_line("".join(text for text, _ in _as_pieces(pieces)))


def _rich_text(pieces: Iterable[Piece | str]) -> "Text":
    from rich.text import Text

    return Text.assemble(*((escaped(text), style) for text, style in _as_pieces(pieces)))


def _wrap(text: "Text", width: int, console: "Console") -> list["Text"]:
    lines = list(text.wrap(console, width, tab_size=_INDENT))
    for line in lines:
        line.rstrip()
    return lines


def _as_one_line(cell: Piece | str) -> Piece:
    [(text, style)] = _as_pieces([cell])
    return Piece(in_one_line(text), style)
