"""Labelled data sets of one label: TREC, own tables, and those that come with the project."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from transfer_cli.config.build import TARGET
from transfer_cli.data import any_table, catalog, readers, sample
from transfer_cli.data.any_table import Refuse, Skipped
from transfer_cli.data.columns import ANY, Chosen, Wanted, typed
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.hub_client import located
from transfer_cli.data.label_names import look_over, say_numbers
from transfer_cli.data.labelled import (
    CLASSIFICATION,
    INPUT,
    Drawn,
    Example,
    LabelledData,
    LabelledFiles,
    check_share,
)
from transfer_cli.data.layout import Layout, delimiter_name
from transfer_cli.data.records import Record, label_of, text_of, value_of
from transfer_cli.data.split import Whole
from transfer_cli.errors import DataError, nearest
from transfer_cli.progress import progress

log = logging.getLogger(__name__)

MAX_LABELS = 10_000
"""For own tables. More are rather texts, or numbers: a column that was not meant."""

_FINE_NAMES = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": (
        "animal body color cremat currency dismed event food instru lang letter other plant "
        "product religion sport substance symbol techmeth termeq veh word"
    ),
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}

COARSE_LABELS = tuple(_FINE_NAMES)

_WORDS = {
    "ABBR": "expression", "DESC": "description", "ENTY": "thing", "HUM": "person",
    "LOC": "place", "NUM": "number",
}  # fmt: skip

FINE_LABELS = tuple(
    f"{coarse}:{fine}" for coarse, names in _FINE_NAMES.items() for fine in names.split()
)
"""The 50 labels of TREC; the coarse label is part of each, since fine names repeat."""


@dataclass(kw_only=True)
class Trec(Drawn):
    """TREC question classification (Li and Roth 2002).

    Args:
        fine: Use the 50 fine labels instead of the 6 coarse ones.
        validation: The share of the training questions held out, in (0, 1).
    """

    fine: bool = False
    validation: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("validation", self.validation)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`."""
        labels = FINE_LABELS if self.fine else COARSE_LABELS
        paths = {split: catalog.find_trec(split, data_dir) for split in catalog.TREC}
        splits = {
            split: [
                Example(text, labels.index(label if self.fine else label.split(":")[0]))
                for text, label in _read_trec(path)
            ]
            for split, path in paths.items()
        }
        name = "trec50" if self.fine else "trec6"
        words = {} if self.fine else _WORDS
        data = LabelledData(name, labels, splits, files=paths, words=words)
        return self._drawn(data, seed, self.validation)


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
        quotes: What they mean, one of `readers.QUOTES`.
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

    kind: ClassVar[str | None] = "classification"
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

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        paths = self.paths
        train = self._rows(paths["train"])
        own = train.columns.asked()
        rows = {
            name: train if name == "train" else self._rows(path, own)
            for name, path in paths.items()
        }
        data = replace(self.of_rows(rows, paths), cells=self.cells)
        return self._drawn(data, seed, self.validation_share)

    def of_rows(self, rows: Mapping[str, "TableRows"], paths: Mapping[str, Path]) -> LabelledData:
        """Return what the rows of splits are, by name; labels are those of the first."""
        first = next(iter(rows))
        labels = sorted_labels(row.label for row in rows[first].rows)
        splits = {
            name: [
                Example(row.text, number, row.pair, row.line)
                for row, (number,) in zip(
                    found.rows, numbers_of(found.rows, labels, paths[name], name), strict=True
                )
            ]
            for name, found in rows.items()
        }
        return LabelledData(paths[first].stem, labels, splits, self.node(), files=paths)

    def node(self) -> dict[str, Any]:
        """Return the config node of the task, with the options that it has of the data."""
        return {TARGET: CLASSIFICATION, "truncate": self.truncate}

    def whole(self, own: Wanted) -> LabelledData:
        """See `LabelledFiles`."""
        path = self.paths["train"]
        found = self._rows(path, own, keys="")
        skipped = (f"{found.num_skipped:,} cannot be read",) if found.num_skipped else ()
        part_of = Whole(str(path), len(found.rows) + found.num_skipped, skipped)
        data = self.of_rows({INPUT: found}, {INPUT: path})
        return replace(data, files={"train": path}, part_of={INPUT: part_of}, cells=self.cells)

    def cells(self, path: Path, column: str) -> dict[int, str]:
        """See `LabelledData`."""
        asked = replace(self.columns, keys="")
        with any_table.opened(path, self._format_of(path, "data."), self._layout, asked) as table:
            rows = table.records(Skipped() if self.errors == "skip" else readers.refuse)
            return {row.line: str(value_of(row, column, str(path))) for row in rows}

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """Return what is read of a record; equal labels are one text in memory."""
        text = text_of(record, columns.text, name)
        pair = None if columns.pair is None else text_of(record, columns.pair, name)
        label = label_of(record, columns.label, name)
        return TableRow(record.line, text, labels.setdefault(label, label), pair)

    def check(self, train: Sequence[Any], labels: Sequence[str], where: str) -> None:
        """See `Drawn`; labels that are surely several, joined, are told of."""
        mark = joined_by(labels)
        if mark is not None:
            log.warning(
                "%s: labels such as %r look like several in a row; to learn them one by one: "
                "data=labels objective=multilabel data.separator=%s",
                where, next(label for label in labels if mark in label)[:80], delimiter_name(mark),
            )  # fmt: skip
        super().check(train, labels, where)
        found = Counter(example.label for example in train)
        counts = {label: found[number] for number, label in enumerate(labels)}
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

    def _rows(self, path: Path, own: Wanted = ANY, keys: str = "data.") -> "TableRows":
        """Return the rows of a file, from the columns `own` of another file if it has them."""
        asked = replace(self.columns, keys=keys)
        skipped = Skipped()
        with (
            any_table.opened(path, self._format_of(path, keys), self._layout, asked) as table,
            progress(f"reading {path}", partial(readers.count_lines, path), "lines") as more,
        ):
            columns = table.columns(asked, own)
            labels: dict[str, str] = {}
            read = partial(self.row_of, columns=columns, name=str(path), labels=labels)
            on_error = skipped if self.errors == "skip" else Refuse(f"{keys}errors")
            rows = list[TableRow]()
            for row in any_table.sound_rows(table, columns.read, read, on_error):
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
class SampleQuestions(Drawn):
    """The embedded questions about the made-up encyclopedia.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        labels, questions = sample.questions(self.world)
        splits = {
            name: [Example(text, label) for text, label in rows] for name, rows in questions.items()
        }
        data = LabelledData("sample_questions", labels, splits)
        return self._drawn(data, seed)


@dataclass(kw_only=True)
class SamplePairs(Drawn):
    """Pairs of the embedded questions: do both ask about things of one kind?

    Which kinds they are, only the encyclopedia tells; see `data.sample`.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        splits = {
            name: [Example(text, int(is_same), pair) for text, pair, is_same in rows]
            for name, rows in sample.pairs(self.world).items()
        }
        return self._drawn(LabelledData("sample_pairs", ("different", "same"), splits), seed)


def sorted_labels(found: Iterable[str]) -> tuple[str, ...]:
    """Return all labels, sorted: as numbers when all are whole numbers."""
    labels = sorted(set(found))
    # 18 digits always fit; a longer "number" is an identifier.
    if all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in labels):
        labels.sort(key=int)
    return tuple(labels)


def joined_by(labels: Sequence[str]) -> str | None:
    """Return the mark that surely joins several names in labels: most names are in several."""
    for mark in "|;,":
        parts = [{part.strip() for part in label.split(mark)} for label in labels]
        in_labels = Counter(part for names in parts for part in names)
        repeated = sum(count > 1 for count in in_labels.values())
        if sum(len(names) > 1 for names in parts) > 1 and 4 * repeated >= 3 * len(in_labels):
            return mark
    return None


def _read_trec(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each question with its fine label."""
    for number, line in readers.numbered_lines(path, encoding="latin-1"):
        label, space, text = line.partition(" ")
        if not space or label not in FINE_LABELS:
            raise DataError(
                f"{path}, line {number}: begins with {label[:40]!r}, expected a label such as "
                f"NUM:date and a space.{nearest(label, FINE_LABELS)}"
            )
        yield text.strip(" "), label


def numbers_of(
    rows: Sequence[TableRow], labels: Sequence[str], path: Path, split: str
) -> list[tuple[int, ...]]:
    """Return the numbers of each row's labels, all of which must occur in training."""
    numbers = {label: number for number, label in enumerate(labels)}
    unknown = {each: row.line for row in reversed(rows) for each in row.labels
               if each not in numbers}  # fmt: skip
    if unknown:
        first, others = min(unknown, key=unknown.__getitem__), len(unknown) - 1
        more = f" (and {others} other label{'s' * (others > 1)})" if others else ""
        raise DataError(
            f"{path}, line {unknown[first]}: the label {first!r}{more} of {split} is not among "
            f"the {len(labels)} labels of train.{nearest(first, labels)}"
        )
    return [tuple(numbers[each] for each in row.labels) for row in rows]
