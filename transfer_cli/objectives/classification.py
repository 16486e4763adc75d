"""Classification of whole texts.

Legend: B batch, T positions, D width, C classes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, Counts, Sums, batch_size
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import LOSS, Metric, Unit
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives import confidence
from transfer_cli.objectives.answering import occurrences
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.class_weights import ClassWeight
from transfer_cli.objectives.sequence import SequenceObjective

MAX_CONFUSION_LABELS = 256
"""Most labels for which confusions are counted; nobody reads a larger table."""

METRICS = (
    Metric("error_rate", higher_is_better=False, unit="percent", headline=True, per_example=True),
    Metric("macro_f1", higher_is_better=True, unit="fraction"),
    Metric("accuracy", higher_is_better=True, unit="fraction", per_example=True),
    LOSS,
)


Annealing = Literal["log", "linear", "exp"]


def annealing_threshold(annealing: Annealing, progress: float, classes: int) -> float:
    """Return the probability of its label up to which a text is learnt from.

    It rises from a guess, 1/C, to 1: early, evenly or late (Xie et al. 2019, section 2.2).

    Args:
        annealing: Its form. exp is for few labels, which are soon known by heart.
        progress: How much of the run is over, in [0, 1].
    """
    share = {
        "log": 1 - math.exp(-5 * progress),
        "linear": progress,
        "exp": math.exp(5 * (progress - 1)),
    }[annealing]
    return share * (1 - 1 / classes) + 1 / classes


@dataclass(eq=False, repr=False)
class Classification(SequenceObjective):
    """Cross-entropy of the label, from one vector for each text; see `SequenceObjective`.

    Args:
        annealing: Training-signal annealing, see `annealing_threshold`: texts whose label is more
            probable already count as 0. The paper's code divides by the number of the others,
            which is known only after the pass; here the mean is over all. None: all are learnt
            from.
        label_smoothing: The share of a target that all labels have alike (Szegedy et al. 2016,
            section 7), in [0, 1). Measures are those of the labels.
        class_weight: How much the texts of each label count in training, see `ClassWeight`; a
            smoothed target weighs each label's part, as in torch. Measures weigh nothing.
        calibrate, abstain: See `UnitObjective`.

    The other arguments are those of `SequenceObjective`.
    """

    task = "classification"
    problem_type: ClassVar[str | None] = "single_label_classification"

    counted: ClassVar[tuple[str, ...]] = ("confusion", "labels")

    annealing: Annealing | None = field(default=None, kw_only=True)
    label_smoothing: float = field(default=0.0, kw_only=True)
    class_weight: ClassWeight = field(default=None, kw_only=True)
    calibrate: confidence.Calibrate = field(default=False, kw_only=True)
    abstain: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        self._progress = 0.0

    @property
    def weights(self) -> Mapping[str, float]:
        """The loss; with annealing also the share of texts learnt from, to be seen alone."""
        return {"loss": 1.0} if self.annealing is None else {"loss": 1.0, "share_kept": 0.0}

    @property
    def is_steady(self) -> bool:
        return type(self) is Classification and self.annealing is None

    def on_step(self, progress: float) -> None:
        self._progress = progress

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(self.weights, batch_size(batch))

    @property
    def num_outputs(self) -> int:
        return len(self.info.labels)

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the labels that are learnt from."""
        logits_BC, label_B = self.outputs(model, batch, encoded), batch["label"]
        weight_C, smoothing = self.class_weights_on(logits_BC.device), self.label_smoothing
        cross_entropy = partial(F.cross_entropy, weight=weight_C, label_smoothing=smoothing)
        if self.annealing is None:
            return {"loss": cross_entropy(logits_BC, label_B, reduction="sum")}
        loss_B = cross_entropy(logits_BC, label_B, reduction="none")
        highest = annealing_threshold(self.annealing, self._progress, logits_BC.shape[1])
        known_B = -F.cross_entropy(logits_BC.detach(), label_B, reduction="none")
        kept_B = known_B <= math.log(highest)
        return {"loss": torch.where(kept_B, loss_B, 0).sum(), "share_kept": kept_B.sum()}

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch["label"], reduction="none")

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss and the counts `[C, C]`: rows are labels, columns predictions.

        Of very many labels `[3, C]`: how often each was predicted rightly, given, and predicted.
        """
        classes, predicted_B, label_B = outputs.shape[1], outputs.argmax(1), batch["label"]
        loss = F.cross_entropy(outputs, label_B, reduction="sum")
        if classes <= MAX_CONFUSION_LABELS:
            cells = occurrences(label_B * classes + predicted_B, classes**2)
            return {"loss": loss, "confusion": cells.view(classes, classes)}
        right_B = torch.where(predicted_B == label_B, label_B, classes)
        numbers = (right_B, label_B, predicted_B)
        counts = [occurrences(number_B, classes + 1) for number_B in numbers]
        return {"loss": loss, "labels": torch.stack(counts)[:, :classes]}

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probability of each label, `probabilities` `[B, C]`."""
        return {"probabilities": self.calibrated(outputs).softmax(1)}

    def results(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        share_BC = self.calibrated(outputs).softmax(1)
        return {"label": outputs.argmax(1), "probability": share_BC.amax(1)}

    def display_pairs(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        names = self.info.labels
        both = zip(batch["label"].tolist(), outputs.argmax(1).tolist(), strict=True)
        return [(names[expected], names[predicted]) for expected, predicted in both]

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        """Return loss, accuracy, error rate in percent, macro-F1 and each class's accuracy."""
        if "labels" in totals:
            right, support, predicted = totals["labels"].double()
        else:
            confusion = totals["confusion"].double()
            right, support, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        all_right, total = float(right.sum()), float(support.sum())
        # As in sklearn's macro average, a class that is neither given nor predicted has no F1.
        occurs = support + predicted > 0
        f1 = 2 * right[occurs] / (support + predicted)[occurs]
        measures = {
            "loss": float(totals["loss"]) / counts["loss"],
            "accuracy": all_right / total,
            # Rounded once: 14, not 14.000000000000002.
            "error_rate": 100 * (total - all_right) / total,
            "macro_f1": float(f1.mean()),
        }
        judged_by = self._judged_by()
        if judged_by == "matthews":
            measures["matthews"] = matthews(right, support, predicted)
        elif judged_by == "f1":
            below = float(support[1] + predicted[1])
            measures["f1"] = 2 * float(right[1]) / below if below else 0.0
        for name, hit, all_of in zip(self.info.labels, right, support, strict=True):
            if all_of:
                measures[f"accuracy/{name}"] = float(hit / all_of)
        return measures | confidence.measures(totals)

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return what runs are judged by first: the error rate, if the task names no other."""
        name = self._judged_by()
        if name == "error_rate":
            return METRICS
        error, *others = METRICS
        unit: Unit = "fraction" if name == "f1" else "none"
        judge = Metric(name, higher_is_better=True, unit=unit, headline=True)
        return (judge, replace(error, headline=False), *others)

    def _judged_by(self) -> str:
        info = getattr(self, "info", None)  # metrics are asked for before there is one
        return getattr(info and info.task, "judged_by", "error_rate")


def matthews(right_C: Tensor, support_C: Tensor, predicted_C: Tensor) -> float:
    """Return the correlation of labels and answers (Matthews 1975; Gorodkin 2004).

    It is 0 where all labels, or all answers, are the same.

    Args:
        right_C: How often each label was answered rightly.
        support_C: How often it was given.
        predicted_C: How often it was the answer.
    """
    whole = support_C.sum()
    both = right_C.sum() * whole - support_C @ predicted_C
    below = (whole**2 - support_C @ support_C) * (whole**2 - predicted_C @ predicted_C)
    return float(both / below.sqrt()) if below > 0 else 0.0
