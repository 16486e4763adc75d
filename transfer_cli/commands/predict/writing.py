"""What `predict` writes: a line of JSON or a row of a table for each text.

A record is what stands before its answer, the answer, and what stands after it. The first and the
last are known without the answer, so records that another command has left can be told from those
of other rows, in all formats alike.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TextIO

from transfer_cli.commands.paths import check_ending
from transfer_cli.commands.predict import reading
from transfer_cli.commands.predict.reading import Columns, Row
from transfer_cli.data import readers
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.safe_files import STRICT_JSON
from transfer_cli.tasks.base import WARNING, Answer

SUBMITTED = "glue"
"""The format of answers that are handed in to that benchmark."""


class Answers(ABC):
    """Writes answers, in columns of ours (`ours`) and those kept of the input."""

    spans_lines: ClassVar[bool] = False
    """Whether a record has more than one line where a value in quotes has."""

    def __init__(self, out: TextIO, columns: Columns, ours: Sequence[str]) -> None:
        self.out = out
        self.columns = columns
        self.task = columns.task
        self.ours = ours
        self.file: str | None = None
        """The file that is read, where there are several: it stands beside each answer."""
        self.begun = False
        """Whether the names of columns are written."""

    def with_place(self, row: Row) -> Row:
        """Return a row as it is written: of several files with its own, and its line, before all.

        Its other columns that are kept have other names than ours: `input/label`.
        """
        place = {} if self.file is None else {"file": self.file, "line": row.line}
        names = {*self.ours, *place}
        if not place and not row.kept.keys() & names:
            return row
        kept: dict[str, object] = {**place}
        # Stands before the name of a column of the input that is the name of one of ours.
        input = "input/"
        for column, value in row.kept.items():
            name = column
            while name in names or (name != column and name in row.kept):
                name = f"{input}{name}"
            kept[name] = value
        return replace(row, kept=kept)

    def problem_of(self, row: Row) -> str | None:
        """Return why a row cannot be written, if so; asked before it is labelled."""
        return _why_unwritable(row.kept)

    def header(self) -> str:
        """Return the record of the names of columns; empty where each record has them."""
        return ""

    @abstractmethod
    def before_and_after(self, row: Row) -> tuple[str, str]:
        """Return what stands before and after the answer to a row."""

    @abstractmethod
    def answer(self, row: Row, answer: Answer) -> str:
        """Return an answer as it is written."""

    def may_be_answer(self, written: str) -> bool:
        """Return whether what stands between can be an answer; else it has columns of others."""
        return True

    def is_for(self, row: Row, record: str) -> bool:
        """Return whether a record was written for this row, as far as can be seen."""
        before, after = self.before_and_after(row)
        is_long = len(record) >= len(before) + len(after)
        if not (is_long and record.startswith(before) and record.endswith(after)):
            return False
        return self.may_be_answer(record[len(before) : len(record) - len(after)])

    def write_window(self, rows: Sequence[Row], answers: Sequence[Answer]) -> None:
        """Write the answers of a window, and before the first one the names of the columns."""
        for row, answer in zip(rows, answers, strict=True):
            before, after = self.before_and_after(row)
            record = f"{before}{self.answer(row, answer)}{after}"
            self.out.write(record if self.begun else f"{self.header()}{record}")
            self.begun = True
        self.out.flush()


class JsonLines(Answers):
    """`{"text": ..., "label": ..., "probabilities": {...}}`, the pair and the columns kept.

    `"warning": "empty"`, or `"unknown"`, stands behind an answer that has one.
    """

    def __init__(self, out: TextIO, columns: Columns) -> None:
        super().__init__(out, columns, ["text", *columns.task.fields, WARNING, "pair"])
        self._encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

    def before_and_after(self, row: Row) -> tuple[str, str]:
        text, *others = self.task.texts(row.example)
        pair = {"pair": others[0]} if others and self.columns.chosen.pair is not None else {}
        after = self._members({**pair, **row.kept})
        begin = self._encode({"text": text}).removesuffix("}")
        return f"{begin}, ", f"{', ' if after else ''}{after}}}\n"

    def answer(self, row: Row, answer: Answer) -> str:
        return self._members(self.task.line(answer))

    def may_be_answer(self, written: str) -> bool:
        try:
            names = list(STRICT_JSON.decode(f"{{{written}}}"))
        except (ValueError, RecursionError):
            return False
        return names in ([*self.task.fields], [*self.task.fields, WARNING])

    def _members(self, values: Mapping[str, object]) -> str:
        return self._encode(values).removeprefix("{").removesuffix("}")


class Csv(Answers):
    """Columns `text`, perhaps `pair`, the answer's, `warning`, and those kept of the first row."""

    spans_lines = True
    delimiter: ClassVar[str] = ","

    def __init__(self, out: TextIO, columns: Columns) -> None:
        self._texts = ["text"] if columns.chosen.pair is None else ["text", "pair"]
        super().__init__(out, columns, [*self._texts, *columns.task.cell_names, WARNING])
        self._kept: list[str] | None = None

    def problem_of(self, row: Row) -> str | None:
        if self._kept is None:
            self._kept = list(row.kept)
        other = [column for column in row.kept if column not in self._kept]
        if other:
            return (
                f"{other[0]!r} is not in the first row, and a table has the same columns in each; "
                "for JSON lines say output_format=jsonl."
            )
        return super().problem_of(row)

    def header(self) -> str:
        return self._row([*self.ours, *(self._kept or [])]) + "\n"

    def before_and_after(self, row: Row) -> tuple[str, str]:
        texts = self.task.texts(row.example)[: len(self._texts)]
        kept = [_cell(row.kept.get(column)) for column in self._kept or []]
        return self._row([*texts, ""]), self._row(["", *kept]) + "\n"

    def answer(self, row: Row, answer: Answer) -> str:
        return self._row(map(str, [*self.task.cells(answer), answer.get(WARNING, "")]))

    def _row(self, cells: Iterable[str]) -> str:
        return self.delimiter.join(map(self._quoted, cells))

    def _quoted(self, cell: str) -> str:
        if not any(mark in cell for mark in ',"\r\n'):
            return cell
        return '"{}"'.format(cell.replace('"', '""'))


class Tsv(Csv):
    """The same with tabs, and no quotes: a value can hold neither a tab nor the end of a line."""

    spans_lines = False
    delimiter = "\t"

    def __init__(self, out: TextIO, columns: Columns) -> None:
        super().__init__(out, columns)
        split = [label for label in self.task.labels if _holds_separator(label)]
        if split:
            raise ConfigError(f"output_format: TSV cannot hold the label {split[0]!r}; take csv")

    def problem_of(self, row: Row) -> str | None:
        problem = super().problem_of(row)
        values = [*self.task.texts(row.example), *row.kept]
        values += map(_cell, row.kept.values())
        if problem is None and any(map(_holds_separator, values)):
            return "a tab or the end of a line in a value, which TSV cannot hold; CSV can."
        return problem

    def answer(self, row: Row, answer: Answer) -> str:
        if any(map(_holds_separator, map(str, self.task.cells(answer)))):
            raise DataError(
                f"line {row.line}: its answer holds a tab or the end of a line, which TSV cannot "
                "hold; take output_format=csv or jsonl"
            )
        return super().answer(row, answer)

    def _quoted(self, cell: str) -> str:
        return cell


class Submitted(Answers):
    """Columns `index` and `prediction`, parted by a tab, as a benchmark wants them."""

    NUMBERS = ("index", "id")
    """What benchmarks call the column of the number of a row."""

    def __init__(self, out: TextIO, columns: Columns) -> None:
        super().__init__(out, columns, ())

    def problem_of(self, row: Row) -> str | None:
        if self._number(row):
            return super().problem_of(row)
        return f"no column {self.NUMBERS[0]!r} with its number, which output_format=glue writes."

    def header(self) -> str:
        return "index\tprediction\n"

    def before_and_after(self, row: Row) -> tuple[str, str]:
        return f"{self._number(row)}\t", "\n"

    def answer(self, row: Row, answer: Answer) -> str:
        predicted, *_ = self.task.said(answer) or self.task.cells(answer)
        submission = self.columns.submission
        return str(submission.format_answer(predicted) if submission else predicted)

    def _number(self, row: Row) -> str:
        return next((str(row.kept[name]) for name in self.NUMBERS if name in row.kept), "")


ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")

FORMATS: Mapping[str, Callable[[TextIO, Columns], Answers]] = {
    "jsonl": JsonLines,
    "csv": Csv,
    "tsv": Tsv,
    SUBMITTED: Submitted,
}


def _why_unwritable(kept: Mapping[str, object]) -> str | None:
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


def _holds_separator(value: str) -> bool:
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
