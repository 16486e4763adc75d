"""The rows that `predict` is given: read one by one, and grouped into windows.

The rows of a window are labelled together. They can then be sorted by length, and memory does not
grow with the file. It is full after so many rows or characters, and where the next line of a pipe
is not there yet: a line that is typed is answered before the next one.
"""

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from transfer_cli.data import readers
from transfer_cli.data.columns import choose_columns
from transfer_cli.data.labelled import Submission
from transfer_cli.data.layout import Layout
from transfer_cli.data.readers import OnError
from transfer_cli.data.records import Record
from transfer_cli.data.table import OpenTable, open_table, sound_rows, table_of_lines
from transfer_cli.data.wanted import ANY, LABEL, PAIR, TEXT, Chosen, Wanted
from transfer_cli.errors import DataError
from transfer_cli.tasks.base import Task

WINDOW_CHARACTERS = 2**20
"""After how many characters a window is full. Encoding can take 400 bytes of memory for each."""

_CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Row:
    """A row of the input, by the line on which it begins, with the columns kept for the output."""

    line: int
    example: Any
    kept: Mapping[str, object]
    characters: int


@dataclass(frozen=True)
class Columns:
    """The columns of the texts, and whether the others go to the output.

    Where answers are handed in to a benchmark, `submission` says how.
    """

    chosen: Chosen
    keep: bool
    task: Task
    submission: Submission | None = None

    @property
    def names(self) -> set[str]:
        """The columns that are read."""
        texts, pair = self.chosen.texts or (self.chosen.text,), self.chosen.pair
        return {*texts, *self.task.columns, *([] if pair is None else [pair])}

    def row_of(self, record: Record, name: str) -> Row:
        """Return the row that a record is."""
        whole = self.chosen.join_texts(record, name)
        example = self.task.read(whole, self.chosen.text, self.chosen.pair, name)
        kept: Mapping[str, object] = {}
        if self.keep or self.submission:
            names = self.names
            kept = {key: value for key, value in record.fields.items() if key not in names}
        return Row(record.line, example, kept, sum(map(len, self.task.texts(example))))


def task_column(
    names: Sequence[str], asked: Wanted, trained_on: Wanted, task: Task, name: str
) -> str | None:
    """Return the column that the task reads, unless one was typed, now or for training."""
    is_typed = bool({asked.text or trained_on.text, *asked.texts, *trained_on.texts} & {*names})
    return None if is_typed else task.text_column(names, name)


def columns_for(table: OpenTable, asked: Wanted, trained_on: Wanted, task: Task) -> Chosen:
    """Return the columns to read: those that were typed, now or for training, else the task's."""
    column = task_column(table.names, asked, trained_on, task, table.name)
    if column is not None:
        return Chosen(column, None, LABEL)
    return table.columns(replace(asked, paired=task.reads_pairs), trained_on)


def example_from_record(record: Record, task: Task, trained_on: Wanted, name: str) -> Any:
    """Return the example in a record that stands alone, whose columns are found as in a table.

    Args:
        trained_on: The columns of the table that the model was trained on.
        name: What the record is part of, in messages.
    """
    names = [*record.fields]
    column = task_column(names, ANY, trained_on, task, name)
    if column is None:
        join, paired = trained_on.join, task.reads_pairs
        columns = replace(ANY, join=join, labelled=False, paired=paired, keys="")
        columns = columns.filled_from(trained_on, names)
        chosen = choose_columns(names, [record.fields], columns, name)
    else:
        chosen = Chosen(column, None, LABEL)
    if chosen.text == TEXT and chosen.pair is None and PAIR in names:
        chosen = replace(chosen, pair=PAIR)
    return Columns(chosen, keep=False, task=task).row_of(record, name).example


def read_rows(table: OpenTable, columns: Columns, on_error: OnError) -> Iterator[Row]:
    """Yield the rows of an input."""
    return sound_rows(table, columns.names, partial(columns.row_of, name=table.name), on_error)


def windows(rows: Iterator[Row], most: int, is_ready: Callable[[], bool]) -> Iterator[list[Row]]:
    """Yield at most `most` rows at a time, in order; no row is taken before its window needs it."""
    window: list[Row] = []
    characters = 0
    for row in rows:
        window.append(row)
        characters += row.characters
        if len(window) >= most or characters >= WINDOW_CHARACTERS or not is_ready():
            yield window
            window, characters = [], 0
    if window:
        yield window


class PipedLines:
    """Lines of a pipe or a terminal, which may come slowly.

    Python's own reader of them cannot tell whether there is more without waiting for it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""
        self._at = 0
        self._ended = False

    def readline(self, size: int, /) -> bytes:
        """Return the bytes up to the end of the line, at most `size`; none at the end."""
        pieces, left = [], size
        while left:
            end = self._data.find(b"\n", self._at, self._at + left) + 1
            piece = self._data[self._at : end or self._at + left]
            self._at += len(piece)
            left -= len(piece)
            pieces.append(piece)
            if end or (left and not self._read_more()):
                break
        return b"".join(pieces)

    def first_line(self) -> bytes:
        """Wait for the first line and return it; it is read again."""
        while (end := self._data.find(b"\n") + 1) == 0:
            if len(self._data) > readers.MAX_LINE_BYTES or not self._read_more():
                return self._data
        return self._data[:end]

    def is_ready(self) -> bool:
        """Return whether a line, or the end of all, can be read without waiting."""
        while self._data.find(b"\n", self._at) < 0:
            if not self._ended and not select.select([self._descriptor], [], [], 0)[0]:
                return False
            if len(self._data) - self._at > readers.MAX_LINE_BYTES or not self._read_more():
                return True
        return True

    def _read_more(self) -> bool:
        """Wait for more; return False at the end."""
        if not self._ended:  # a terminal would ask for a second end of input
            more = os.read(self._descriptor, _CHUNK_BYTES)
            self._data, self._at = self._data[self._at :] + more, 0
            self._ended = not more
        return not self._ended


@dataclass(frozen=True)
class Input:
    """Where rows come from, and whether more can be read without waiting."""

    table: OpenTable
    is_ready: Callable[[], bool] = lambda: True


@contextlib.contextmanager
def open_input(path: str, table_format: str, given: Layout, asked: Wanted) -> Iterator[Input]:
    """Open a file, or standard input for `-`, whose first line is all that is looked at."""
    if path != "-":
        file = Path(path).expanduser()
        with open_table(file, table_format, given, asked) as table:
            yield Input(replace(table, name=path))
        return
    if sys.stdin is None:
        raise DataError("input: standard input is closed; name a file with input=FILE")
    if table_format in readers.SHEET_FORMATS:
        raise DataError(f"input: {table_format} cannot be read from a pipe; name a file")
    name = "standard input"
    try:
        piped = PipedLines(sys.stdin.fileno())
    except io.UnsupportedOperation:  # something in memory, at which nobody looks
        stream = sys.stdin.buffer
        yield Input(table_of_lines(b"", stream, name, table_format, given, asked))
    else:
        start = b"" if table_format == "text" else piped.first_line()
        table = table_of_lines(start, piped, name, table_format, given, asked)
        yield Input(table, piped.is_ready)


@contextlib.contextmanager
def open_inputs(
    names: Sequence[str],
    open_one: Callable[[str], AbstractContextManager[Input]],
    choose_columns: Callable[[OpenTable, Wanted | None], Chosen],
) -> Iterator[tuple[Chosen, Iterator[Input]]]:
    """Look at all files, so that a misfit is found at once, and open each in its turn.

    Args:
        choose_columns: Returns a file's columns, given those of the first, which it should have.
    """
    with open_one(names[0]) as first:
        chosen = choose_columns(first.table, None)
        for name in names[1:]:
            with open_one(name) as opened_input:
                other = choose_columns(opened_input.table, chosen.as_wanted())
            if (other.text, other.pair) != (chosen.text, chosen.pair):
                raise DataError(
                    f"input: {name} has other columns than {names[0]}: texts in {other.text!r} "
                    f"and not in {chosen.text!r}. To read one that both have, say text=COLUMN"
                )
        yield chosen, chain([first], _open_in_turn(names[1:], open_one))


def _open_in_turn(
    names: Sequence[str], open_one: Callable[[str], AbstractContextManager[Input]]
) -> Iterator[Input]:
    for name in names:
        with open_one(name) as opened_input:
            yield opened_input


def format_of(chosen: str, path: str, default: str = "text") -> str:
    """Return the format of a file: the one chosen, else that of its ending, else the default."""
    if chosen != "auto":
        return chosen
    return (readers.format_of(Path(path)) if path != "-" else None) or default
