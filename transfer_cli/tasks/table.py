"""Own labelled tables, and those of the Hugging Face hub: one label for each text."""

import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from transfer_cli.data import readers
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.label_names import (
    LabelRules,
    label_separator,
    log_label_differences,
    warn_of_numbers,
    warn_of_unclear_labels,
)
from transfer_cli.data.labelled import INPUT, Example, LabelledData
from transfer_cli.data.layout import Layout, delimiter_name
from transfer_cli.data.records import MAX_LABELS, Record, label_of, text_of, value_of
from transfer_cli.data.split import Whole
from transfer_cli.data.table import Refuse, Skipped, open_table, sound_rows, warn_of_skipped
from transfer_cli.data.wanted import ANY, LABEL, TEXT, Chosen, Wanted, parse_columns
from transfer_cli.errors import DataError, at_least, did_you_mean, list_names
from transfer_cli.progress import progress
from transfer_cli.runs.directory import HUB
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.sources import LabelledFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableRow:
    """What is read of a row of a table, of whose split `file` is one of several.

    Several labels are a tuple.
    """

    line: int
    text: str
    label: Any
    pair: str | None = None
    file: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the row."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)


@dataclass(frozen=True)
class TableRows:
    """The rows of a file, all its columns, those that were read, and what was left out."""

    path: Path
    rows: Sequence[TableRow]
    names: Sequence[str]
    columns: Chosen
    skipped: Skipped

    def check_same_columns(self, first: "TableRows", asked: Wanted) -> None:
        """Refuse a table that has other columns than the first one of its split.

        Where text and label were typed, no others matter.
        """
        both = {self.path: self, first.path: first}
        alone = [
            f"{list_names((repr(name[:80]) for name in names), 4)} in {path} alone"
            for path, other in zip(both, reversed(both.values()), strict=True)
            if (names := [name for name in both[path].names if name not in other.names])
        ]
        is_typed = (asked.text or asked.texts) and (asked.label or asked.labels)
        if self.columns.as_wanted() != first.columns.as_wanted() or (alone and not is_typed):
            keys, difference = asked.keys, " and ".join(alone) or "they are in another order"
            raise DataError(
                f"{self.path} has other columns than {first.path}: {difference}. To read two that "
                f"both have, say {keys}{TEXT}=COLUMN {keys}{LABEL}=COLUMN."
            )


@dataclass(kw_only=True)
class Table(LabelledFiles):
    """Own labelled tables: CSV, TSV or JSON lines, plain or packed as `.gz`, `.xz` or `.zst`.

    With the extra `tables`, Parquet files and sheets of spreadsheets as well, with `hf`
    splits of the hub's data sets, too (`hub_client.resolve_path`). What is not said of a table is
    recognised in each file by itself: see `layout` and `columns`.

    The labels are those of the training file, sorted (as numbers when all are whole numbers).

    Args:
        text: The column of the text; None: by its name, else by what is in it. So are the others.
            Of a list the texts are joined.
        join: What stands between these, by its name in `wanted.JOINS`, or any text.
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
            `encoded_task.kept_sizes`.
        merge_labels: Whether spellings of a label are joined, see `LabelRules`; so are
        least: what is a rare label, and
        rare: what becomes of it.
    """

    text: str | int | tuple[str | int, ...] | None = None
    join: str = "space"
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
    merge_labels: bool = False
    least: int = 5
    rare: Literal["keep", "drop", "other"] = "keep"

    task: ClassVar[type[Task]] = ClassificationTask
    read_as_trained: ClassVar[tuple[str, ...]] = ("join", "merge_labels", "least", "rare")
    numbers: ClassVar[bool] = False
    """Whether the column of the label holds numbers, and not names of classes."""
    named: ClassVar[bool] = True
    """Whether labels are names, and examples have their numbers."""
    several: ClassVar[bool] = False
    """Whether a row has several labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("least", self.least, 1)
        self._rules = LabelRules(self.merge_labels, self.least, self.rare)
        self._layout = Layout(self.delimiter, self.encoding, self.header, self.quotes, self.sheet)
        labels = self.label if isinstance(self.label, tuple) else (self.label,)
        if isinstance(self.label, tuple) and not self.several:
            raise ValueError(
                f"label is [{','.join(map(str, labels))}]; several labels a text, a column each, "
                "are for data=labels objective=multilabel"
            )
        texts = self.text if isinstance(self.text, tuple) else (self.text,)
        if len({*texts}) < len(texts) or not texts:
            raise ValueError(f"text is {[*texts]}: name each column once.")
        both = {*labels} & {*texts, self.pair} - {None}
        if both or len({*labels}) < len(labels) or not labels:
            wrong = f"{min(map(str, both))!r} is the column of a text" if both else "name each once"
            raise ValueError(f"label is {self.label!r}: {wrong}.")

    def examples(self, paths: Mapping[str, Sequence[Path]], columns: Wanted = ANY) -> LabelledData:
        """See `LabelledFiles`; other files are read from the columns of the first if they can."""
        keys = "" if INPUT in paths else "data."
        selection, tables = replace(self.columns, keys=keys), dict[str, list[TableRows]]()
        for split, files in paths.items():
            tables[split] = []
            for path in files:
                table = self._read_rows(path, columns, keys, is_only=len(files) == 1)
                columns = next(chain(*tables.values(), [table])).columns.as_wanted()
                table.check_same_columns(next(iter(tables[split]), table), selection)
                tables[split].append(table)
        warn_of_skipped([table.skipped for table in chain(*tables.values())])
        rows = {split: [*chain(*(file.rows for file in files))] for split, files in tables.items()}
        first = next(iter(paths))
        labels = self.labels(rows[first])
        # What a run is scored on has the labels of the run, see `with_label_numbers`.
        if labels and first != INPUT:
            rows = self._relabel(rows, list_names(paths[first], 1))
            labels = self.labels(rows[first])
        if labels and len(paths[first]) > 1:
            by_file: dict[object, set[str]] = {}
            for row in rows[first]:
                by_file.setdefault(row.file, set()).update(row.labels)
            log_label_differences(by_file)
        splits = {
            split: self.build_examples(of_split, labels, list_names(paths[split], 1), split)
            for split, of_split in rows.items()
        }
        node = self.task.node(**self.options())
        part_of = {
            split: Whole(
                list_names(paths[split], 1),
                len(rows[split]) + count,
                (f"{count:,} cannot be read",),
            )
            for split, of_split in tables.items()
            if (count := sum(table.skipped.count for table in of_split))
        }
        return LabelledData(
            paths[first][0].stem, labels, splits, node, part_of, paths, cells=self.column_by_line,
            called=self._rules.known_name,
        )  # fmt: skip

    def _relabel(self, rows: Mapping[str, list[TableRow]], where: str) -> dict[str, list[TableRow]]:
        """Return the rows of each split, training's first, with labels as they are learnt."""
        renamed: dict[str, list[TableRow]] = {}
        learnt: list[str] = []
        for split, of_split in rows.items():
            counts = Counter(chain.from_iterable(row.labels for row in of_split))
            if learnt:
                names = {label: self._rules.known_name(label, learnt) for label in counts}
            else:
                names = self._rules.learnt_names(counts, where)
                learnt = [*dict.fromkeys(filter(None, names.values()))]
            num_dropped = sum(counts[label] for label, name in names.items() if name is None)
            if num_dropped and not self.several and num_dropped == len(of_split):
                raise DataError(f"data.{split}: none of its labels was learnt; say data.rare=keep")
            if num_dropped and renamed:
                log.warning(
                    "%s: %s of its labels were not learnt (data.rare=drop) and are left out",
                    split, f"{num_dropped:,}",
                )  # fmt: skip
            is_same = all(label == name for label, name in names.items())
            renamed[split] = of_split if is_same else [*self._relabelled_rows(of_split, names)]
        return renamed

    def _relabelled_rows(
        self, rows: Iterable[TableRow], names: Mapping[str, str | None]
    ) -> Iterator[TableRow]:
        """Yield rows with the names of their labels; of one label, without those that have none."""
        for row in rows:
            known = filter(None, map(names.get, row.labels))
            labels = tuple(dict.fromkeys(known))
            if self.several or labels:
                yield replace(row, label=labels if self.several else labels[0])

    def labels(self, train: Sequence[TableRow]) -> tuple[str, ...]:
        """See `LabelledFiles`; sorted: as numbers where all are whole numbers."""
        names = chain.from_iterable(row.labels for row in train) if self.named else ()
        labels = sorted(set(names))
        # 18 digits always fit; a longer "number" is an identifier.
        if all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in labels):
            labels.sort(key=int)
        return tuple(labels)

    def build_examples(
        self, rows: Sequence[TableRow], labels: Sequence[str], where: str, split: str
    ) -> list[Any]:
        """Return the examples in the rows of a split, whose labels are among those of `train`."""
        if not self.named:
            return [self.build_example(row, ()) for row in rows]
        numbers = {label: number for number, label in enumerate(labels)}
        unknown = [(label, row) for row in rows for label in row.labels if label not in numbers]
        if unknown:
            (first, row), others = unknown[0], len({label for label, _ in unknown}) - 1
            more = f" (and {others} other label{'s' * (others > 1)})" if others else ""
            raise DataError(
                f"{row.file or where}, line {row.line}: the label {first!r}{more} of {split} is "
                f"not among the {len(labels)} labels of train.{did_you_mean(first, labels)}"
            )
        return [
            self.build_example(row, tuple(numbers[label] for label in row.labels)) for row in rows
        ]

    def build_example(self, row: TableRow, numbers: tuple[int, ...]) -> Any:
        """Return the example in a row, given the numbers of its labels."""
        return Example(row.text, numbers[0], row.pair, row.line, row.file)

    def column_by_line(self, path: Path, column: str) -> dict[int, str]:
        """Return what stands in a column, by line; "" where JSON lines of a row have none."""
        selection = replace(self.columns, keys="")
        with open_table(path, self._format_of(path, "data."), self._layout, selection) as table:
            rows = table.records(Skipped(str(path)) if self.errors == "skip" else readers.refuse)
            filled = {column: ""} if table.is_uneven and column in table.names else {}
            rows = (replace(row, fields={**filled, **row.fields}) for row in rows)
            return {row.line: str(value_of(row, column, str(path))) for row in rows}

    def read_row(self, record: Record, columns: Chosen, name: str) -> TableRow:
        """Return what is read of a record."""
        text = text_of(columns.join_texts(record, name), columns.text, name)
        pair = None if columns.pair is None else text_of(record, columns.pair, name)
        return TableRow(record.line, text, self.read_label(record, columns, name), pair)

    def read_label(self, record: Record, columns: Chosen, name: str) -> Any:
        """Return what is said of a row: here its label; equal ones are one text in memory."""
        return sys.intern(label_of(record, columns.label, name))

    def check(self, task: Task, train: Sequence[Any], where: str) -> None:
        """See `LabelledSource`; labels that are surely several, joined, are told of."""
        labels = task.labels
        mark = label_separator(labels)
        if mark is not None:
            log.warning(
                "%s: labels such as %r look like several in a row; to learn them one by one: "
                "data=labels objective=multilabel data.separator=%s",
                where, next(label for label in labels if mark in label)[:80], delimiter_name(mark),
            )  # fmt: skip
        super().check(task, train, where)
        if not self.named:
            return
        count_of = Counter(example.label for example in train)
        counts = {label: count_of[number] for number, label in enumerate(labels)}
        warn_of_unclear_labels(counts, where)
        warn_of_numbers(counts, where)

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(
            parse_columns(self.text, self.pair, self.label, self.join), numbers=self.numbers
        )

    def _format_of(self, path: Path, keys: str) -> str:
        table_format = self.format or readers.format_of(path)
        if table_format is None:
            raise readers.unknown_format_error(path, keys)
        return table_format

    def _read_rows(self, path: Path, other: Wanted, keys: str, *, is_only: bool) -> TableRows:
        """Return the rows of a file, from the columns `other` of another file if it has them."""
        selection = replace(self.columns, keys=keys)
        skipped = Skipped(str(path))
        file = None if is_only else str(path)
        with (
            open_table(path, self._format_of(path, keys), self._layout, selection) as table,
            progress(f"reading {path}", partial(readers.count_lines, path), "lines") as more,
        ):
            columns = table.columns(selection, other)
            read_row = partial(self.read_row, columns=columns, name=str(path))
            on_error = skipped if self.errors == "skip" else Refuse(f"{keys}errors")
            rows, labels = list[TableRow](), set[str]()
            for row in sound_rows(table, columns.names, read_row, on_error):
                more(row.line - (rows[-1].line if rows else 0))
                rows.append(row if is_only else replace(row, file=file))
                labels.update(row.labels if self.named else ())
                if len(labels) > MAX_LABELS:
                    raise DataError(
                        f"{path}, line {row.line}: more than {MAX_LABELS:,} different labels. "
                        f"Is {columns.label!r} the column of the label?"
                    )
            skipped.answered = len(rows)
            return TableRows(path, rows, table.names, columns, skipped)


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
        for key in ("validation", "test"):
            if isinstance(given := getattr(self, key), list):
                setattr(self, key, [f"{place}/{split}" for split in given])
            elif given:
                setattr(self, key, f"{place}/{given}")
        super().__post_init__()


def nonempty_text(record: Record, column: str, name: str) -> str:
    """Return the text in a column that holds more than blanks."""
    text = text_of(record, column, name)
    if not text.strip():
        raise DataError(f"{name}, line {record.line}: {column!r} is empty.", f"empty {column!r}")
    return text
