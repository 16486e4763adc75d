"""The record of the task: its examples, its answers, its thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from transfer_cli.data.tasks import Table
from transfer_cli.errors import DataError, listed
from transfer_cli.tasks.base import Answer, Encoded, Result, Rows, Task
from transfer_cli.tasks.probabilities import DECIMALS, check_same_labels, mean_by_label
from transfer_cli.tasks.texts import TextsTask

SEPARATOR = "|"
"""What parts labels in a cell of a table."""

HALF = 0.5
"""The threshold of a label for which none was fitted."""

MARGIN = 0.02
"""How far above that of a constant answer a micro-F1 still counts as its equal."""

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
    fields: ClassVar[tuple[str, ...]] = ("labels", "probabilities")
    expected: ClassVar[str] = "labels"
    export_head: ClassVar[str | None] = "sequence_classification"
    can_fail: ClassVar[bool] = True

    shares: tuple[float, ...] = field(default=(), compare=False)

    @property
    def thresholds(self) -> list[float]:
        """The probability above which each label is said."""
        return list(self.fitted.get("thresholds", [HALF] * len(self.labels)))

    @classmethod
    def table(cls) -> type[Table]:
        """See `Task`."""
        # Only here: it imports this module.
        from transfer_cli.tasks.multilabel.data import LabelsTable

        return LabelsTable

    def labels_of(self, example: LabelsExample) -> Sequence[str]:
        """See `Task`."""
        return [self.labels[number] for number in example.label or ()]

    def targets(self, examples: Sequence[LabelsExample]) -> Mapping[str, Any]:
        """See `TextsTask`."""
        numbers = [example.label for example in examples]
        known = [each for each in numbers if each is not None]
        if known and len(known) < len(numbers):
            raise DataError(
                f"Example {numbers.index(None) + 1} of {len(numbers)} has no list of labels, "
                "others have one; of a text without labels it is empty."
            )
        # Of many labels a text has few: their numbers take less than a table of yes and no.
        targets = np.full((len(known), max(map(len, known), default=0)), _NONE, dtype=np.int64)
        for row, own in enumerate(known):
            targets[row, : len(own)] = own
        return {"labels": targets} if known else {}

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

    def check_combines(self, other: Task, first: str, path: str) -> None:
        """Refuse a run of another task, or with other labels; their order may differ."""
        check_same_labels(self, other, first, path)

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
        if given == 0 or measures["micro_f1"] > constant.max() + MARGIN:
            return None
        names = listed((self.labels[at] for at in order[: constant.argmax() + 1]), 3)
        return (
            f"training micro-F1 {100 * measures['micro_f1']:.1f} % is no better than always "
            f"answering {names} ({100 * constant.max():.1f} %); try a longer run, another "
            "optimizer.lr, objective.pos_weight=balanced or objective.thresholds=fit"
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
