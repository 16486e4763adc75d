"""The loss of any number of labels for each text.

Legend: B batch, C labels, K labels of a text at most.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.split import TextStats
from transfer_cli.errors import one_of
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.multilabel.task import HALF, SEPARATOR

MOST_WEIGHT = 100.0
"""The largest weight of a label's examples: of rarer labels a single text would decide all."""

_NEVER = 1e-6
"""The probability of what a teacher is sure of not to be so."""


@dataclass(eq=False, repr=False)
class Multilabel(SequenceObjective):
    """Binary cross-entropy of each label, from one vector for each text; see `SequenceObjective`.

    It is the mean over texts and labels.

    Args:
        pos_weight: balanced: the examples of a label count as much as those without it, at most
            `MOST_WEIGHT` each; None: each counts once.
        thresholds: fit: a label is said where its probability is above the threshold with the
            highest F1 on validation, which the end of a run finds; None: above 0.5.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("pos_weight", self.pos_weight or "balanced", ("balanced",), ValueError)
        one_of("thresholds", self.thresholds or "fit", ("fit",), ValueError)
        self.fits_answers = self.thresholds == "fit"

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        share_C = torch.tensor(getattr(info.task, "shares", ()))
        self._weight_C = ((1 - share_C) / share_C).clamp(1 / MOST_WEIGHT, MOST_WEIGHT)

    @property
    def num_outputs(self) -> int:
        return len(self.info.labels)

    def scores_of(self, answers_BN: Tensor) -> Tensor:
        return answers_BN.logit(eps=_NEVER)

    def sureness(self, scores_BN: Tensor) -> Tensor:
        """Return the probability of the answer that is least sure, `[B]`."""
        return scores_BN.abs().sigmoid().amin(1)

    def divergence(self, target_BN: Tensor, scores_BN: Tensor) -> Tensor:
        """Return the divergences of all labels, summed, `[B]`."""
        said_BN = target_BN.sigmoid() * (F.logsigmoid(target_BN) - F.logsigmoid(scores_BN))
        unsaid_BN = (-target_BN).sigmoid() * (F.logsigmoid(-target_BN) - F.logsigmoid(-scores_BN))
        return (said_BN + unsaid_BN).sum(1)

    def given(self, batch: Batch) -> Tensor:
        """Return whether each text has each label, `[B, C]`."""
        labels_BK, classes = batch["labels"], self.num_outputs
        # What pads a list of labels goes into a column of its own.
        column_BK = torch.where(labels_BK < 0, classes, labels_BK)
        nothing = labels_BK.new_zeros((len(labels_BK), classes + 1), dtype=torch.bool)
        return nothing.scatter(1, column_BK, value=True)[:, :classes]

    def said(self, logits_BC: Tensor) -> Tensor:
        """Return whether each label is said of each text, `[B, C]`."""
        shares_BC, task = logits_BC.sigmoid(), self.info.task
        if not (task and task.fitted):
            return shares_BC > HALF
        # Doubles, as in the task's own decision.
        return shares_BC.double() > shares_BC.new_tensor(task.thresholds, dtype=torch.float64)

    def decision_losses(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each decision, `[B, C]`."""
        given_BC = self.given(batch).to(logits_BC.dtype)
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
        given_BC, said_BC = self.given(batch), self.said(outputs)
        cells = (given_BC & said_BC, ~given_BC & said_BC, given_BC & ~said_BC, ~given_BC & ~said_BC)
        return {
            "loss": self.decision_losses(outputs, batch).sum(),
            "exact": (given_BC == said_BC).all(1).sum(),
            "decisions": torch.stack([cell_BC.sum(0) for cell_BC in cells]),
        }

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probability of each label, `probabilities` `[B, C]`."""
        return {"probabilities": outputs.sigmoid()}

    def results(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return what is said of each text.

        That is the numbers of labels, `said` `[B, K]`, then -1, and the probability of all these
        decisions. The probabilities of all labels are there for `Task.fit` alone: of thousands of
        labels, those of a whole split would fill the memory.
        """
        said_BC, shares_BC = self.said(outputs), outputs.sigmoid()
        numbers_C = torch.arange(self.num_outputs, device=outputs.device)
        most = int(said_BC.sum(1).max())
        predicted = {
            "said": torch.where(said_BC, numbers_C, -1).topk(most, dim=1).values,
            "probability": torch.where(said_BC, shares_BC, 1 - shares_BC).prod(1),
        }
        if self.fits_answers and not self.info.task.fitted:
            predicted["probabilities"] = shares_BC
        return predicted

    def shown(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        both = zip(self.given(batch).tolist(), self.said(outputs).tolist(), strict=True)
        return [(self._names(wanted_C), self._names(said_C)) for wanted_C, said_C in both]

    def _names(self, chosen_C: list[bool]) -> str:
        names = zip(self.info.labels, chosen_C, strict=True)
        return SEPARATOR.join(name for name, is_chosen in names if is_chosen)

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return loss, F1 of all decisions, of each label and on average, exact match."""
        right_C, surplus_C, missing_C, _ = totals["decisions"].double()
        wrong_C = surplus_C + missing_C
        # As in sklearn's macro average, a label that is neither given nor said has no F1.
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
        }

    def left_out_of_exports(self, task: Any) -> tuple[str, ...]:
        return ("the fitted thresholds, so that 0.5 decides",) if task.fitted else ()
