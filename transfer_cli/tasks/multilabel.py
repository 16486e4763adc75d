"""Several labels for a text, or none: the record of the task, tables of such texts, the loss.

Legend: N texts, B batch, C labels, K labels of a text at most.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, Counts, Sums
from transfer_cli.data.columns import is_yes, split_labels
from transfer_cli.data.encoded_task import have_answers
from transfer_cli.data.label_names import warn_of_unclear_labels
from transfer_cli.data.layout import DELIMITERS, delimiter_name
from transfer_cli.data.records import FEW_ROWS, Record, label_of, value_of
from transfer_cli.data.split import TextStats
from transfer_cli.data.wanted import Chosen, Wanted
from transfer_cli.errors import DataError, list_names
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives import confidence
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.base import (
    DECIMALS,
    Answer,
    Encoded,
    Result,
    Rows,
    Task,
    TextsTask,
    baseline_failure,
    mean_by_label,
    rarest_labels,
)
from transfer_cli.tasks.table import Table, TableRow

SEPARATOR = "|"
"""What parts labels in a cell of a table."""

DEFAULT_THRESHOLD = 0.5
"""The threshold of a label for which none was fitted."""


@dataclass(frozen=True, slots=True)  # there may be millions
class LabelsExample:
    """A text, or two, and the numbers of its labels; None: they are not known."""

    text: str
    label: tuple[int, ...] | None = None
    pair: str | None = None
    line: int | None = field(default=None, compare=False)
    file: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class MultilabelTask(TextsTask):
    """Any number of labels for a text, or for a pair of texts.

    A label is said where its probability is above its threshold: `fitted["thresholds"]`, else 0.5.

    Args:
        truncate: See `TextsTask`.
        shares: The share of the training examples that have each label.
    """

    name, objective, head, example = "multilabel", "multilabel", "class", LabelsExample
    fields, expected = ("labels", "probability", "probabilities"), "labels"
    files, export_head = f"{__name__}.LabelsTable", "sequence_classification"
    combines = can_fail = True

    shares: tuple[float, ...] = field(default=(), compare=False)

    @property
    def thresholds(self) -> list[float]:
        """The probability above which each label is said; the temperature changes no answer."""
        fitted = np.array(self.fitted.get("thresholds", [DEFAULT_THRESHOLD] * len(self.labels)))
        if self.temperature == 1.0:
            return list(fitted.tolist())
        with np.errstate(divide="ignore"):
            odds = (fitted / (1 - fitted)) ** (1 / self.temperature)
        return list((1 - 1 / (1 + odds)).tolist())

    def labels_of(self, example: LabelsExample) -> Sequence[str]:
        return [self.labels[number] for number in example.label or ()]

    def check(self, train: Sequence[LabelsExample], where: str) -> None:
        labels = self.labels
        warn_of_unclear_labels(
            Counter(labels[number] for example in train for number in example.label or ()), where
        )
        if len({example.label for example in train}) < 2:
            raise DataError(
                f"{where}: all examples have the same labels, {list_names(labels) or 'none'}; "
                "there is nothing to learn. Name another label column."
            )
        if len(train) < FEW_ROWS:
            return
        if all(len(example.label or ()) == 1 for example in train):
            mark = next((mark for mark in "|;," if any(mark in label for label in labels)), None)
            cure = f"data.separator={delimiter_name(mark)} parts them; if not, " if mark else ""
            raise DataError(
                f"{where}: each of its {len(train):,} rows has one label; {cure}data=table "
                "objective=classification is for such rows."
            )
        if 2 * len(labels) > sum(len(example.label or ()) for example in train):
            raise DataError(
                f"{where}: {len(train):,} examples have {len(labels):,} different labels, most of "
                "them once. Is that the column of the labels? Say data.label=COLUMN."
            )

    def strata(self, examples: Sequence[LabelsExample]) -> Sequence[int]:
        return rarest_labels(examples)

    def facts(self, train: Sequence[LabelsExample]) -> dict[str, list[float]]:
        count = Counter(chain.from_iterable(example.label or () for example in train))
        return {"shares": [count[number] / len(train) for number in range(len(self.labels))]}

    def targets(self, examples: Sequence[LabelsExample]) -> Mapping[str, Any]:
        numbers = [example.label for example in examples]
        if not have_answers(numbers, "list of labels"):
            return {}
        known = [labels or () for labels in numbers]
        # Of many labels a text has few: their numbers take less than a table of yes and no.
        targets = np.full((len(known), max(map(len, known))), -1, dtype=np.int64)
        for row, labels in enumerate(known):
            targets[row, : len(labels)] = labels
        return {"labels": targets}

    @classmethod
    def sample(cls) -> tuple["MultilabelTask", Sequence[LabelsExample]]:
        return cls(("number", "place"), shares=(0.5, 0.5)), (
            LabelsExample("Where is it ?", (1,)),
            LabelsExample("How many rivers are there ?", (0, 1)),
            LabelsExample("Do the rivers go ?", ()),
            LabelsExample("How many ?", (0,)),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        (row,) = rows.values()
        return {"probabilities": row["probabilities"]}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; the score is the F1 of the labels of this example."""
        (row,) = rows.values()
        predicted = [self.labels[number] for number in sorted(row["predicted"]) if number >= 0]
        given = self.labels_of(data.examples[example])
        hits = len({*predicted} & {*given})
        score = 2 * hits / (len(predicted) + len(given)) if predicted or given else 1.0
        return Result(SEPARATOR.join(given), SEPARATOR.join(predicted), row["probability"], score)

    def fit(self, data: Encoded, rows: Mapping[int, Rows]) -> Mapping[str, Any]:
        shares_NC = np.array([row_shares["probabilities"] for windows in rows.values()
                              for row_shares in windows.values()])  # fmt: skip
        given_NC = np.zeros(shares_NC.shape, dtype=bool)
        for row, example in enumerate(rows):
            given_NC[row, list(data.examples[example].label)] = True
        return {"thresholds": [*map(best_f1_threshold, shares_NC.T, given_NC.T)]}

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        """Return the mean of the probabilities and, where some were fitted, of the thresholds.

        So a label is said whose probability is above its runs' thresholds on average.
        """
        parts = [(task.labels, answer["probabilities"]) for task, answer in answers]
        means = {"probabilities": mean_by_label(self.labels, parts)}
        runs = [task for task, _ in answers if isinstance(task, MultilabelTask)]
        if any("thresholds" in task.fitted for task in runs):
            thresholds = [(task.labels, task.thresholds) for task in runs]
            means["thresholds"] = mean_by_label(self.labels, thresholds)
        return means

    def said(self, answer: Answer) -> tuple[str, float]:
        """Return the labels as a table has them, and the probability of all these decisions."""
        names, probability = self._decide(answer)
        return SEPARATOR.join(names), probability

    def said_labels(self, said: str) -> list[str]:
        parts = said.split(SEPARATOR) if said else []
        if all(part in self.labels for part in parts):
            return parts
        names, rest = list[str](), said
        while rest:  # a label may hold the separator
            fits = (name for name in self.labels if (rest + SEPARATOR).startswith(name + SEPARATOR))
            names.append(max(fits, key=len, default=rest))
            rest = rest[len(names[-1]) + 1 :]
        return names

    def _decide(self, answer: Answer) -> tuple[list[str], float]:
        shares_C = np.asarray(answer["probabilities"])
        above_C = shares_C > np.asarray(answer.get("thresholds", self.thresholds))
        names = [self.labels[number] for number in np.flatnonzero(above_C)]
        return names, float(np.where(above_C, shares_C, 1 - shares_C).prod())

    def written(self, answer: Answer) -> dict[str, Any]:
        """See `Task`; a set that is not sure is null, and one without labels an empty list."""
        names, probability = self._decide(answer)
        shares = np.asarray(answer["probabilities"]).round(DECIMALS).tolist()
        return {
            "labels": names if probability >= self.abstain_below else None,
            "probability": round(probability, DECIMALS),
            "probabilities": dict(zip(self.labels, shares, strict=True)),
        }

    @property
    def cell_names(self) -> tuple[str, ...]:
        return ("labels", "probability", *(f"probability/{label}" for label in self.labels))

    def cells(self, answer: Answer) -> list[Any]:
        """See `Task`; labels as a table has them: a list where one of them holds the separator."""
        labels, probability, shares = self.written(answer).values()
        is_list = any(SEPARATOR in label for label in labels or ())
        joined = repr(labels) if is_list else SEPARATOR.join(labels or ())
        return [joined, probability, *shares.values()]

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        if "micro_f1" not in measures or "decisions" not in tables:
            return None
        right_C, surplus_C, missing_C, neither_C = np.array(tables["decisions"])
        given_C = right_C + missing_C
        texts, given = (given_C + surplus_C + neither_C)[0], given_C.sum()
        order = np.argsort(-given_C, kind="stable")
        # The micro-F1 of the one, two, ... most frequent labels as every answer.
        predicted = texts * np.arange(1, len(order) + 1)
        constant = 2 * given_C[order].cumsum() / (predicted + given)
        if given == 0:
            return None
        names = list_names((self.labels[at] for at in order[: constant.argmax() + 1]), 3)
        return baseline_failure(
            "micro-F1",
            measures["micro_f1"],
            f"always answering {names}",
            constant.max(),
            "try a longer run, another optimizer.lr, objective.pos_weight=balanced or "
            "objective.thresholds=fit",
        )


def best_f1_threshold(shares_N: npt.NDArray[np.float64], given_N: npt.NDArray[np.bool_]) -> float:
    """Return the threshold with the highest F1 of a label; of equal ones the highest.

    It is halfway between two probabilities that differ by more than rounding. Without an example
    of the label it is 0.5.

    Args:
        shares_N: The label's probability for each example.
        given_N: Whether the example has it.
    """
    if not given_N.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-shares_N, kind="stable")
    sorted_N = shares_N[order]
    predicted_N = np.arange(1, len(order) + 1)
    f1_N = 2 * given_N[order].cumsum() / (predicted_N + given_N.sum())
    below_N = np.append(sorted_N[1:], 0.0)
    # Probabilities that are equal but for rounding are said together, and 0 is never.
    is_apart_N = sorted_N - below_N > confidence.ROUNDING
    is_apart_N[-1] = sorted_N[-1] > 0
    f1_N[~is_apart_N] = -1
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
    read_as_trained: ClassVar[tuple[str, ...]] = (*Table.read_as_trained, "separator")
    several: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.separator:
            names = list_names(DELIMITERS)
            raise ValueError(f"separator is empty, expected a text or one of {names}")
        self._mark = DELIMITERS.get(self.separator, self.separator)

    @property
    def columns(self) -> Wanted:
        return replace(super().columns, separator=self._mark)

    def read_label(self, record: Record, columns: Chosen, name: str) -> tuple[str, ...]:
        if columns.labels:
            return tuple(label for label in columns.labels if _has_label(record, label, name))
        names = [
            label_of(Record(record.line, {columns.label: part}), columns.label, name)
            for part in split_labels(value_of(record, columns.label, name), self._mark)
        ]
        return tuple(map(sys.intern, dict.fromkeys(names)))

    def build_example(self, row: TableRow, numbers: tuple[int, ...]) -> LabelsExample:
        return LabelsExample(row.text, tuple(sorted(numbers)), row.pair, row.line, row.file)

    def check(self, task: Task, train: Sequence[LabelsExample], where: str) -> None:
        """See `LabelledSource`; columns of labels that no text has, or each has, say nothing."""
        if not isinstance(self.label, tuple):
            task.check(train, where)
            return
        count = Counter(chain.from_iterable(example.label or () for example in train))
        names = [name for number, name in enumerate(task.labels) if 0 < count[number] < len(train)]
        if len(names) < len(self.label):
            raise DataError(
                f"{where}: of its {len(self.label)} columns of labels only {len(names)} "
                f"({list_names(names, 20)}) have both yes and no in training; leave the others out "
                "of data.label"
            )


def _has_label(record: Record, column: str, name: str) -> bool:
    """Return whether a row has the label that a column is called by."""
    cell = value_of(record, column, name)
    has_label = is_yes(cell)
    if has_label is None:
        raise DataError(
            f"{name}, line {record.line}: {str(cell)!r:.80} in {column!r} says neither yes (1, "
            "true, yes, x) nor no (0, false, no, nothing).",
            f"{column!r} says neither yes nor no",
        )
    return has_label


MAX_WEIGHT = 100.0
"""The largest weight of a label's examples: of rarer labels a single text would decide all."""


@dataclass(eq=False, repr=False)
class Multilabel(SequenceObjective):
    """Binary cross-entropy of each label, from one vector for each text; see `SequenceObjective`.

    It is the mean over texts and labels.

    Args:
        pos_weight: balanced: the examples of a label count as much as those without it, at most
            `MAX_WEIGHT` each; None: each counts once.
        thresholds: fit: a label is said where its probability is above the threshold with the
            highest F1 on validation, which the end of a run finds; None: above 0.5.
        calibrate, abstain: See `UnitObjective`; probabilities are those of labels, and answers are
            all labels of a text.
        options: Those of `SequenceObjective`.
    """

    task = "multilabel"
    problem_type: ClassVar[str] = "multi_label_classification"

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("micro_f1", higher_is_better=True, unit="fraction", headline=True),
        Metric("macro_f1", higher_is_better=True, unit="fraction"),
        Metric("exact_match", higher_is_better=True, unit="fraction"),
        Metric("hamming_loss", higher_is_better=False, unit="fraction"),
        LOSS,
    )
    counted: ClassVar[tuple[str, ...]] = ("decisions",)

    pos_weight: Literal["balanced"] | None = field(default=None, kw_only=True)
    thresholds: Literal["fit"] | None = field(default=None, kw_only=True)
    calibrate: confidence.Calibrate = field(default=False, kw_only=True)
    abstain: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fits_answers = self.thresholds == "fit"

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        share_C = torch.tensor(getattr(info.task, "shares", ()))
        self._weight_C = ((1 - share_C) / share_C).clamp(1 / MAX_WEIGHT, MAX_WEIGHT)

    @property
    def num_outputs(self) -> int:
        return len(self.info.labels)

    @property
    def is_steady(self) -> bool:
        return type(self) is Multilabel and self.pos_weight is None

    def answer_scores(self, answers_BN: Tensor) -> Tensor:
        never = 1e-6  # the probability of what a teacher is sure of not to be so
        return answers_BN.logit(eps=never)

    def first_choice(self, answers_BN: Tensor) -> Tensor:
        """Return the decision about each label: yes above a half."""
        return (answers_BN > DEFAULT_THRESHOLD).to(answers_BN.dtype)

    def confidence(self, scores_BN: Tensor) -> Tensor:
        """Return the probability of the answer that is least sure, `[B]`."""
        return scores_BN.abs().sigmoid().amin(1)

    def divergence(self, target_BN: Tensor, scores_BN: Tensor) -> Tensor:
        """Return the divergences of all labels, summed, `[B]`."""
        present_BN = target_BN.sigmoid() * (F.logsigmoid(target_BN) - F.logsigmoid(scores_BN))
        absent_BN = (-target_BN).sigmoid() * (F.logsigmoid(-target_BN) - F.logsigmoid(-scores_BN))
        return (present_BN + absent_BN).sum(1)

    def label_mask(self, batch: Batch) -> Tensor:
        """Return whether each text has each label, `[B, C]`."""
        labels_BK, classes = batch["labels"], self.num_outputs
        # What pads a list of labels goes into a column of its own.
        column_BK = torch.where(labels_BK < 0, classes, labels_BK)
        nothing = labels_BK.new_zeros((len(labels_BK), classes + 1), dtype=torch.bool)
        return nothing.scatter(1, column_BK, value=True)[:, :classes]

    def predicted(self, logits_BC: Tensor) -> Tensor:
        """Return whether each label is said of each text, `[B, C]`."""
        return self._above_threshold(self.calibrated(logits_BC).sigmoid())

    def _above_threshold(self, shares_BC: Tensor) -> Tensor:
        task = self.info.task
        if not (task and "thresholds" in task.fitted):
            return shares_BC > DEFAULT_THRESHOLD
        # Doubles, as in the task's own decision.
        return shares_BC.double() > shares_BC.new_tensor(task.thresholds, dtype=torch.float64)

    def judged_units(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return scores of no and yes, and which is right, of each label of each text."""
        return torch.stack([torch.zeros_like(outputs), outputs], 2), self.label_mask(batch).long()

    def judged_answers(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of all decisions about a text, and whether all are right."""
        shares_BC = scores.diff(dim=-1).squeeze(-1).sigmoid()
        above_BC = self._above_threshold(shares_BC)
        share_B = torch.where(above_BC, shares_BC, 1 - shares_BC).prod(1)
        return share_B, (above_BC == (target == 1)).all(1)

    def decision_losses(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each decision, `[B, C]`."""
        given_BC = self.label_mask(batch).to(logits_BC.dtype)
        weight_C = None
        if self.pos_weight == "balanced":
            # It stays on the device: a step does not wait for copies.
            weight_C = self._weight_C = self._weight_C.to(logits_BC.device)
        return F.binary_cross_entropy_with_logits(
            logits_BC, given_BC, reduction="none", pos_weight=weight_C
        )

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        return {"loss": self.decision_losses(self.outputs(model, batch, encoded), batch).sum()}

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.decision_losses(outputs, batch).sum(1)

    def targets(self, batch: Batch) -> Tensor:
        """Return the number of decisions: one for each label."""
        return super().targets(batch) * self.num_outputs

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss, the texts answered exactly, and counts of decisions `[4, C]`.

        The rows of these: rightly said, wrongly said, wrongly not said, rightly not said.
        """
        given_BC, predicted_BC = self.label_mask(batch), self.predicted(outputs)
        cells = (
            given_BC & predicted_BC,
            ~given_BC & predicted_BC,
            given_BC & ~predicted_BC,
            ~given_BC & ~predicted_BC,
        )
        return {
            "loss": self.decision_losses(outputs, batch).sum(),
            "exact": (given_BC == predicted_BC).all(1).sum(),
            "decisions": torch.stack([cell_BC.sum(0) for cell_BC in cells]),
        }

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probability of each label, `probabilities` `[B, C]`."""
        return {"probabilities": self.calibrated(outputs).sigmoid()}

    def results(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return what is said of each text.

        These are the numbers of labels, `predicted` `[B, K]`, then -1, and the probability of all
        these decisions. The probabilities of all labels are there for `Task.fit` alone: of
        thousands of labels, those of a whole split would fill the memory.
        """
        predicted_BC, shares_BC = self.predicted(outputs), self.calibrated(outputs).sigmoid()
        numbers_C = torch.arange(self.num_outputs, device=outputs.device)
        most = int(predicted_BC.sum(1).max())
        predicted = {
            "predicted": torch.where(predicted_BC, numbers_C, -1).topk(most, dim=1).values,
            "probability": torch.where(predicted_BC, shares_BC, 1 - shares_BC).prod(1),
        }
        if self.fits_answers and not self.info.task.fitted:
            predicted["probabilities"] = shares_BC
        return predicted

    def display_pairs(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        both = zip(self.label_mask(batch).tolist(), self.predicted(outputs).tolist(), strict=True)
        return [(self._names(wanted_C), self._names(predicted_C)) for wanted_C, predicted_C in both]

    def _names(self, chosen_C: list[bool]) -> str:
        names = zip(self.info.labels, chosen_C, strict=True)
        return SEPARATOR.join(name for name, is_chosen in names if is_chosen)

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        right_C, surplus_C, missing_C, _ = totals["decisions"].double()
        wrong_C = surplus_C + missing_C
        # A label that is neither given nor said has no F1; sklearn's macro average counts it as 0.
        f1 = {
            f"macro_f1/{name}": float(2 * right / (2 * right + wrong))
            for name, right, wrong in zip(self.info.labels, right_C, wrong_C, strict=True)
            if right + wrong
        }
        right, wrong = float(right_C.sum()), float(wrong_C.sum())
        texts = counts["loss"] / self.num_outputs
        return {
            "loss": float(totals["loss"]) / counts["loss"],
            # Where nothing is given, to say nothing is all right.
            "micro_f1": 2 * right / (2 * right + wrong) if right + wrong else 1.0,
            "macro_f1": sum(f1.values()) / len(f1) if f1 else 1.0,
            "exact_match": float(totals["exact"]) / texts,
            "hamming_loss": wrong / counts["loss"],
            **f1,
            **confidence.measures(totals),
        }

    def left_out_of_exports(self, task: Any) -> tuple[str, ...]:
        fitted = "thresholds" in task.fitted
        of_labels = ("the fitted thresholds, so that 0.5 decides",) if fitted else ()
        return (*of_labels, *super().left_out_of_exports(task))
