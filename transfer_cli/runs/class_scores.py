"""Precision, recall and F1 of each label, and what was taken for what, from the results of runs.

All follows from the tables and measures that a run stores. They may be a stranger's: a table of
another shape than its labels have is passed over.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from transfer_cli.metrics import Metric, wilson_interval
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import is_number

MOST_LISTED = 20
"""Labels that a terminal or a card lists; of more, the worst."""

TITLES = ("precision", "recall", "F1", "support")

_MOST_CONFUSED = 5

Counts = list[list[int]]


class ClassScore(NamedTuple):
    """How well a label is found: `support` is how many targets have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: float

    def cells(self) -> list[str]:
        """Return its numbers as they are shown."""
        shown = (f"{value:.3f}" for value in (self.precision, self.recall, self.f1))
        return [*shown, f"{self.support:,.0f}"]


def class_scores(runs: Sequence[Results], split: str) -> list[ClassScore]:
    """Return the scores of each label, or type of entity, that occurs, the worst F1 first.

    Of several runs they are the means.
    """
    by_label = defaultdict[str, list[ClassScore]](list)
    for run in runs:
        for score in _run_scores(run, split):
            by_label[score.label].append(score)
    means = [
        ClassScore(
            label, *(fmean(numbers) for numbers in zip(*(s[1:] for s in scores), strict=True))
        )
        for label, scores in by_label.items()
    ]
    return sorted(means, key=lambda score: (score.f1, -score.support))


def has_one_label_each(metrics: Sequence[Metric]) -> bool:
    """Return whether examples have one label each, so that shares of labels are shares of them."""
    return any(metric.per_example and metric.unit in ("fraction", "percent") for metric in metrics)


def _run_scores(run: Results, split: str) -> Iterator[ClassScore]:
    labels, measures = run.labels, run.measures.get(split, {})
    confusion = count_table(run, split, "confusion", len(labels))
    kinds = {label[2:]: at for at, label in enumerate(labels) if label.startswith("B-")}
    scored = [kind for kind in kinds if f"entity_precision/{kind}" in measures]
    if confusion and scored:
        for kind in scored:
            precision, recall, f1 = (
                measures.get(f"entity_{name}/{kind}", 0.0) for name in ("precision", "recall", "f1")
            )
            yield ClassScore(kind, precision, recall, f1, sum(confusion[kinds[kind]]))
        return
    for label, (right, support, predicted) in zip(labels, _label_counts(run, split), strict=False):
        if support + predicted:
            precision = right / predicted if predicted else 0.0
            recall = right / support if support else 0.0
            yield ClassScore(label, precision, recall, 2 * right / (support + predicted), support)


def _label_counts(run: Results, split: str) -> list[tuple[int, int, int]]:
    """Return of each label how often it was right, the target and predicted, by any such table."""
    size = len(run.labels)
    if confusion := count_table(run, split, "confusion", size):
        predicted_C = [sum(column) for column in zip(*confusion, strict=True)]
        return [(row[at], sum(row), predicted_C[at]) for at, row in enumerate(confusion)]
    if counts := count_table(run, split, "labels", 3):
        return list(zip(*counts, strict=True))
    if counts := count_table(run, split, "decisions", 4):
        several = zip(*counts, strict=True)
        return [(right, right + missed, right + wrong) for right, wrong, missed, _ in several]
    return []


def count_table(
    run: Results, split: str, name: str, height: int, width: int | None = None
) -> Counts | None:
    """Return a table of counts of this size, if it is there; by default a label is a column."""
    width = len(run.labels) if width is None else width
    rows: Any = run.tables.get(split, {}).get(name)
    if not isinstance(rows, list) or len(rows) != height:
        return None
    is_one = all(
        isinstance(row, list) and len(row) == width and all(type(n) is int and n >= 0 for n in row)
        for row in rows
    )
    return rows if is_one else None


def accuracy_interval(confusion: Counts, by_words: object) -> tuple[float, float, int]:
    """Return the 95 % interval of the share that is right, and by how many texts.

    A text that stands there twice says no more than once. How many are different of those that a
    linear model was scored on says `by_words` of a run's results.
    """
    total, right = sum(map(sum, confusion)), sum(row[at] for at, row in enumerate(confusion))
    known, apart = by_words if isinstance(by_words, dict) else {}, 1.0
    different, scored = known.get("different"), known.get("scored")
    if is_number(different) and is_number(scored) and 1 <= different <= scored < math.inf:
        apart = different / scored
    texts = max(1, round(total * apart))
    return *wilson_interval(round(right * apart), texts), texts


def describe_confusions(labels: Sequence[str], confusion: Counts) -> str:
    """Return in words which labels were taken for others most often, and in how many of theirs."""
    wrong = [
        (count, labels[at], labels[predicted], sum(row))
        for at, row in enumerate(confusion)
        for predicted, count in enumerate(row)
        if count and predicted != at
    ]
    wrong.sort(key=lambda mistake: -mistake[0])
    return "; ".join(
        f"{label} taken for {predicted} {count:,} of {whole:,} times ({100 * count / whole:.0f} %)"
        for count, label, predicted, whole in wrong[:_MOST_CONFUSED]
    )
