"""Data sets with several labels for each text: own tables, and an embedded sample."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from transfer_cli.data import sample
from transfer_cli.data.columns import FEW_ROWS, Chosen, Wanted, is_yes, parts_of
from transfer_cli.data.label_names import look_over
from transfer_cli.data.labelled import Drawn, LabelledData
from transfer_cli.data.layout import DELIMITERS, delimiter_name
from transfer_cli.data.records import Record, label_of, text_of, value_of
from transfer_cli.data.tasks import Table, TableRow, TableRows, joined_by, numbers_of, sorted_labels
from transfer_cli.errors import DataError, listed
from transfer_cli.tasks.multilabel.task import SEPARATOR, LabelsExample, MultilabelTask

_TRAITS: Mapping[str, tuple[str, ...]] = {
    "animal": ("alive",),
    "city": ("human", "place"),
    "disease": (),
    "mineral": ("natural",),
    "person": ("alive", "human"),
    "river": ("natural", "place"),
}


@dataclass(kw_only=True)
class _Multilabelled(Drawn):
    """A data set with several labels for each text."""

    kind: ClassVar[str | None] = "multilabel"

    def strata(self, examples: Sequence[LabelsExample]) -> Sequence[int]:
        """Return the rarest label of each, so that a share has of each; of none, one more."""
        count = Counter(chain.from_iterable(each.label or () for each in examples))
        return [
            min(each.label or (), key=lambda number: (count[number], number), default=-1)
            for each in examples
        ]

    def check(self, train: Sequence[LabelsExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`."""
        look_over(Counter(labels[each] for example in train for each in example.label or ()), where)
        if len({each.label for each in train}) < 2:
            raise DataError(
                f"{where}: all examples have the same labels, {listed(labels) or 'none'}; there "
                "is nothing to learn. Name another label column."
            )
        if len(train) < FEW_ROWS:
            return
        if all(len(each.label or ()) == 1 for each in train):
            mark = joined_by(labels)
            cure = f"data.separator={delimiter_name(mark)} parts them" if mark else (
                "data=table objective=classification is for such rows"
            )  # fmt: skip
            raise DataError(f"{where}: each of its {len(train):,} rows has one label; {cure}.")
        if 2 * len(labels) > sum(len(each.label or ()) for each in train):
            raise DataError(
                f"{where}: {len(train):,} examples have {len(labels):,} different labels, most of "
                "them once. Is that the column of the labels? Say data.label=COLUMN."
            )


@dataclass(kw_only=True)
class LabelsTable(_Multilabelled, Table):
    """Own tables with any number of labels in each row; see `data.tasks.Table`.

    A cell without labels is empty, or an empty list. Where `label` names several columns, each says
    yes or no of the label that it is called by; see `data.columns.is_yes`.

    Args:
        separator: What parts the labels in a cell, or its name in `data.layout.DELIMITERS`; in
            JSON lines and Parquet it may be a list.
    """

    separator: str = SEPARATOR

    read_as_trained: ClassVar[tuple[str, ...]] = ("separator",)
    several: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.separator:
            raise ValueError(f"separator is empty, expected a text or one of {listed(DELIMITERS)}")
        self._mark = DELIMITERS.get(self.separator, self.separator)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`."""
        return _with_shares(super().load(data_dir, seed))

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(super().columns, separator=self._mark)

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """See `Table`."""
        text = text_of(record, columns.text, name)
        pair = None if columns.pair is None else text_of(record, columns.pair, name)
        if columns.labels:
            own = tuple(each for each in columns.labels if _has_label(record, each, name))
            return TableRow(record.line, text, own, pair)
        cell = value_of(record, columns.label, name)
        found = [
            label_of(Record(record.line, {columns.label: part}), columns.label, name)
            for part in parts_of(cell, self._mark)
        ]
        own = tuple(labels.setdefault(label, label) for label in dict.fromkeys(found))
        return TableRow(record.line, text, own, pair)

    def check(self, train: Sequence[LabelsExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`; columns of labels that no text has, or each has, say nothing."""
        if not isinstance(self.label, tuple):
            super().check(train, labels, where)
            return
        count = Counter(chain.from_iterable(each.label or () for each in train))
        names = [name for number, name in enumerate(labels) if 0 < count[number] < len(train)]
        if len(names) < len(self.label):
            raise DataError(
                f"{where}: of its {len(self.label)} columns of labels only {len(names)} "
                f"({listed(names, 20)}) have both yes and no in training; leave the others out of "
                "data.label"
            )

    def of_rows(self, rows: Mapping[str, TableRows], paths: Mapping[str, Path]) -> LabelledData:
        """See `Table`."""
        first = next(iter(rows))
        labels = sorted_labels(chain.from_iterable(row.labels for row in rows[first].rows))
        splits = {
            name: [
                LabelsExample(row.text, tuple(sorted(numbers)), row.pair, row.line)
                for row, numbers in zip(
                    found.rows, numbers_of(found.rows, labels, paths[name], name), strict=True
                )
            ]
            for name, found in rows.items()
        }
        return LabelledData(paths[first].stem, labels, splits, self.node(), files=paths)

    def node(self) -> dict[str, Any]:
        """See `Table`."""
        return MultilabelTask.node(truncate=self.truncate)


@dataclass(kw_only=True)
class SampleLabels(_Multilabelled):
    """The embedded questions about the made-up encyclopedia, answered by what a thing is like.

    The labels are those of the kind of thing that the one name in a question belongs to, which only
    the encyclopedia tells; see `data.sample`. One kind has none.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        kinds, questions = sample.questions(self.world)
        labels = sorted_labels(chain.from_iterable(_TRAITS.values()))
        numbers = [tuple(labels.index(each) for each in _TRAITS[kind]) for kind in kinds]
        splits = {
            name: [LabelsExample(text, numbers[kind]) for text, kind in rows]
            for name, rows in questions.items()
        }
        data = LabelledData("sample_labels", labels, splits, MultilabelTask.node())
        return _with_shares(self._drawn(data, seed))


def _has_label(record: Record, column: str, name: str) -> bool:
    """Return whether a row has the label that a column is called by.

    Raises:
        DataError: The cell says neither yes nor no.
    """
    cell = value_of(record, column, name)
    found = is_yes(cell)
    if found is None:
        raise DataError(
            f"{name}, line {record.line}: {str(cell)!r:.80} in {column!r} says neither yes (1, "
            "true, yes, x) nor no (0, false, no, nothing)."
        )
    return found


def _with_shares(data: LabelledData) -> LabelledData:
    """Return data with the share of the training examples that have each label."""
    train = data.splits["train"]
    count = Counter(chain.from_iterable(example.label for example in train))
    shares = [count[number] / len(train) for number in range(len(data.labels))]
    return replace(data, task={**(data.task or {}), "shares": shares})
