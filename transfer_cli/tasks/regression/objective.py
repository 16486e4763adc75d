"""The loss of a number for each text.

Legend: B batch.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.split import TextStats
from transfer_cli.errors import one_of
from transfer_cli.metrics import Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Sample
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.regression.task import RegressionTask, shown


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
    num_outputs = 1

    def __init__(
        self,
        *,
        loss: Literal["mse", "huber"] = "mse",
        standardise: bool = True,
        clip: tuple[float, float] | None = None,
        pooling: Literal["auto", "cls_first", "cls_last", "mean", "max", "concat"] = "auto",
        dropout: float = 0.1,
        hidden: tuple[int, ...] = (),
        batch_norm: bool = False,
        pooler: bool | None = None,
    ) -> None:
        super().__init__(pooling, dropout, hidden, batch_norm=batch_norm, pooler=pooler)
        one_of("loss", loss, ("mse", "huber"), ValueError)
        if clip is not None and not (len(clip) == 2 and clip[0] < clip[1]):
            raise ValueError(f"clip is {list(clip)}, expected [LOWEST, HIGHEST]")
        self.loss = loss
        self.standardise = standardise
        self.clip = clip

    def unit_of(self, task: Task | None) -> tuple[float, float]:
        """See `SequenceObjective`."""
        if not self.standardise or not isinstance(task, RegressionTask):
            return 0.0, 1.0
        return task.mean, task.scale

    def left_out_of_exports(self, task: Task | None) -> tuple[str, ...]:
        """See `SequenceObjective`."""
        bounded = self.clip is not None
        return ("objective.clip, so that answers are not bounded",) if bounded else ()

    def values(self, outputs_B1: Tensor) -> Tensor:
        """Return the head's output in the unit of the numbers, `[B]`."""
        mean, scale = self.unit_of(self.info.task)
        values_B = outputs_B1.squeeze(1).double() * scale + mean
        return values_B if self.clip is None else values_B.clamp(*self.clip)

    def scores_of(self, answers_BN: Tensor) -> Tensor:
        """Return the numbers as the head learns them."""
        mean, scale = self.unit_of(self.info.task)
        return (answers_BN - mean) / scale

    def softened(self, scores_BN: Tensor, temperature: float) -> Tensor:
        """Return the scores: a number has no temperature."""
        return scores_BN

    def sureness(self, scores_BN: Tensor) -> Tensor:
        """Return 1: a number does not say how sure it is."""
        return torch.ones_like(scores_BN[:, 0])

    def divergence(self, target_BN: Tensor, scores_BN: Tensor) -> Tensor:
        """Return the squared difference, `[B]`."""
        return (target_BN - scores_BN).square().sum(1)

    def losses(self, outputs_B1: Tensor, batch: Batch) -> Tensor:
        """Return each text's loss, `[B]`."""
        mean, scale = self.unit_of(self.info.task)
        target_B = ((batch["value"] - mean) / scale).float()
        measure = F.mse_loss if self.loss == "mse" else F.huber_loss
        return measure(outputs_B1.squeeze(1), target_B, reduction="none")

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed loss."""
        return {"loss": self.losses(self.outputs(model, batch, encoded), batch).sum()}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the summed loss, squared and absolute error."""
        outputs_B1 = self.outputs(model, batch, encoded)
        error_B = self.values(outputs_B1) - batch["value"]
        return {
            "loss": self.losses(outputs_B1, batch).sum(),
            "squared": error_B.square().sum(),
            "absolute": error_B.abs().sum(),
        }

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the numbers, `value` `[B]`."""
        return {"value": self.values(self.outputs(model, batch, encoded))}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each text's loss and number."""
        outputs_B1 = self.outputs(model, batch, encoded)
        loss_B = self.losses(outputs_B1, batch)
        predicted = {"value": self.values(outputs_B1)}
        return ExampleResults(loss_B, torch.ones_like(batch["index"]), predicted)

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return each text with its number and the predicted one."""
        said_B = self.values(self.outputs(model, batch, encoded)).tolist()
        return [
            Sample(tokens[mask].tolist(), shown(wanted), shown(said))
            for tokens, mask, wanted, said in zip(
                batch["tokens"], batch["mask"], batch["value"].tolist(), said_B, strict=True
            )
        ]

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the loss, and the mean squared and absolute errors."""
        names = {"loss": "loss", "squared": "mse", "absolute": "mae"}
        return {said: float(totals[name]) / counts["loss"] for name, said in names.items()}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the errors; the correlations are `answer_metrics`."""
        return (
            Metric("mse", higher_is_better=False),
            Metric("mae", higher_is_better=False),
            Metric("loss", higher_is_better=False, per_example=True),
        )

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return the correlations of `RegressionTask.scores`."""
        return (
            Metric("pearson", higher_is_better=True, headline=True),
            Metric("spearman", higher_is_better=True),
        )
