"""Classification: one label for a text, or for a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transfer_cli.data.labelled import Example
from transfer_cli.data.records import FEW_ROWS
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
from transfer_cli.tasks.words import MOST_LABELS, right_by_words


@dataclass(frozen=True)
class ClassificationTask(TextsTask):
    """One label for a text, or for a pair of texts.

    Args:
        truncate: See `TextsTask`.
        judged_by: The measure that runs are judged by: `error_rate`, `matthews` (the correlation of
            labels and answers) or, of two labels, `f1`, that of the second one.
    """

    name, objective, head, example = "classification", "classification", "class", Example
    fields = ("label", "probabilities")
    files, export_head = "transfer_cli.tasks.table.Table", "sequence_classification"
    combines = can_fail = True

    judged_by: Literal["error_rate", "matthews", "f1"] = "error_rate"

    def labels_of(self, example: Example) -> Sequence[str]:
        return () if example.label is None else (self.labels[example.label],)

    def check(self, train: Sequence[Example], where: str) -> None:
        labels = self.labels
        if 2 * len(labels) > len(train) >= FEW_ROWS:
            raise DataError(
                f"{where}: {len(train):,} examples have {len(labels):,} different labels. Is that "
                "the column of the label? Say data.text=COLUMN data.label=COLUMN; numbers are for "
                "data=numbers objective=regression."
            )
        if len(labels) < 2:
            raise DataError(
                f"{where}: all examples have the label {labels[0]!r}; there is nothing to learn. "
                "Name another label column."
            )
        given = {example.label for example in train}
        missing = [repr(label) for number, label in enumerate(labels) if number not in given]
        if missing:
            raise DataError(f"{where}: no training example has the label {listed(missing, 10)}.")

    def strata(self, examples: Sequence[Example]) -> Sequence[int]:
        """Return the label of each."""
        return [example.label or 0 for example in examples]

    @classmethod
    def sample(cls) -> tuple["ClassificationTask", Sequence[Example]]:
        return cls(("number", "place")), (
            Example("Where is it ?", 1),
            Example("How many rivers are there ?", 0),
            Example("Where do the rivers go ?", 1),
            Example("How many ?", 0),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        (row,) = rows.values()
        return {"probabilities": row["probabilities"]}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        (row,) = rows.values()
        (expected,) = self.labels_of(data.examples[example]) or ("",)
        return Result(expected, self.labels[row["label"]], row["probability"])

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        """Return the mean of the probabilities, in the order of our labels."""
        parts = [(task.labels, answer["probabilities"]) for task, answer in answers]
        return {"probabilities": mean_by_label(self.labels, parts)}

    def written(self, answer: Answer) -> dict[str, Any]:
        label, *shares = self.cells(answer)
        return {"label": label, "probabilities": dict(zip(self.labels, shares, strict=True))}

    @property
    def cell_names(self) -> tuple[str, ...]:
        return ("label", *(f"probability/{label}" for label in self.labels))

    def cells(self, answer: Answer) -> list[Any]:
        shares_C = np.asarray(answer["probabilities"])
        return [self.labels[int(shares_C.argmax())], *shares_C.round(DECIMALS).tolist()]

    def right_by_words(self, train: Sequence[Example], scored: Sequence[Example]) -> int | None:
        """See `Task`; there is none for very many labels."""
        few = len(self.labels) <= MOST_LABELS
        return right_by_words(train, scored, len(self.labels)) if few else None

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why nothing was learnt.

        Fine-tuning sometimes ends with the most frequent label as every answer (Devlin et al. 2019,
        section 4.1). Such a run should be repeated with another seed, not averaged in silently.
        """
        _, given, _ = tables.get(
            "labels", ([], [sum(row) for row in tables.get("confusion", [])], [])
        )
        if not given or "accuracy" not in measures:
            return None
        if sum(count > 0 for count in given) < 2:
            return None
        return no_better(
            "accuracy",
            measures["accuracy"],
            f"always answering {self.labels[given.index(max(given))]}",
            max(given) / sum(given),
            "try another seed, a longer run or another optimizer.lr: left out, it is the one that "
            "the preset brings, and transfer lr-find finetune ... suggests one",
        )
