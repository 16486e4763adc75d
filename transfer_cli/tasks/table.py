"""Own labelled tables, and those of the Hugging Face hub: one label for each text."""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from transfer_cli.data import readers
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.hub_client import located
from transfer_cli.data.label_names import joined_by, look_over, say_numbers
from transfer_cli.data.labelled import INPUT, Example, LabelledData
from transfer_cli.data.layout import Layout, delimiter_name
from transfer_cli.data.records import MAX_LABELS, Record, label_of, text_of, value_of
from transfer_cli.data.split import Whole
from transfer_cli.data.table import Refuse, Skipped, open_table, sound_rows
from transfer_cli.data.wanted import ANY, Chosen, Wanted, typed
from transfer_cli.errors import DataError, nearest
from transfer_cli.progress import progress
from transfer_cli.runs.directory import HUB
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.sources import LabelledFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableRow:
    """What is read of a row of a table; several labels are a tuple."""

    line: int
    text: str
    label: Any
    pair: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the row."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)


@dataclass(frozen=True)
class TableRows:
    """The rows of a file, from which columns they are, and how many were left out."""

    rows: Sequence[TableRow]
    columns: Chosen
    num_skipped: int

    def part_of(self, path: Path) -> Whole:
        """Return what they are all that can be read of."""
        skipped = f"{self.num_skipped:,} cannot be read"
        return Whole(str(path), len(self.rows) + self.num_skipped, (skipped,))


@dataclass(kw_only=True)
class Table(LabelledFiles):
    """Own labelled tables: CSV, TSV or JSON lines, plain or packed as `.gz`, `.xz` or `.zst`.

    With the extra `tables`, Parquet files and sheets of spreadsheets as well, with `hf`
    splits of the hub's data sets, too (`hub_client.located`). What is not said of a table is
    recognised in each file by itself: see `layout` and `columns`.

    The labels are those of the training file, sorted (as numbers when all are whole numbers).

    Args:
        text: The column of the text; None: by its name, else by what is in it. So are the others.
        pair: The column of a second text; None also where there is none.
        label: The column of the label; of several labels (`LabelsTable`) perhaps a column each.
        header: Whether the first row of CSV or TSV names the columns, or the line that does.
            Without it they are called by their number, counted from 1.
        delimiter: What stands between columns, see `layout.Layout`.
        encoding: As Python names it.
        quotes: What they mean, one of `layout.QUOTES`.
        sheet: Of a spreadsheet, by name or number from 1; None: the one that is like a table.
        format: `csv`, `tsv`, `jsonl`, `parquet` or `xlsx`; None to go by the files' names.
        errors: Whether a row that cannot be read stops all, or is left out and counted.
        truncate: Which of two texts is cut where they are too long together, see
            `encoded_task.kept`.
    """

    text: str | int | None = None
    pair: str | int | None = None
    label: str | int | tuple[str | int, ...] | None = None
    header: bool | int | None = None
    delimiter: str | None = None
    encoding: str | None = None
    quotes: str | None = None
    sheet: str | int | None = None
    format: Literal["csv", "tsv", "jsonl", "parquet", "xlsx"] | None = None
    errors: Literal["stop", "skip"] = "stop"
    truncate: Truncate = "longest_first"

    task: ClassVar[type[Task]] = ClassificationTask
    most_labels: ClassVar[float] = MAX_LABELS
    numbers: ClassVar[bool] = False
    """Whether the column of the label holds numbers, and not names of classes."""
    several: ClassVar[bool] = False
    """Whether a row has several labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layout = Layout(self.delimiter, self.encoding, self.header, self.quotes, self.sheet)
        labels = self.label if isinstance(self.label, tuple) else (self.label,)
        if isinstance(self.label, tuple) and not self.several:
            raise ValueError(
                f"label is [{','.join(map(str, labels))}]; several labels a text, a column each, "
                "are for data=labels objective=multilabel"
            )
        both = {*labels} & {self.text, self.pair} - {None}
        if both or len({*labels}) < len(labels) or not labels:
            wrong = f"{min(map(str, both))!r} is the column of a text" if both else "name each once"
            raise ValueError(f"label is {self.label!r}: {wrong}.")

    @property
    def paths(self) -> dict[str, Path]:
        """See `LabelledFiles`; that of a split of the hub is a folder, fetched at need."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: located(path) for name, path in given.items() if path}

    def examples(self, paths: Mapping[str, Path], own: Wanted = ANY) -> LabelledData:
        """See `LabelledFiles`; other files are read from the columns of the first if they can."""
        keys = "" if INPUT in paths else "data."
        tables: dict[str, TableRows] = {}
        for split, path in paths.items():
            tables[split] = self._rows(path, own, keys)
            own = next(iter(tables.values())).columns.asked()
        first = next(iter(paths))
        labels = self.labels(tables[first].rows)
        splits = {
            split: self.of_rows(table.rows, labels, paths[split], split)
            for split, table in tables.items()
        }
        node = self.task.node(**self.options())
        part_of = {
            split: table.part_of(paths[split])
            for split, table in tables.items()
            if table.num_skipped
        }
        return LabelledData(
            paths[first].stem, labels, splits, node, part_of, paths, cells=self.cells
        )

    def labels(self, train: Sequence[TableRow]) -> tuple[str, ...]:
        """See `LabelledFiles`; they are those of rows."""
        return sorted_labels(itertools.chain.from_iterable(row.labels for row in train))

    def of_rows(
        self, rows: Sequence[TableRow], labels: Sequence[str], path: Path, split: str
    ) -> list[Any]:
        """Return the examples in the rows of a split, whose labels are among those of `train`."""
        numbers = numbers_of(rows, labels, path, split)
        return [self.example(row, of_row) for row, of_row in zip(rows, numbers, strict=True)]

    def example(self, row: TableRow, numbers: tuple[int, ...]) -> Any:
        """Return the example in a row, given the numbers of its labels."""
        return Example(row.text, numbers[0], row.pair, row.line)

    def cells(self, path: Path, column: str) -> dict[int, str]:
        """Return what stands in a column, by line."""
        asked = replace(self.columns, keys="")
        with open_table(path, self._format_of(path, "data."), self._layout, asked) as table:
            rows = table.records(Skipped() if self.errors == "skip" else readers.refuse)
            return {row.line: str(value_of(row, column, str(path))) for row in rows}

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """Return what is read of a record; equal labels are one text in memory."""
        text = text_of(record, columns.text, name)
        pair = None if columns.pair is None else text_of(record, columns.pair, name)
        return TableRow(record.line, text, self.label_in(record, columns, name, labels), pair)

    def label_in(self, record: Record, columns: Chosen, name: str, labels: dict[str, str]) -> Any:
        """Return what is said of a row: here its label."""
        label = label_of(record, columns.label, name)
        return labels.setdefault(label, label)

    def check(self, task: Task, train: Sequence[Any], where: str) -> None:
        """See `LabelledSource`; labels that are surely several, joined, are told of."""
        labels = task.labels
        mark = joined_by(labels)
        if mark is not None:
            log.warning(
                "%s: labels such as %r look like several in a row; to learn them one by one: "
                "data=labels objective=multilabel data.separator=%s",
                where, next(label for label in labels if mark in label)[:80], delimiter_name(mark),
            )  # fmt: skip
        super().check(task, train, where)
        given = Counter(example.label for example in train)
        counts = {label: given[number] for number, label in enumerate(labels)}
        look_over(counts, where)
        say_numbers(counts, where)

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(typed(self.text, self.pair, self.label), numbers=self.numbers)

    def _format_of(self, path: Path, keys: str) -> str:
        table_format = self.format or readers.format_of(path)
        if table_format is None:
            raise readers.unknown_format(path, keys)
        return table_format

    def _rows(self, path: Path, own: Wanted = ANY, keys: str = "data.") -> TableRows:
        """Return the rows of a file, from the columns `own` of another file if it has them."""
        asked = replace(self.columns, keys=keys)
        skipped = Skipped()
        with (
            open_table(path, self._format_of(path, keys), self._layout, asked) as table,
            progress(f"reading {path}", partial(readers.count_lines, path), "lines") as more,
        ):
            columns = table.columns(asked, own)
            labels: dict[str, str] = {}
            read = partial(self.row_of, columns=columns, name=str(path), labels=labels)
            on_error = skipped if self.errors == "skip" else Refuse(f"{keys}errors")
            rows = list[TableRow]()
            for row in sound_rows(table, columns.read, read, on_error):
                more(row.line - (rows[-1].line if rows else 0))
                rows.append(row)
                if len(labels) > self.most_labels:
                    raise DataError(
                        f"{path}, line {row.line}: more than {MAX_LABELS:,} different labels. "
                        f"Is {columns.label!r} the column of the label?"
                    )
        skipped.say(len(rows), str(path))
        return TableRows(rows, columns, skipped.count)


@dataclass(kw_only=True)
class HubTable(Table):
    """A data set of the hub whose rows have one label; see `Table`, `data.hub_client`.

    Args:
        name: `owner/name`.
        config: Which of its tables; None: the only one, or `default`.
        split: The name of the split to train on.
        validation: That of the split to validate on; without it a share of the training rows is
            held out.
        test: That of the test split; without it there is none.
    """

    name: str
    config: str | None = None
    split: str = "train"
    train: str = field(init=False)

    def __post_init__(self) -> None:
        if self.name.count("/") != 1:
            raise ValueError(f"name is {self.name!r}, expected owner/name")
        place = f"{HUB}{self.name}/{self.config}" if self.config else f"{HUB}{self.name}"
        self.train = f"{place}/{self.split}"
        self.validation = self.validation and f"{place}/{self.validation}"
        self.test = self.test and f"{place}/{self.test}"
        super().__post_init__()


def sorted_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return all labels, sorted: as numbers when all are whole numbers."""
    labels = sorted(set(names))
    # 18 digits always fit; a longer "number" is an identifier.
    if all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in labels):
        labels.sort(key=int)
    return tuple(labels)


def numbers_of(
    rows: Sequence[TableRow], labels: Sequence[str], path: Path, split: str
) -> list[tuple[int, ...]]:
    """Return the numbers of each row's labels, all of which must occur in training."""
    numbers = {label: number for number, label in enumerate(labels)}
    unknown = {label: row.line for row in reversed(rows) for label in row.labels
               if label not in numbers}  # fmt: skip
    if unknown:
        first, others = min(unknown, key=unknown.__getitem__), len(unknown) - 1
        more = f" (and {others} other label{'s' * (others > 1)})" if others else ""
        raise DataError(
            f"{path}, line {unknown[first]}: the label {first!r}{more} of {split} is not among "
            f"the {len(labels)} labels of train.{nearest(first, labels)}"
        )
    return [tuple(numbers[label] for label in row.labels) for row in rows]
