"""Labelled data: texts, or pairs of texts, with a label that people gave.

Splits that a data set does not bring are drawn from its training examples: the validation split
first, then the few-label subset, so that the number of labels does not change what is validated on.
Both are stratified and depend on nothing but the examples and the run's seed.
"""

import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.data import catalog, readers, sample
from transfer_cli.errors import DataError, nearest
from transfer_cli.seeds import derive

E = TypeVar("E")

MAX_LABELS = 10_000
"""Of own tables. The table of confusions has a cell for each pair of them: 800 MB with so many."""

COARSE_LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

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
FINE_LABELS = tuple(
    f"{coarse}:{fine}" for coarse in COARSE_LABELS for fine in _FINE_NAMES[coarse].split()
)
"""The 50 labels of TREC; the coarse label is part of each, since fine names repeat."""


@dataclass(frozen=True)
class Example:
    """A text, or two, and the number of its label."""

    text: str
    label: int | None = None
    pair: str | None = None


@dataclass(frozen=True)
class LabelledData:
    """A task's examples.

    Args:
        name: What the data set is called.
        labels: The labels' names, in the order of their numbers.
        splits: `train`, `validation` and, where there is one, `test`; of each example what its
            task makes of it, `Example` where that is classification.
        task: The config node of the class of its task (`tasks.base.Task.node`), with what had to be
            found out of the data; None: classification.
    """

    name: str
    labels: tuple[str, ...]
    splits: Mapping[str, Sequence[Any]]
    task: Mapping[str, Any] | None = None


class TaskData(ABC):
    """A labelled data set.

    `length` is the longest input in tokens; None means as many as the model has positions.
    """

    length: int | None

    @abstractmethod
    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """Find the examples, fetching them if need be, and draw the splits that are not given.

        Args:
            data_dir: Where data sets lie.
            seed: The run's seed, which the drawn splits depend on.

        Raises:
            DataError: A file that is missing or broken, or labels that nothing can be learnt from.
        """


@dataclass(kw_only=True)
class Trec(TaskData):
    """TREC question classification (Li and Roth 2002).

    Args:
        fine: Use the 50 fine labels instead of the 6 coarse ones.
        validation: The share of the training questions held out, in (0, 1).
        labelled: Keep so many training questions, the smaller subsets being part of the larger.
        length: See `TaskData`.
    """

    fine: bool = False
    validation: float = 0.1
    labelled: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        _check_share("validation", self.validation)
        _check_labelled(self.labelled)
        check_length(self.length)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`."""
        labels = FINE_LABELS if self.fine else COARSE_LABELS
        paths = {split: catalog.find_trec(split, data_dir) for split in catalog.TREC}
        splits = {
            split: [
                Example(row.text, labels.index(row.label if self.fine else row.label.split(":")[0]))
                for row in _read_trec(path)
            ]
            for split, path in paths.items()
        }
        where = str(paths["train"])
        data = LabelledData("trec50" if self.fine else "trec6", labels, _frozen(splits))
        return _few_labels(
            _held_out(data, self.validation, seed, where), self.labelled, seed, where
        )


@dataclass(kw_only=True)
class Table(TaskData):
    """Own labelled tables: CSV, TSV or JSON lines, plain or packed as `.gz`, `.xz` or `.zst`.

    The labels are those of the training file, sorted (as numbers when all are whole numbers).

    Args:
        train: A file.
        validation: A file. Without it a stratified share of the training rows is held out.
        test: A file; without it there is no test set.
        text: The column of the text.
        pair: The column of a second text.
        label: The column of the label.
        header: Whether the first row of CSV or TSV names the columns. Without it they are called
            by their number, counted from 1.
        format: `csv`, `tsv` or `jsonl`; None to go by the files' names.
        validation_share: The share of the training rows held out, in (0, 1).
        labelled: Keep so many training rows, the smaller subsets being part of the larger.
        length: See `TaskData`.
    """

    train: str
    validation: str | None = None
    test: str | None = None
    text: str | int = "text"
    pair: str | int | None = None
    label: str | int = "label"
    header: bool = True
    format: str | None = None
    validation_share: float = 0.1
    labelled: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in readers.TABLE_FORMATS:
            known = ", ".join(readers.TABLE_FORMATS)
            raise ValueError(
                f"format is {self.format!r}, expected one of {known}."
                f"{nearest(self.format, readers.TABLE_FORMATS)}"
            )
        if self.label in (self.text, self.pair):
            raise ValueError(f"label is {self.label!r}, which is the column of a text.")
        _check_share("validation_share", self.validation_share)
        _check_labelled(self.labelled)
        check_length(self.length)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        paths = {name: Path(path).expanduser() for name, path in given.items() if path}
        rows = {name: self._all_rows(path) for name, path in paths.items()}
        labels = _sorted_labels({row.label for row in rows["train"]})
        splits = {name: _numbered(rows[name], labels, paths[name], name) for name in rows}
        data = LabelledData(paths["train"].stem, labels, _frozen(splits))
        where = str(paths["train"])
        if "validation" not in splits:
            data = _held_out(data, self.validation_share, seed, where)
        return _few_labels(data, self.labelled, seed, where)

    def _all_rows(self, path: Path) -> list["_Row"]:
        rows = []
        labels: set[str] = set()
        for row in self._rows(path):
            rows.append(row)
            labels.add(row.label)
            if len(labels) > MAX_LABELS:
                raise DataError(
                    f"{path}, line {row.line}: more than {MAX_LABELS:,} different labels. "
                    f"Is {self.label!r} the column of the label?"
                )
        return rows

    def _rows(self, path: Path) -> Iterator["_Row"]:
        table_format = self.format or readers.format_of(path)
        if table_format is None:
            raise DataError(f"{path}: its name does not tell the format. Set data.format=csv.")
        name = str(path)
        for record in readers.read_table(path, table_format, header=self.header):
            yield _Row(
                line=record.line,
                text=readers.text_of(record, str(self.text), name),
                pair=None if self.pair is None else readers.text_of(record, str(self.pair), name),
                label=readers.label_of(record, str(self.label), name),
            )


@dataclass(kw_only=True)
class SampleQuestions(TaskData):
    """The embedded questions about the made-up encyclopedia.

    Args:
        world: Which made-up world they ask about: that of the encyclopedia that was read.
        labelled: Keep so many training questions, the smaller subsets being part of the larger.
        length: See `TaskData`.
    """

    world: int = 0
    labelled: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        _check_labelled(self.labelled)
        check_length(self.length)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        labels, questions = sample.questions(self.world)
        splits = {
            name: [Example(text, label) for text, label in rows] for name, rows in questions.items()
        }
        data = LabelledData("sample_questions", labels, _frozen(splits))
        return _few_labels(data, self.labelled, seed, "sample_questions")


# ---------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Row:
    line: int
    text: str
    label: str
    pair: str | None = None


def _read_trec(path: Path) -> Iterator[_Row]:
    with readers.open_file(path) as stream:
        for number, line in readers.numbered_lines(stream, str(path), encoding="latin-1"):
            label, space, text = line.partition(" ")
            if not space or label not in FINE_LABELS:
                raise DataError(
                    f"{path}, line {number}: begins with {label[:40]!r}, expected a label such as "
                    f"NUM:date and a space.{nearest(label, FINE_LABELS)}"
                )
            yield _Row(number, text.strip(" "), label)


def _numbered(
    rows: Sequence[_Row], labels: tuple[str, ...], path: Path, split: str
) -> list[Example]:
    """Replace labels by their numbers; training must have shown all of them."""
    numbers = {label: number for number, label in enumerate(labels)}
    unknown = {row.label: row.line for row in reversed(rows) if row.label not in numbers}
    if unknown:
        first = min(unknown, key=lambda label: unknown[label])
        others = len(unknown) - 1
        more = f" (and {others} other label{'s' * (others > 1)})" if others else ""
        raise DataError(
            f"{path}, line {unknown[first]}: the label {first!r}{more} of {split} is not among the "
            f"{len(labels)} labels of train.{nearest(first, labels)}"
        )
    return [Example(row.text, numbers[row.label], row.pair) for row in rows]


def _sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    names = sorted(labels)
    # 18 digits always fit; a longer "number" is an identifier.
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names):
        names.sort(key=int)
    return tuple(names)


# ---------------------------------------------------------------------------------- drawing


def _held_out(data: LabelledData, share: float, seed: int, where: str) -> LabelledData:
    """Move a stratified share of `train` to `validation`; no class loses its last example."""
    _check_classes(data, where)
    train, validation = hold_out(data.splits["train"], share, seed, where, attrgetter("label"))
    return replace(data, splits={**data.splits, "train": train, "validation": validation})


def _few_labels(data: LabelledData, labelled: int | None, seed: int, where: str) -> LabelledData:
    """Keep `labelled` training examples, at least one of each class; None keeps all."""
    _check_classes(data, where)
    if labelled is None:
        return data
    kept = keep_few(data.splits["train"], labelled, seed, where, attrgetter("label"))
    return replace(data, splits={**data.splits, "train": kept})


def hold_out(
    examples: Sequence[E], share: float, seed: int, where: str, stratum: Callable[[E], int]
) -> tuple[tuple[E, ...], tuple[E, ...]]:
    """Return training examples without a share of them, and that share.

    Args:
        examples: The training examples.
        share: How many to hold out, in (0, 1).
        seed: The run's; the draw depends on nothing else.
        where: What messages call the data.
        stratum: The class of an example: each loses the same share, and none its last example.

    Raises:
        DataError: The share is less than an example.
    """
    counts = _counts(examples, stratum)
    quotas = _proportional(counts, int(share * len(examples)))
    if not any(quotas.values()):
        raise DataError(
            f"{where}: a validation share of {share} leaves nothing to validate on "
            f"({len(examples)} examples of {len(counts)} classes). Raise it or name a validation "
            "file."
        )
    chosen = _draw(examples, quotas, derive(seed, "validation split"), stratum)
    return (
        tuple(example for at, example in enumerate(examples) if at not in chosen),
        tuple(example for at, example in enumerate(examples) if at in chosen),
    )


def keep_few(
    examples: Sequence[E], labelled: int, seed: int, where: str, stratum: Callable[[E], int]
) -> tuple[E, ...]:
    """Return so many examples, at least one of each class; fewer are a part of more.

    Raises:
        DataError: There are fewer than `labelled`, or that is fewer than there are classes.
    """
    counts = _counts(examples, stratum)
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
    quotas = _nested_quotas(counts, labelled)
    chosen = _draw(examples, quotas, derive(seed, "few labels"), stratum)
    return tuple(example for at, example in enumerate(examples) if at in chosen)


def _check_classes(data: LabelledData, where: str) -> None:
    found = Counter(example.label for example in data.splits["train"])
    counts = [found[number] for number in range(len(data.labels))]
    if len(data.labels) < 2:
        raise DataError(
            f"{where}: all examples have the label {data.labels[0]!r}; there is nothing to learn. "
            "Name another label column."
        )
    if sum(counts) < len(counts):
        raise DataError(
            f"{where}: {sum(counts)} training examples are fewer than the {len(counts)} classes."
        )
    if 0 in counts:
        missing = ", ".join(
            repr(label) for label, count in zip(data.labels, counts, strict=True) if not count
        )
        raise DataError(f"{where}: no training example has the label {missing}.")


def _counts(examples: Sequence[E], stratum: Callable[[E], int]) -> dict[int, int]:
    """Return how many examples each class has, in the order of the classes."""
    return dict(sorted(Counter(map(stratum, examples)).items()))


def _proportional(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` by largest remainder, leaving at least one of each class behind."""
    whole = sum(counts.values())
    exact = {number: total * count / whole for number, count in counts.items()}
    quotas = {number: min(int(share), counts[number] - 1) for number, share in exact.items()}
    order = sorted(counts, key=lambda number: quotas[number] - exact[number])
    # Once round the classes is enough for the remainders, unless a class is used up.
    while sum(quotas.values()) < min(total, whole - len(counts)):
        for number in order:
            if sum(quotas.values()) < total and quotas[number] < counts[number] - 1:
                quotas[number] += 1
    return quotas


def _nested_quotas(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` so that a larger total never takes an example away from a class.

    One for each class first; then each goes to the class that is furthest behind its share, by the
    divisor method of Webster (largest remainders would not be nested).
    """
    quotas = dict.fromkeys(counts, 1)
    while sum(quotas.values()) < total:
        behind = {
            number: count / (2 * quotas[number] + 1) if quotas[number] < count else 0.0
            for number, count in counts.items()
        }
        quotas[max(behind, key=behind.__getitem__)] += 1
    return quotas


def _draw(
    examples: Sequence[E], quotas: Mapping[int, int], seed: int, stratum: Callable[[E], int]
) -> set[int]:
    """Return the places of `quotas[c]` examples of each class c; smaller quotas give subsets."""
    # Of Python's generator, only random() is promised to stay the same in later versions.
    generator = random.Random(seed)  # noqa: S311 - not for cryptography
    order = sorted(range(len(examples)), key=[generator.random() for _ in examples].__getitem__)
    left = dict(quotas)
    chosen = set()
    for at in order:
        number = stratum(examples[at])
        if left[number]:
            left[number] -= 1
            chosen.add(at)
    return chosen


def _frozen(splits: dict[str, list[Example]]) -> dict[str, tuple[Example, ...]]:
    return {name: tuple(examples) for name, examples in splits.items()}


def check_length(length: int | None) -> None:
    """Raise `ValueError` unless `length` is None or at least 2."""
    if length is not None and length < 2:
        raise ValueError(f"length is {length}, expected at least 2 tokens.")


def _check_share(key: str, share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"{key} is {share}, expected between 0 and 1.")


def _check_labelled(labelled: int | None) -> None:
    if labelled is not None and labelled < 1:
        raise ValueError(f"labelled is {labelled}, expected at least 1.")
