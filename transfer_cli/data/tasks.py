"""Labelled data: texts, or pairs of texts, with a label that people gave.

Missing splits are drawn from the training examples: the validation split first, then the few-label
subset, so that the number of labels does not change the validation split. Both are stratified and
depend on nothing but the examples and the run's seed.
"""

import heapq
import itertools
import logging
import random
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from transfer_cli.config.build import TARGET
from transfer_cli.data import any_table, catalog, readers, sample
from transfer_cli.data.any_table import Refuse, Skipped
from transfer_cli.data.columns import ANY, FEW_ROWS, Chosen, Wanted, typed
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.hub_client import located
from transfer_cli.data.layout import Layout, delimiter_name
from transfer_cli.data.overlap import say_overlap
from transfer_cli.data.readers import Record
from transfer_cli.data.split import Whole
from transfer_cli.errors import ConfigError, DataError, at_least, listed, nearest
from transfer_cli.progress import progress
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

T = TypeVar("T")

CLASSIFICATION = "transfer_cli.tasks.classification.ClassificationTask"
"""The class of the task of examples with one label."""

INPUT = "input"
"""The split that all rows of a file are."""

MAX_LABELS = 10_000
"""For own tables. More are rather texts, or numbers: a column that was not meant."""

_SUBMITTED_DECIMALS = 3

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


@dataclass(frozen=True, slots=True)  # there may be millions
class Example:
    """A text, or two, and the number of its label; `line` is that of its file, if it has one."""

    text: str
    label: int | None = None
    pair: str | None = None
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class LabelledData:
    """A task's examples.

    Args:
        name: The name of the data set.
        labels: The labels' names, in the order of their numbers.
        splits: `train`, `validation` and perhaps `test`, with examples of the task's own class;
            `Example` for classification.
        task: The config node of its task's class (`tasks.base.Task.node`), with values found in the
            data; None: classification.
        files: Where splits come from; one that is not named is drawn from the training examples.
        part_of: What splits are parts of, by name; the others are complete.
        rest: The training examples that few labels leave out, without their labels.
        cells: Returns what stands in a column of a table, by line, given its file and the column's
            name; None: examples are no rows of tables.
        words: Words for labels that are none themselves, for objectives that ask a language model.
    """

    name: str
    labels: tuple[str, ...]
    splits: Mapping[str, Sequence[Any]]
    task: Mapping[str, Any] | None = None
    part_of: Mapping[str, Whole] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    rest: Sequence[Any] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    cells: Callable[[Path, str], Mapping[int, str]] | None = field(default=None, compare=False)

    def column(self, split: str, name: str) -> list[str]:
        """Return what stands in a column of the rows of a split.

        Raises:
            DataError: There is no such column.
        """
        path = self.files.get(split) or self.files.get("train")
        if self.cells is None or path is None:
            raise DataError(
                f"{self.name}: its examples are no rows of a table, so they have no column {name!r}"
            )
        found = self.cells(path, name)
        return [found[example.line] for example in self.splits[split]]

    def source(self, split: str) -> str:
        """Return what a split comes from, for messages."""
        return str(self.files.get(split) or self.files.get("train") or self.name)

    def numbered_as(self, labels: tuple[str, ...]) -> "LabelledData":
        """Return the same data with the numbers that `labels` have.

        Raises:
            DataError: A label is new, or its examples cannot be numbered again.
        """
        if self.labels == labels:
            return self
        new = [label for label in self.labels if label not in labels]
        if new:
            line = self._line_of(self.labels.index(new[0]))
            place = self.source("train") + ("" if line is None else f", line {line}")
            raise DataError(
                f"{place}: a new label, {listed(map(repr, new))}. This run knows "
                f"{listed(labels, 10)}, and keeps its labels: leave it out, or train a new run."
            )
        numbers = [labels.index(label) for label in self.labels]
        splits = {
            name: tuple(_renumbered(example, numbers) for example in examples)
            for name, examples in self.splits.items()
        }
        return replace(self, labels=labels, splits=splits)

    def _line_of(self, number: int) -> int | None:
        """Return the line of the first example with a label; None: its task does not say."""
        examples = itertools.chain.from_iterable(self.splits.values())
        with_it = (each for each in examples if getattr(each, "label", None) == number)
        return getattr(next(with_it, None), "line", None)


@dataclass(frozen=True)
class Submission:
    """How a benchmark wants the answers to a test file of a data set.

    Args:
        files: A word in the test file's name -> the name of the file of answers; the first that
            fits counts, and "" fits all.
        texts: The columns of the texts.
        bounds: The least and the greatest number that an answer may be; None: answers are labels.
    """

    files: Mapping[str, str]
    texts: tuple[str, ...]
    bounds: tuple[float, float] | None = None

    def name_of(self, test: str) -> str:
        """Return the name of the file of answers.

        Raises:
            ConfigError: The name of the test file does not tell.
        """
        found = next((file for word, file in self.files.items() if word in Path(test).stem), None)
        if found is None:
            raise ConfigError(
                f"input: {test!r} is called neither {listed(map(repr, self.files))}, so it does "
                "not tell what its answers are called; name the file in output=, with .tsv"
            )
        return found

    def shown(self, answer: str | float) -> str:
        """Return an answer as it is written: a label, or a number within the bounds."""
        if self.bounds is None:
            return str(answer)
        least, greatest = self.bounds
        return f"{min(greatest, max(least, float(answer))):.{_SUBMITTED_DECIMALS}f}"


@dataclass(kw_only=True)
class TaskData(ABC):
    """A labelled data set.

    Args:
        length: The longest input in tokens; None: as many as the model has positions.
    """

    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            at_least("length", self.length, 2)

    def submission(self) -> Submission | None:
        """Return how answers to its test files are handed in; None: it is of no benchmark."""
        return None

    @abstractmethod
    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """Find the examples, or fetch them, and draw the splits that are not given.

        Args:
            data_dir: The folder of data sets.
            seed: The run's seed, which the drawn splits depend on.

        Raises:
            DataError: A file is missing or broken, or nothing can be learnt from the labels.
        """


@dataclass(kw_only=True)
class Drawn(TaskData):
    """A labelled data set whose missing splits are drawn from the training examples.

    Args:
        labelled: Number of training examples to use, a smaller subset being part of a larger one;
            None: all.
    """

    labelled: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labelled is not None:
            at_least("labelled", self.labelled, 1)

    def texts(self, example: Any) -> Sequence[str]:
        """Return the texts of an example, the one to show first."""
        return (example.text,) if example.pair is None else (example.text, example.pair)

    def unlabelled(self, example: Any) -> Any:
        """Return an example without what is asked for."""
        return replace(example, label=None)

    def strata(self, examples: Sequence[Any]) -> Sequence[int]:
        """Return the number of the stratum that each example is drawn from: that of its label."""
        return [each.label for each in examples]

    def check(self, train: Sequence[Any], labels: Sequence[str], where: str) -> None:
        """Raise `DataError` unless something can be learnt from the training examples."""
        _check_classes(train, labels, where)

    def held_out(
        self, train: Sequence[Any], share: float, seed: int, where: str
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the training examples without a share of them, and that share; see `hold_out`."""
        return hold_out(train, share, seed, where, self.strata(train))

    def _drawn(self, data: LabelledData, seed: int, share: float = 0) -> LabelledData:
        """Return data with a validation split of `share`, unless it has one, and few labels."""
        splits = {name: tuple(examples) for name, examples in data.splits.items()}
        train, where = splits["train"], data.source("train")
        self.check(train, data.labels, where)
        say_overlap(splits, where, self.texts)
        whole, part_of, left_out = len(train), {}, []
        rest: Sequence[Any] = ()
        if "validation" not in splits:
            train, splits["validation"] = self.held_out(train, share, seed, where)
            part_of["validation"] = Whole(where, whole, (f"{len(train):,} are left to train on",))
            left_out.append(f"{len(splits['validation']):,} are held out for validation")
        if self.labelled is not None:
            train, others = keep_few(train, self.labelled, seed, where, self.strata(train))
            if others:
                left_out.append(f"{len(others):,} are beyond data.labelled")
            rest = tuple(map(self.unlabelled, others))
        if left_out:
            part_of["train"] = Whole(where, whole, tuple(left_out))
        return replace(data, splits=splits | {"train": train}, part_of=part_of, rest=rest)


@dataclass(kw_only=True)
class LabelledFiles(Drawn):
    """Own labelled files, one for each split.

    Args:
        train: A file.
        validation: A file. Without it a share of the training examples is held out.
        test: A file; without it there is no test set.
        validation_share: The share of the training examples held out, in (0, 1).
    """

    read_as_trained: ClassVar[tuple[str, ...]] = ()
    """Options with which a run's own data were read, and with which other tables are."""

    train: str
    validation: str | None = None
    test: str | None = None
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("validation_share", self.validation_share)

    @property
    def paths(self) -> dict[str, Path]:
        """The file of each split that has one."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: Path(path).expanduser() for name, path in given.items() if path}

    @abstractmethod
    def whole(self, own: Wanted) -> LabelledData:
        """Return all examples of the training file as one split, `input`, to score a run on.

        Args:
            own: The columns of the table that the run was trained on.

        Raises:
            DataError: It cannot be read.
        """


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
        _check_share("validation", self.validation)

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

    With the extra `tables`, Parquet files and the first sheets of spreadsheets as well, with `hf`
    splits of the hub's data sets, too (`hub_client.located`). What is not said of a table is
    recognised in each file by itself: see `layout` and `columns`.

    The labels are those of the training file, sorted (as numbers when all are whole numbers).

    Args:
        text: The column of the text; None: by its name, else by what is in it. So are the others.
        pair: The column of a second text; None also where there is none.
        label: The column of the label.
        header: Whether the first row of CSV or TSV names the columns. Without it they are called
            by their number, counted from 1.
        delimiter: What stands between columns, see `layout.Layout`.
        encoding: As Python names it.
        format: `csv`, `tsv`, `jsonl`, `parquet` or `xlsx`; None to go by the files' names.
        errors: Whether a row that cannot be read stops all, or is left out and counted.
        truncate: Which of two texts is cut where they are too long together, see
            `encoded_task.kept`.
    """

    text: str | int | None = None
    pair: str | int | None = None
    label: str | int | None = None
    header: bool | None = None
    delimiter: str | None = None
    encoding: str | None = None
    format: Literal["csv", "tsv", "jsonl", "parquet", "xlsx"] | None = None
    errors: Literal["stop", "skip"] = "stop"
    truncate: Truncate = "longest_first"

    most_labels: ClassVar[float] = MAX_LABELS
    numbers: ClassVar[bool] = False
    """Whether the column of the label holds numbers, and not names of classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layout = Layout(self.delimiter, self.encoding, self.header)
        if self.label is not None and self.label in (self.text, self.pair):
            raise ValueError(f"label is {self.label!r}, which is the column of a text.")

    @property
    def paths(self) -> dict[str, Path]:
        """See `LabelledFiles`; that of a split of the hub is a folder, fetched at need."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: located(path) for name, path in given.items() if path}

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        paths = self.paths
        train = self._rows(paths["train"])
        own = Wanted(train.columns.text, train.columns.pair, train.columns.label)
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
            return {row.line: str(readers.value_of(row, column, str(path))) for row in rows}

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """Return what is read of a record; equal labels are one text in memory."""
        text = readers.text_of(record, columns.text, name)
        pair = None if columns.pair is None else readers.text_of(record, columns.pair, name)
        label = readers.label_of(record, columns.label, name)
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

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(typed(self.text, self.pair, self.label), numbers=self.numbers)

    def _format_of(self, path: Path, keys: str) -> str:
        table_format = self.format or readers.format_of(path)
        if table_format is None:
            raise DataError(
                f"{path}: its name does not tell the format. For a table set {keys}format=csv; "
                "text without labels is for pretrain data=text."
            )
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


# ---------------------------------------------------------------------------------- reading


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


def _renumbered(example: Any, numbers: Sequence[int]) -> Any:
    label = getattr(example, "label", None)
    if label is None:
        raise DataError("data: its labels are not those of the run, in another order or number")
    several = isinstance(label, tuple)
    new = tuple(numbers[each] for each in label) if several else numbers[label]
    return replace(example, label=new)


# ---------------------------------------------------------------------------------- drawing


def hold_out(
    examples: Sequence[T], share: float, seed: int, where: str, strata: Sequence[int]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return training examples without a share of them, and that share.

    Each stratum loses the same share, and none its last example.

    Args:
        examples: The training examples.
        share: The share to hold out, in (0, 1).
        seed: The run's; the draw depends on nothing else.
        where: The data's name in messages.
        strata: The number of each example's stratum, such as its label.

    Raises:
        DataError: The share is less than an example.
    """
    counts = dict(sorted(Counter(strata).items()))
    quotas = _proportional(counts, int(share * len(examples)))
    if not any(quotas.values()):
        raise DataError(
            f"{where}: a validation share of {share} leaves nothing to validate on "
            f"({len(examples)} examples of {len(counts)} classes). Raise it or name a validation "
            "file."
        )
    chosen = _draw(strata, quotas, derive(seed, "validation split"))
    return (
        tuple(example for at, example in enumerate(examples) if at not in chosen),
        tuple(examples[at] for at in sorted(chosen)),
    )


def keep_few(
    examples: Sequence[T], labelled: int, seed: int, where: str, strata: Sequence[int]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return `labelled` examples, at least one of each stratum, and the others.

    A smaller set is part of a larger.

    Raises:
        DataError: There are fewer than `labelled`, or that is fewer than there are strata.
    """
    counts = dict(sorted(Counter(strata).items()))
    if labelled < len(counts):
        raise DataError(
            f"{where}: labelled={labelled} is fewer examples than the {len(counts)} classes. "
            f"Set data.labelled to at least {len(counts)}."
        )
    if labelled > len(examples):
        raise DataError(
            f"{where}: labelled={labelled}, but there are only {len(examples)} training examples. "
            f"Set data.labelled to at most that."
        )
    chosen = _draw(strata, _nested_quotas(counts, labelled), derive(seed, "few labels"))
    return (
        tuple(examples[at] for at in sorted(chosen)),
        tuple(example for at, example in enumerate(examples) if at not in chosen),
    )


def _check_classes(train: Sequence[Example], labels: Sequence[str], where: str) -> None:
    if 2 * len(labels) > len(train) >= FEW_ROWS:
        raise DataError(
            f"{where}: {len(train):,} examples have {len(labels):,} different labels. Is that the "
            "column of the label? Say data.text=COLUMN data.label=COLUMN; numbers are for "
            "data=numbers objective=regression."
        )
    if len(labels) < 2:
        raise DataError(
            f"{where}: all examples have the label {labels[0]!r}; there is nothing to learn. "
            "Name another label column."
        )
    found = {example.label for example in train}
    missing = [repr(label) for number, label in enumerate(labels) if number not in found]
    if missing:
        raise DataError(f"{where}: no training example has the label {listed(missing, 10)}.")


def _proportional(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` by largest remainder, leaving at least one of each class behind."""
    whole = sum(counts.values())
    exact = {number: total * count / whole for number, count in counts.items()}
    quotas = {number: min(int(share), counts[number] - 1) for number, share in exact.items()}
    order = sorted(counts, key=lambda number: quotas[number] - exact[number])
    left = min(total, whole - len(counts)) - sum(quotas.values())
    # Once round the classes is enough for the remainders, unless a class is used up.
    while left > 0:
        for number in order:
            if left > 0 and quotas[number] < counts[number] - 1:
                quotas[number] += 1
                left -= 1
    return quotas


def _nested_quotas(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` so that a larger total never takes an example away from a class.

    One for each class first; then each goes to the class that is furthest behind its share, by the
    divisor method of Webster (largest remainders would not be nested).
    """
    quotas = dict.fromkeys(counts, 1)
    behind = [(-count / 3, number) for number, count in counts.items() if count > 1]
    heapq.heapify(behind)
    for _ in range(total - len(counts)):
        _, number = behind[0]
        quotas[number] += 1
        if quotas[number] < counts[number]:
            share = counts[number] / (2 * quotas[number] + 1)
            heapq.heapreplace(behind, (-share, number))
        else:
            heapq.heappop(behind)
    return quotas


def _draw(strata: Sequence[int], quotas: Mapping[int, int], seed: int) -> set[int]:
    """Return the places of `quotas[c]` examples of each stratum c; smaller quotas give subsets."""
    # Of Python's generator, only random() is promised to stay the same in later versions.
    generator = random.Random(seed)  # noqa: S311 - not for cryptography
    order = sorted(range(len(strata)), key=[generator.random() for _ in strata].__getitem__)
    of_class: dict[int, list[int]] = defaultdict(list)
    for at in order:
        of_class[strata[at]].append(at)
    return {at for number, quota in quotas.items() for at in of_class[number][:quota]}


def _check_share(key: str, share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"{key} is {share}, expected between 0 and 1.")
