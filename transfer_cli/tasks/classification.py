"""Classification: one label for a text, or for a pair of texts; its baseline on words.

The baseline is multinomial logistic regression on words and pairs of neighbouring words, weighted
by tf-idf, without any pretraining. A fine-tuned model that does no better has cost its time for
nothing.

Legend: N texts, R terms of all texts, V vocabulary, C labels.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.data.labelled import Example
from transfer_cli.data.records import FEW_ROWS
from transfer_cli.errors import DataError, list_names
from transfer_cli.optim.lbfgs import TorchLBFGS
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
)


@dataclass(frozen=True)
class ClassificationTask(TextsTask):
    """One label for a text, or for a pair of texts.

    Args:
        truncate: See `TextsTask`.
        judged_by: The measure that runs are judged by: `error_rate`, `matthews` (the correlation of
            labels and answers) or, of two labels, `f1`, that of the second one.
    """

    name, objective, head, example = "classification", "classification", "class", Example
    fields = ("label", "probability", "probabilities")
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
            names = list_names(missing, 10)
            raise DataError(f"{where}: no training example has the label {names}.")

    def strata(self, examples: Sequence[Example]) -> Sequence[int]:
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

    def said(self, answer: Answer) -> tuple[str, float]:
        shares_C = np.asarray(answer["probabilities"])
        return self.labels[int(shares_C.argmax())], float(shares_C.max())

    def said_labels(self, said: str) -> Sequence[str]:
        return (said,)

    def written(self, answer: Answer) -> dict[str, Any]:
        label, probability = self.said(answer)
        shares = np.asarray(answer["probabilities"]).round(DECIMALS).tolist()
        return {
            "label": label if probability >= self.abstain_below else None,
            "probability": round(probability, DECIMALS),
            "probabilities": dict(zip(self.labels, shares, strict=True)),
        }

    @property
    def cell_names(self) -> tuple[str, ...]:
        return ("label", "probability", *(f"probability/{label}" for label in self.labels))

    def cells(self, answer: Answer) -> list[Any]:
        label, probability, shares = self.written(answer).values()
        return ["" if label is None else label, probability, *shares.values()]

    def right_by_words(self, train: Sequence[Example], scored: Sequence[Example]) -> int | None:
        """See `Task`; there is none for very many labels."""
        few = len(self.labels) <= MOST_LABELS
        return num_right_by_words(train, scored, len(self.labels)) if few else None

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
        if "accuracy" not in measures or sum(count > 0 for count in given) < 2:
            return None
        return baseline_failure(
            "accuracy",
            measures["accuracy"],
            f"always answering {self.labels[given.index(max(given))]}",
            max(given) / sum(given),
            "try another seed, a longer run or another optimizer.lr: left out, it is the one that "
            "the preset brings, and transfer lr-find finetune ... suggests one",
        )


MOST_LABELS = 256
"""With more, a table of texts and labels would be large."""

MOST_CHARACTERS = 2000
"""Of a text."""

MOST_WEIGHTS = 500_000
"""V x C at most."""

PRIOR_VARIANCE = 10.0
"""As in scikit-learn: a prior of this variance on each weight. Its default, 1, is too strong for
rows of length 1 that are spread over thousands of terms."""


def num_right_by_words(train: Sequence[Example], scored: Sequence[Example], labels: int) -> int:
    """Return how many of `scored` a model that is fitted on `train` gives the right label."""
    texts_with = Counter(term for example in train for term in set(_terms(example)))
    # The vocabulary: the terms that most texts have.
    size = min(10_000, MOST_WEIGHTS // labels)
    # Sorted, so that ties do not depend on the order of the texts.
    chosen = sorted(texts_with, key=lambda term: (-texts_with[term], term))[:size]
    numbers = {term: number for number, term in enumerate(chosen)}
    rarity = [1 + math.log((1 + len(train)) / (1 + texts_with[term])) for term in chosen]
    weight_VC, bias_C = torch.zeros(max(1, len(chosen)), labels), torch.zeros(labels)
    rows, label_N = _tf_idf_rows(train, numbers, rarity), _labels(train)
    columns = rows.transposed(len(weight_VC))

    decay = 1 / (PRIOR_VARIANCE * len(train))

    def penalised() -> Tensor:
        """Torch's own backward pass through `embedding_bag` takes ten times as long."""
        logits_NC = rows.times(weight_VC) + bias_C
        gradient_NC = (logits_NC.softmax(1) - F.one_hot(label_N, labels)) / len(train)
        weight_VC.grad = columns.times(gradient_NC).add_(weight_VC, alpha=decay)
        bias_C.grad = gradient_NC.sum(0)
        return F.cross_entropy(logits_NC, label_N) + decay / 2 * weight_VC.square().sum()

    # Its answers are counted, which are the same long before the minimum.
    TorchLBFGS(
        [weight_VC, bias_C], lr=1.0, line_search_fn="strong_wolfe", history_size=5,
        max_iter=100, max_eval=100, tolerance_grad=3e-4,
    ).step(penalised)  # fmt: skip
    others = _tf_idf_rows(scored, numbers, rarity)
    predicted_N = (others.times(weight_VC) + bias_C).argmax(1)
    return int((predicted_N == _labels(scored)).sum())


def _labels(examples: Sequence[Example]) -> Tensor:
    return torch.tensor([example.label for example in examples])


def _terms(example: Example) -> Iterator[str]:
    """Yield words and pairs of words; those of a second text are others than those of the first."""
    for mark, text in (("", example.text), ("2 ", example.pair or "")):
        words = re.findall(r"\w+", text[:MOST_CHARACTERS].lower())
        yield from (mark + word for word in words)
        yield from (f"{mark}{first} {second}" for first, second in itertools.pairwise(words))


@dataclass(frozen=True)
class _Sparse:
    """A sparse matrix by rows: column and value of each entry, and where each row begins."""

    columns: Tensor
    values: Tensor
    starts: Tensor

    def times(self, dense: Tensor) -> Tensor:
        return F.embedding_bag(
            self.columns, dense, self.starts, mode="sum", per_sample_weights=self.values
        )

    def transposed(self, columns: int) -> "_Sparse":
        """Return the transpose of a matrix with so many columns."""
        ends = torch.cat([self.starts[1:], torch.tensor([len(self.columns)])])
        rows_R = torch.repeat_interleave(ends - self.starts)
        order_R = self.columns.argsort(stable=True)
        counts = torch.bincount(self.columns, minlength=columns)
        return _Sparse(rows_R[order_R], self.values[order_R], counts.cumsum(0) - counts)


def _tf_idf_rows(
    examples: Sequence[Example], numbers: dict[str, int], rarity: Sequence[float]
) -> _Sparse:
    """Return texts as rows of tf-idf, each of length 1."""
    columns, values, starts = list[int](), list[float](), list[int]()
    for example in examples:
        counts = Counter(numbers[term] for term in _terms(example) if term in numbers)
        raw = [rarity[number] * (1 + math.log(count)) for number, count in counts.items()]
        length = math.hypot(*raw)
        starts.append(len(columns))
        columns += counts
        values += [value / length for value in raw]
    return _Sparse(
        torch.tensor(columns, dtype=torch.int64),
        torch.tensor(values, dtype=torch.float32),
        torch.tensor(starts),
    )
