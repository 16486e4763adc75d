"""What `predict` writes: a line of JSON or a row of a table for each text.

Each format can be read back, so that a command can go on where another was stopped.
"""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TextIO

from transfer_cli.commands.paths import check_ending
from transfer_cli.commands.predict import reading
from transfer_cli.commands.predict.reading import Columns, Row
from transfer_cli.data import readers
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.safe_files import STRICT_JSON
from transfer_cli.tasks.base import Answer

SUBMITTED = "glue"
"""The format of answers that are handed in to that benchmark."""

_INPUT = "input/"
"""Stands before the name of a column of the input that is the name of one of ours."""


class Answers(ABC):
    """Writes answers, in columns of ours (`ours`) and those kept of the input."""

    def __init__(self, out: TextIO, columns: Columns, ours: Sequence[str]) -> None:
        self.out = out
        self.columns = columns
        self.task = columns.task
        self.ours = ours
        self.begun = False
        """Whether the names of columns are written."""

    def renamed(self, row: Row) -> Row:
        """Return a row whose kept columns have other names than ours: `input/label`."""
        if not row.kept.keys() & set(self.ours):
            return row
        kept: dict[str, object] = {}
        for column, value in row.kept.items():
            name = column
            while name in self.ours or (name != column and name in row.kept):
                name = f"{_INPUT}{name}"
            kept[name] = value
        return replace(row, kept=kept)

    def problem_of(self, row: Row) -> str | None:
        """Return why a row cannot be written, if so; asked before it is labelled."""
        return _unwritable(row.kept)

    @abstractmethod
    def write(self, row: Row, answer: Answer) -> None:
        """Write one answer."""

    @abstractmethod
    def read(self, lines: Iterator[str]) -> Iterator[Any]:
        """Yield what was written for each row, up to where that cannot be read.

        Args:
            lines: Whole lines; no more of them are taken than a row needs.
        """

    @abstractmethod
    def is_for(self, row: Row, found: Any) -> bool:
        """Return whether what was read was written for this row, as far as can be seen."""

    def write_window(self, rows: Sequence[Row], answers: Sequence[Answer]) -> None:
        """Write the answers of a window."""
        for row, answer in zip(rows, answers, strict=True):
            self.write(row, answer)
        self.out.flush()


class JsonLines(Answers):
    """`{"text": ..., "label": ..., "probabilities": {...}}`, the pair and the columns kept."""

    def __init__(self, out: TextIO, columns: Columns) -> None:
        super().__init__(out, columns, ["text", *columns.task.fields, "pair"])
        self._encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

    def write(self, row: Row, answer: Answer) -> None:
        """Write one answer."""
        self.out.write(self._encode(self._record(row, self.task.written(answer))) + "\n")

    def _record(self, row: Row, answer: Mapping[str, object]) -> dict[str, object]:
        text, *others = self.task.texts(row.example)
        found: dict[str, object] = {"text": text, **answer}
        if others and self.columns.pair is not None:
            found["pair"] = others[0]
        found.update(row.kept)
        return found

    def read(self, lines: Iterator[str]) -> Iterator[Any]:
        """See `Answers`."""
        first = True
        for line in lines:
            try:
                found = STRICT_JSON.decode(line)
            except (ValueError, RecursionError):
                if not first:
                    return
                found = {}  # another format, for no row
            first = False
            yield found

    def is_for(self, row: Row, found: Any) -> bool:
        """See `Answers`."""
        if not isinstance(found, dict) or not found.keys() >= set(self.task.fields):
            return False
        wanted = self._record(row, {name: found[name] for name in self.task.fields})
        return list(found.items()) == list(wanted.items())


class Csv(Answers):
    """Columns `text`, perhaps `pair`, those of the answer, and those kept of the first row."""

    dialect: ClassVar[dict[str, Any]] = {}

    def __init__(self, out: TextIO, columns: Columns) -> None:
        self._texts = ["text"] if columns.pair is None else ["text", "pair"]
        super().__init__(out, columns, [*self._texts, *columns.task.cell_names])
        self._kept: list[str] | None = None
        # With this end of a row, values that hold either of its characters are put in quotes.
        lines = _WithoutReturns(out)
        self._write_row = csv.writer(lines, lineterminator="\r\n", **self.dialect).writerow

    def problem_of(self, row: Row) -> str | None:
        """See `Answers`."""
        if self._kept is None:
            self._kept = list(row.kept)
        other = [column for column in row.kept if column not in self._kept]
        if other:
            return (
                f"{other[0]!r} is not in the first row, and a table has the same columns in each; "
                "for JSON lines say output_format=jsonl."
            )
        return super().problem_of(row)

    def write(self, row: Row, answer: Answer) -> None:
        """Write one answer, and before the first one the names of the columns."""
        if not self.begun:
            self._write_row([*self.ours, *(self._kept or [])])
            self.begun = True
        texts, values = self._given(row)
        self._write_row([*texts, *self.task.cells(answer), *values])

    def _given(self, row: Row) -> tuple[list[str], list[str]]:
        """Return the cells before the answer, and those after it."""
        texts = self.task.texts(row.example)[: len(self._texts)]
        return list(texts), [_cell(row.kept.get(column)) for column in self._kept or []]

    def read(self, lines: Iterator[str]) -> Iterator[Any]:
        """See `Answers`; with the names of the columns in front of each row."""
        csv.field_size_limit(2 * readers.MAX_LINE_BYTES)  # the process's, 128 KiB by default
        rows = csv.reader(lines, strict=True, **self.dialect)
        with suppress(csv.Error, ValueError):
            names = next(rows, None)
            yield from ((names, cells) for cells in rows)

    def is_for(self, row: Row, found: Any) -> bool:
        """See `Answers`."""
        names, cells = found
        texts, values = self._given(row)
        after = len(names) - len(values)
        return (
            names == [*self.ours, *(self._kept or [])]
            and len(cells) == len(names)
            and cells[: len(texts)] == texts
            and cells[after:] == values
        )


class Tsv(Csv):
    """The same with tabs, and no quotes: a value can hold neither a tab nor the end of a line."""

    dialect: ClassVar = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}

    def __init__(self, out: TextIO, columns: Columns) -> None:
        super().__init__(out, columns)
        split = [label for label in self.task.labels if _splits(label)]
        if split:
            raise ConfigError(f"output_format: TSV cannot hold the label {split[0]!r}; take csv")

    def problem_of(self, row: Row) -> str | None:
        """See `Answers`."""
        problem = super().problem_of(row)
        values = [*self.task.texts(row.example), *row.kept]
        values += map(_cell, row.kept.values())
        if problem is None and any(map(_splits, values)):
            return "a tab or the end of a line in a value, which TSV cannot hold; CSV can."
        return problem

    def write(self, row: Row, answer: Answer) -> None:
        """See `Csv`."""
        if any(isinstance(cell, str) and _splits(cell) for cell in self.task.cells(answer)):
            raise DataError(
                f"line {row.line}: its answer holds a tab or the end of a line, which TSV cannot "
                "hold; take output_format=csv or jsonl"
            )
        super().write(row, answer)


class Submitted(Answers):
    """Columns `index` and `prediction`, parted by a tab, as a benchmark wants them."""

    NUMBERS = ("index", "id")
    """What benchmarks call the column of the number of a row."""

    def __init__(self, out: TextIO, columns: Columns) -> None:
        super().__init__(out, columns, ())

    def problem_of(self, row: Row) -> str | None:
        """See `Answers`."""
        if self._number(row):
            return super().problem_of(row)
        return f"no column {self.NUMBERS[0]!r} with its number, which output_format=glue writes."

    def write(self, row: Row, answer: Answer) -> None:
        """Write one answer, and before the first one the names of the columns."""
        if not self.begun:
            self.out.write("index\tprediction\n")
            self.begun = True
        said, *_ = self.task.cells(answer)
        shown = self.columns.submission.shown(said) if self.columns.submission else said
        self.out.write(f"{self._number(row)}\t{shown}\n")

    def read(self, lines: Iterator[str]) -> Iterator[Any]:
        """See `Answers`."""
        return (line.split("\t") for line in islice(lines, 1, None))

    def is_for(self, row: Row, found: Any) -> bool:
        """See `Answers`."""
        return len(found) == 2 and found[0] == self._number(row)

    def _number(self, row: Row) -> str:
        return next((str(row.kept[name]) for name in self.NUMBERS if name in row.kept), "")


ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")

FORMATS: Mapping[str, Callable[[TextIO, Columns], Answers]] = {
    "jsonl": JsonLines,
    "csv": Csv,
    "tsv": Tsv,
    SUBMITTED: Submitted,
}


class _WithoutReturns:
    """Ends rows with a line feed alone."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, row: str) -> int:
        return self._out.write(row[:-2] + "\n")


def _unwritable(kept: Mapping[str, object]) -> str | None:
    if not kept:
        return None
    try:
        json.dumps(dict(kept), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "a column holds half of a surrogate pair, which is no character."
    except RecursionError:
        return "a value is nested too deeply."
    except ValueError:
        return "a column holds NaN or Infinity, which is no JSON."
    return None


def _splits(value: str) -> bool:
    """Return whether a value of a table without quotes would be taken for several."""
    return any(mark in value for mark in "\t\n\r")


def _cell(value: object) -> str:
    """Return a value of JSON lines as a cell of a table."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def format_of(chosen: str, path: str) -> str:
    """Return the format of an output: the one chosen, else that of its ending, else jsonl."""
    if path != "-" and readers.is_packed(Path(path)):
        raise ConfigError(f"output: {path} would not be packed; leave its last ending out")
    if path != "-" and chosen == "auto":
        check_ending("output", path, ENDINGS, "; or say output_format=jsonl, csv or tsv")
    return reading.format_of(chosen, path, "jsonl")
