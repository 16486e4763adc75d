"""Weights of classes, by which rare ones count more in a loss.

As in torch, a sum of weighted losses is divided by the sum of the weights.

Legend: N targets, C classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from transfer_cli.errors import ConfigError, did_you_mean, list_names
from transfer_cli.objectives.base import TaskInfo

ClassWeight = Literal["balanced"] | Mapping[str, float] | None
"""balanced: N / (C n) for a label that n of the N training targets have, as in scikit-learn. Else
the weight of each label, 1 where it is not named. None: all count alike."""

MAX_WEIGHT = 1e6


class ClassWeights:
    """The weights of classes, or of examples, on the host and where a step computes.

    Args:
        weights: In the order of the numbers of classes, or examples.
    """

    def __init__(self, by_label: Mapping[str, float], weights: Sequence[float]) -> None:
        self.by_label = dict(by_label)
        self._weight_C = self._here_C = torch.tensor(weights, dtype=torch.float32)

    @classmethod
    def from_option(cls, option: ClassWeight, info: TaskInfo) -> "ClassWeights | None":
        """Return those of a run's labels; None where none are asked for.

        Of a task without labels they are those of its training examples, by their right answers.
        """
        if option is None:
            return None
        by_label = weights_by_label(option, info)
        labels = info.labels or _train_labels(info)
        return cls(by_label, [by_label.get(label, 1.0) for label in labels])

    def to(self, device: torch.device) -> Tensor:
        """Return them on a device, where they stay: a step does not wait for copies."""
        if self._here_C.device != device:
            self._here_C = self._weight_C.to(device, non_blocking=True)
        return self._here_C

    def total(self, number_N: Tensor) -> float:
        """Return the sum of the weights of targets, which are on the host.

        Weights of float32 add up in float64 without rounding, so in any order.
        """
        return float(self._weight_C[number_N].double().sum())

    def reweight(
        self, measures: Mapping[str, float], tables: Mapping[str, Any]
    ) -> tuple[Mapping[str, float], Mapping[str, Any]]:
        """Return the accuracy, and the counts of each class, as the loss weighs them.

        By these a run is judged to have learnt something: with rare classes found it may be right
        less often than the commonest one as every answer.
        """
        counts: Any = tables.get("confusion")
        if counts is None:
            return measures, tables
        weighted = zip(self._weight_C.tolist(), counts, strict=True)
        rows = [[weight * count for count in row] for weight, row in weighted]
        right, whole = sum(row[i] for i, row in enumerate(rows)), sum(map(sum, rows))
        return {**measures, "accuracy": right / whole if whole else 1.0}, {"confusion": rows}


def weights_by_label(option: ClassWeight, info: TaskInfo) -> dict[str, float]:
    """Return the weight of each label; a label that no training target has counts 1.

    The labels of a task that has none are the right answers of its training examples.

    Raises:
        ConfigError: There is no such label, a weight is none, all are 0, or answers do not repeat.
    """
    key = f"{info.key}.class_weight"
    count = Counter(_train_labels(info))
    labels = info.labels or tuple(count)
    if not isinstance(option, Mapping):
        if not info.labels and 2 * len(count) > count.total():
            raise ConfigError(
                f"{key}: {count.total():,} examples have {len(count):,} different right answers, "
                "so that none is rarer than others; leave it out"
            )
        return {
            label: count.total() / (len(count) * count[label]) for label in labels if count[label]
        }
    named = spelt_as_labels(option, labels)
    for label, weight in named.items():
        if not 0 <= weight <= MAX_WEIGHT:
            raise ConfigError(f"{key}.{label}: expected 0 to {MAX_WEIGHT:,.0f}, got {weight}")
    unknown = [label for label in named if label not in labels]
    if unknown and labels:
        raise ConfigError(
            f"{key}: there is no label {unknown[0]!r:.80}.{did_you_mean(unknown[0], labels)} "
            f"There are {list_names(labels, 10)}"
        )
    weights = {label: named.get(label, 1.0) for label in labels or named}
    if not any(weights.values()):
        raise ConfigError(f"{key}: all weights are 0, so that nothing is learnt; give one above 0")
    return weights


def _train_labels(info: TaskInfo) -> list[str]:
    return [label for example in info.train for label in info.task.labels_of(example)]


def spelt_as_labels(typed: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return what is typed by label; the config has `true` where tables often have True."""
    spelt = {label.lower(): label for label in labels if label.lower() in ("true", "false")}
    return {n if n in labels else spelt.get(n, n): value for n, value in typed.items()}
