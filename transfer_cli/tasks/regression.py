"""Regression: a number for a text, or for a pair of texts.

Legend: B batch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.encoded_task import have_answers
from transfer_cli.data.records import NUMBER_MARKS, Record, label_of, plain_number
from transfer_cli.data.wanted import Chosen
from transfer_cli.errors import DataError
from transfer_cli.metrics import Metric
from transfer_cli.objectives.confidence import ROUNDING
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.base import CURE, MARGIN, Answer, Encoded, Result, Rows, Task, TextsTask
from transfer_cli.tasks.table import Table, TableRow

_MAX_NUMBER = 3e38
"""The largest number that can be learnt; the largest of 32 bits is 3.4e38."""


@dataclass(frozen=True, slots=True)  # there may be millions
class NumberExample:
    """A text, or two, and the number that people gave it."""

    text: str
    value: float | None = None
    pair: str | None = None
    line: int | None = field(default=None, compare=False)
    file: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RegressionTask(TextsTask):
    """A number for a text, or for a pair of texts.

    Args:
        truncate: See `TextsTask`.
        mean: Of the training examples' numbers.
        scale: Their standard deviation.
        quartiles: The three that part them.
    """

    name, objective, head, example = "regression", "regression", "class", NumberExample
    fields, expected = ("value",), "value"
    files, export_head = f"{__name__}.NumberTable", "sequence_classification"
    scores_answers = combines = can_fail = True

    mean: float = 0.0
    scale: float = 1.0
    quartiles: tuple[float, ...] = field(default=(), compare=False)

    def labels_of(self, example: NumberExample) -> Sequence[str]:
        return () if example.value is None else (format_number(example.value, self.scale),)

    def unlabelled(self, example: NumberExample) -> NumberExample:
        return replace(example, value=None)

    def check(self, train: Sequence[NumberExample], where: str) -> None:
        values = _values(train)
        if np.ptp(values) == 0:
            raise DataError(
                f"{where}: all examples have the number {values[0]:g}; there is nothing to learn. "
                "Name another label column."
            )

    def strata(self, examples: Sequence[NumberExample]) -> Sequence[int]:
        """Return the fifth of all numbers that each one is in."""
        values = _values(examples)
        bounds = np.quantile(values, [0.2, 0.4, 0.6, 0.8])
        return [int(fifth) for fifth in np.searchsorted(bounds, values, side="right")]

    def facts(self, train: Sequence[NumberExample]) -> dict[str, Any]:
        """Return the mean, the deviation (of equal numbers 1) and the quartiles of the numbers."""
        values = _values(train)
        scale = float(values.std()) if np.ptp(values) > 0 else 1.0
        quartiles = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return {"mean": float(values.mean()), "scale": scale, "quartiles": quartiles}

    def targets(self, examples: Sequence[NumberExample]) -> Mapping[str, Any]:
        values = [example.value for example in examples]
        return (
            {"value": np.array(values, dtype=np.float64)} if have_answers(values, "number") else {}
        )

    @classmethod
    def sample(cls) -> tuple["RegressionTask", Sequence[NumberExample]]:
        return cls(mean=3.5, scale=2.0), (
            NumberExample("Where is it ?", 1.0),
            NumberExample("How many rivers are there ?", 4.5),
            NumberExample("Where do the rivers go ?", 2.5),
            NumberExample("How many ?", 6.0),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        (row,) = rows.values()
        return {"value": float(row["value"])}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; an answer within half a deviation is right, one two deviations off wrong."""
        (row,) = rows.values()
        expected, predicted = data.examples[example].value, float(row["value"])
        off = abs(predicted - expected) / self.scale
        score = min(1.0, max(0.0, (2 - off) / 1.5))
        given, answer = (format_number(value, self.scale) for value in (expected, predicted))
        return Result(given, answer, score=score)

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        predicted = [float(row["value"]) for windows in rows.values() for row in windows.values()]
        given = [data.examples[example].value for example in rows]
        return correlations(predicted, given, self.scale)

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        return {"value": float(np.mean([answer["value"] for _, answer in answers]))}

    def said(self, answer: Answer) -> tuple[str, float]:
        """Return the number; it has no probability."""
        return format_number(answer["value"], self.scale), math.nan

    def said_value(self, said: str) -> float:
        return float(said)

    def written(self, answer: Answer) -> dict[str, Any]:
        return {"value": float(self.said(answer)[0])}

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        if "mse" not in measures or measures["mse"] < (1 - MARGIN) * self.scale**2:
            return None
        return (
            f"the mean squared training error, {measures['mse']:.4g}, is no better than always "
            f"answering the mean ({self.scale**2:.4g}); {CURE}"
        )


def format_number(value: float, scale: float = math.inf) -> str:
    """Return a number as it is written: with the digits of float32, more if many deviations off."""
    more = math.log10(min(1e8, max(1, abs(value) / scale)))
    return f"{value:.{7 + int(more)}g}"


def correlations(
    predicted: Sequence[float], given: Sequence[float], scale: float = 1.0
) -> dict[str, float]:
    """Return `pearson` and `spearman`; what is undefined is left out.

    Both are undefined where the answers differ by no more than rounding does, beside `scale`.
    """
    if np.ptp(predicted) <= ROUNDING * scale:
        return {}
    found = {
        "pearson": correlation(predicted, given),
        "spearman": correlation(average_ranks(predicted), average_ranks(given)),
    }
    return {name: value for name, value in found.items() if value is not None}


def correlation(
    first: Sequence[float] | npt.NDArray[Any], second: Sequence[float] | npt.NDArray[Any]
) -> float | None:
    """Return Pearson's correlation; None where it is undefined: one side is constant."""
    one, other = (np.asarray(side, dtype=np.float64) for side in (first, second))
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    one, other = one - one.mean(), other - other.mean()
    below = np.linalg.norm(one) * np.linalg.norm(other)
    return float(np.clip(one @ other / below, -1, 1)) if below > 0 else None


def average_ranks(values: Sequence[float]) -> npt.NDArray[Any]:
    """Return the rank of each value from 1; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _values(examples: Sequence[NumberExample]) -> npt.NDArray[np.float64]:
    return np.array([example.value for example in examples], dtype=np.float64)


@dataclass(kw_only=True)
class NumberTable(Table):
    """Own tables whose column of the label holds a number for each text; see `tasks.table`."""

    task: ClassVar[type[Task]] = RegressionTask
    numbers: ClassVar[bool] = True
    named: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._first_with_mark = dict[tuple[str, str], str]()

    def read_label(self, record: Record, columns: Chosen, name: str) -> float:
        written = label_of(record, columns.label, name)
        for mark in (mark for mark, form in NUMBER_MARKS.items() if form.fullmatch(written)):
            self._first_with_mark.setdefault((name, mark), written)
            if other := self._first_with_mark.get((name, "." if mark == "," else ",")):
                raise DataError(
                    f"{name}, line {record.line}: {written!r} in {columns.label!r} stands beside "
                    f"{other!r}: which mark parts thousands is not clear. Write decimal points.",
                    f"{columns.label!r} has decimal commas and points",
                )
        text = plain_number(written)
        problem = number_problem(text)
        if problem is not None:
            raise DataError(
                f"{name}, line {record.line}: {text!r:.80} in {columns.label!r} {problem}; "
                "data=table takes names of classes.",
                f"{columns.label!r} {problem}",
            )
        return float(text)

    def build_example(self, row: TableRow, numbers: tuple[int, ...]) -> NumberExample:
        return NumberExample(row.text, row.label, row.pair, row.line, row.file)


def number_problem(text: str) -> str | None:
    """Return why a text is no number that can be learnt, or None."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return "is no number"
    return None if abs(value) <= _MAX_NUMBER else "is more than 32 bits hold, 3e38"


@dataclass(eq=False, repr=False)
class Regression(SequenceObjective):
    """Squared error of a number, from one vector for each text; see `SequenceObjective`.

    The head learns z = (y - m) / s, with the mean m and the deviation s of the training numbers y,
    so that neither rate nor initialisation depends on their unit. Answers and measures but for the
    loss are in that unit.

    Args:
        loss: `mse`, or `huber`: the absolute error beyond one deviation.
        standardise: Whether the head learns z; else it learns y itself.
        clip: The lowest and the highest answer; None: any number.
        options: Those of `SequenceObjective`.
    """

    task = "regression"
    problem_type: ClassVar[str | None] = "regression"
    has_temperature = False
    num_outputs = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mse", higher_is_better=False),
        Metric("mae", higher_is_better=False),
        Metric("loss", higher_is_better=False, per_example=True),
    )
    task_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("pearson", higher_is_better=True, headline=True),
        Metric("spearman", higher_is_better=True),
    )

    loss: Literal["mse", "huber"] = field(default="mse", kw_only=True)
    standardise: bool = field(default=True, kw_only=True)
    clip: tuple[float, float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] < self.clip[1]):
            raise ValueError(f"clip is {list(self.clip)}, expected [LOWEST, HIGHEST]")

    @property
    def is_steady(self) -> bool:
        return type(self) is Regression

    def unit_of(self, task: Task | None) -> tuple[float, float]:
        if not self.standardise or not isinstance(task, RegressionTask):
            return 0.0, 1.0
        return task.mean, task.scale

    def left_out_of_exports(self, task: Task | None) -> tuple[str, ...]:
        return () if self.clip is None else ("objective.clip, so that answers are not bounded",)

    def values(self, outputs_B1: Tensor) -> Tensor:
        """Return the head's output in the unit of the numbers, `[B]`."""
        mean, scale = self.unit_of(self.info.task)
        values_B = outputs_B1.squeeze(1).double() * scale + mean
        return values_B if self.clip is None else values_B.clamp(*self.clip)

    def answer_scores(self, answers_BN: Tensor) -> Tensor:
        """Return the numbers as the head learns them."""
        mean, scale = self.unit_of(self.info.task)
        return (answers_BN - mean) / scale

    def first_choice(self, answers_BN: Tensor) -> Tensor:
        return answers_BN

    def confidence(self, scores_BN: Tensor) -> Tensor:
        """Return 1: a number does not say how sure it is."""
        return torch.ones_like(scores_BN[:, 0])

    def divergence(self, target_BN: Tensor, scores_BN: Tensor) -> Tensor:
        """Return the squared difference, `[B]`."""
        return (target_BN - scores_BN).square().sum(1)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        mean, scale = self.unit_of(self.info.task)
        target_B = ((batch["value"] - mean) / scale).float()
        measure = F.mse_loss if self.loss == "mse" else F.huber_loss
        return measure(outputs.squeeze(1), target_B, reduction="none")

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        error_B = self.values(outputs) - batch["value"]
        squared, absolute = error_B.square().sum(), error_B.abs().sum()
        return {**super().tallies(outputs, batch), "mse": squared, "mae": absolute}

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the numbers, `value` `[B]`."""
        return {"value": self.values(outputs)}

    def display_pairs(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        both = zip(batch["value"].tolist(), self.values(outputs).tolist(), strict=True)
        scale = getattr(self.info.task, "scale", math.inf)
        return [(format_number(one, scale), format_number(other, scale)) for one, other in both]
