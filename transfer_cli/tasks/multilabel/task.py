"""The record of the task: its examples, its answers, its thresholds; tables of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from transfer_cli.data.columns import Chosen, Wanted, is_yes, parts_of
from transfer_cli.data.encoded_task import all_known
from transfer_cli.data.label_names import joined_by, look_over
from transfer_cli.data.layout import DELIMITERS, delimiter_name
from transfer_cli.data.records import FEW_ROWS, Record, label_of, value_of
from transfer_cli.errors import DataError, listed
from transfer_cli.tasks.base import (
    DECIMALS,
    Answer,
    Encoded,
    Result,
    Rows,
    Task,
    TextsTask,
    mean_by_label,
    no_better,
)
from transfer_cli.tasks.table import Table, TableRow

SEPARATOR = "|"
"""What parts labels in a cell of a table."""

HALF = 0.5
"""The threshold of a label for which none was fitted."""

_NONE = -1


@dataclass(frozen=True, slots=True)  # there may be millions
class LabelsExample:
    """A text, or two, and the numbers of its labels; None: they are not known."""

    text: str
    label: tuple[int, ...] | None = None
    pair: str | None = None
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class MultilabelTask(TextsTask):
    """Any number of labels for a text, or for a pair of texts.

    A label is said where its probability is above its threshold: `fitted["thresholds"]`, else 0.5.

    Args:
        truncate: See `TextsTask`.
        shares: The share of the training examples that have each label.
    """

    name: ClassVar[str] = "multilabel"
    objective: ClassVar[str] = "multilabel"
    head: ClassVar[str] = "class"
    example: ClassVar[type] = LabelsExample
    files: ClassVar[str | None] = f"{__name__}.LabelsTable"
    fields: ClassVar[tuple[str, ...]] = ("labels", "probabilities")
    expected: ClassVar[str] = "labels"
    export_head: ClassVar[str | None] = "sequence_classification"
    combines: ClassVar[bool] = True
    can_fail: ClassVar[bool] = True

    shares: tuple[float, ...] = field(default=(), compare=False)

    @property
    def thresholds(self) -> list[float]:
        """The probability above which each label is said."""
        return list(self.fitted.get("thresholds", [HALF] * len(self.labels)))

    def labels_of(self, example: LabelsExample) -> Sequence[str]:
        """See `Task`."""
        return [self.labels[number] for number in example.label or ()]

    def check(self, train: Sequence[LabelsExample], where: str) -> None:
        """See `Task`."""
        labels = self.labels
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

    def strata(self, examples: Sequence[LabelsExample]) -> Sequence[int]:
        """Return the rarest label of each, so that a share has of each; of none, one more."""
        count = Counter(chain.from_iterable(each.label or () for each in examples))
        return [
            min(each.label or (), key=lambda number: (count[number], number), default=-1)
            for each in examples
        ]

    def facts(self, train: Sequence[LabelsExample]) -> dict[str, list[float]]:
        """Return the share of the examples that have each label."""
        count = Counter(chain.from_iterable(example.label or () for example in train))
        return {"shares": [count[number] / len(train) for number in range(len(self.labels))]}

    def targets(self, examples: Sequence[LabelsExample]) -> Mapping[str, Any]:
        """See `TextsTask`."""
        numbers = [example.label for example in examples]
        if not all_known(numbers, "list of labels"):
            return {}
        known = [each or () for each in numbers]
        # Of many labels a text has few: their numbers take less than a table of yes and no.
        targets = np.full((len(known), max(map(len, known))), _NONE, dtype=np.int64)
        for row, own in enumerate(known):
            targets[row, : len(own)] = own
        return {"labels": targets}

    @classmethod
    def sample(cls) -> tuple["MultilabelTask", Sequence[LabelsExample]]:
        """See `Task`."""
        return cls(("number", "place"), shares=(0.5, 0.5)), (
            LabelsExample("Where is it ?", (1,)),
            LabelsExample("How many rivers are there ?", (0, 1)),
            LabelsExample("Do the rivers go ?", ()),
            LabelsExample("How many ?", (0,)),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the probability of each label."""
        (found,) = rows.values()
        return {"probabilities": found["probabilities"]}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; the score is the F1 of the labels of this example."""
        (found,) = rows.values()
        said = [self.labels[number] for number in sorted(found["said"]) if number >= 0]
        given = self.labels_of(data.examples[example])
        both = 2 * len({*said} & {*given})
        score = both / (len(said) + len(given)) if said or given else 1.0
        return Result(SEPARATOR.join(given), SEPARATOR.join(said), found["probability"], score)

    def fit(self, data: Encoded, rows: Mapping[int, Rows]) -> Mapping[str, Any]:
        """Return the thresholds with the highest F1 of each label on the validation examples."""
        shares_NC = np.array([found["probabilities"] for own in rows.values()
                              for found in own.values()])  # fmt: skip
        given_NC = np.zeros(shares_NC.shape, dtype=bool)
        for row, example in enumerate(rows):
            given_NC[row, list(data.examples[example].label)] = True
        return {"thresholds": [*map(best_threshold, shares_NC.T, given_NC.T)]}

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        """Return the mean of the probabilities and, where some were fitted, of the thresholds.

        So a label is said whose probability is above its runs' thresholds on average.
        """
        parts = [(task.labels, answer["probabilities"]) for task, answer in answers]
        found = {"probabilities": mean_by_label(self.labels, parts)}
        runs = [task for task, _ in answers if isinstance(task, MultilabelTask)]
        if any(task.fitted for task in runs):
            own = [(task.labels, task.thresholds) for task in runs]
            found["thresholds"] = mean_by_label(self.labels, own)
        return found

    def written(self, answer: Answer) -> dict[str, Any]:
        """See `Task`."""
        shares_C = np.asarray(answer["probabilities"])
        above_C = shares_C > np.asarray(answer.get("thresholds", self.thresholds))
        said = [self.labels[number] for number in np.flatnonzero(above_C)]
        shares = shares_C.round(DECIMALS).tolist()
        return {"labels": said, "probabilities": dict(zip(self.labels, shares, strict=True))}

    @property
    def cell_names(self) -> tuple[str, ...]:
        """See `Task`."""
        return ("labels", *(f"probability/{label}" for label in self.labels))

    def cells(self, answer: Answer) -> list[Any]:
        """See `Task`; labels as a table has them."""
        found = self.written(answer)
        return [SEPARATOR.join(found["labels"]), *found["probabilities"].values()]

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why nothing was learnt: the same labels for every text are no worse."""
        if "micro_f1" not in measures or "decisions" not in tables:
            return None
        right_C, surplus_C, missing_C, neither_C = np.array(tables["decisions"])
        given_C = right_C + missing_C
        texts, given = (given_C + surplus_C + neither_C)[0], given_C.sum()
        order = np.argsort(-given_C, kind="stable")
        # The micro-F1 of the one, two, ... most frequent labels as every answer.
        said = texts * np.arange(1, len(order) + 1)
        constant = 2 * given_C[order].cumsum() / (said + given)
        if given == 0:
            return None
        names = listed((self.labels[at] for at in order[: constant.argmax() + 1]), 3)
        return no_better(
            "micro-F1",
            measures["micro_f1"],
            f"always answering {names}",
            constant.max(),
            "try a longer run, another optimizer.lr, objective.pos_weight=balanced or "
            "objective.thresholds=fit",
        )


def best_threshold(shares_N: npt.NDArray[np.float64], given_N: npt.NDArray[np.bool_]) -> float:
    """Return the threshold with the highest F1 of a label; of equal ones the highest.

    It is halfway between two probabilities, so that rounding decides nothing. Without an example of
    the label it is 0.5.

    Args:
        shares_N: The label's probability for each example.
        given_N: Whether the example has it.
    """
    if not given_N.any():
        return HALF
    order = np.argsort(-shares_N, kind="stable")
    sorted_N = shares_N[order]
    said_N = np.arange(1, len(order) + 1)
    f1_N = 2 * given_N[order].cumsum() / (said_N + given_N.sum())
    below_N = np.append(sorted_N[1:], 0.0)
    f1_N[sorted_N == below_N] = -1  # equal probabilities are said together
    best = int(f1_N.argmax())
    return float((sorted_N[best] + below_N[best]) / 2)


@dataclass(kw_only=True)
class LabelsTable(Table):
    """Own tables with any number of labels in each row; see `tasks.table.Table`.

    A cell without labels is empty, or an empty list. Where `label` names several columns, each says
    yes or no of the label that it is called by; see `data.columns.is_yes`.

    Args:
        separator: What parts the labels in a cell, or its name in `data.layout.DELIMITERS`; in
            JSON lines and Parquet it may be a list.
    """

    separator: str = SEPARATOR

    task: ClassVar[type[Task]] = MultilabelTask
    read_as_trained: ClassVar[tuple[str, ...]] = ("separator",)
    several: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.separator:
            raise ValueError(f"separator is empty, expected a text or one of {listed(DELIMITERS)}")
        self._mark = DELIMITERS.get(self.separator, self.separator)

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(super().columns, separator=self._mark)

    def label_in(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> tuple[str, ...]:
        """Return the labels of a row."""
        if columns.labels:
            return tuple(each for each in columns.labels if _has_label(record, each, name))
        names = [
            label_of(Record(record.line, {columns.label: part}), columns.label, name)
            for part in parts_of(value_of(record, columns.label, name), self._mark)
        ]
        return tuple(labels.setdefault(label, label) for label in dict.fromkeys(names))

    def example(self, row: TableRow, numbers: tuple[int, ...]) -> LabelsExample:
        """See `Table`."""
        return LabelsExample(row.text, tuple(sorted(numbers)), row.pair, row.line)

    def check(self, task: Task, train: Sequence[LabelsExample], where: str) -> None:
        """See `LabelledSource`; columns of labels that no text has, or each has, say nothing."""
        if not isinstance(self.label, tuple):
            task.check(train, where)
            return
        count = Counter(chain.from_iterable(each.label or () for each in train))
        names = [name for number, name in enumerate(task.labels) if 0 < count[number] < len(train)]
        if len(names) < len(self.label):
            raise DataError(
                f"{where}: of its {len(self.label)} columns of labels only {len(names)} "
                f"({listed(names, 20)}) have both yes and no in training; leave the others out of "
                "data.label"
            )


def _has_label(record: Record, column: str, name: str) -> bool:
    """Return whether a row has the label that a column is called by."""
    cell = value_of(record, column, name)
    found = is_yes(cell)
    if found is None:
        raise DataError(
            f"{name}, line {record.line}: {str(cell)!r:.80} in {column!r} says neither yes (1, "
            "true, yes, x) nor no (0, false, no, nothing)."
        )
    return found
