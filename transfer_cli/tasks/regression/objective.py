"""The loss of a number for each text.

Legend: B batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.errors import one_of
from transfer_cli.metrics import Metric
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.regression.task import RegressionTask, shown


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
        one_of("loss", self.loss, ("mse", "huber"), ValueError)
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] < self.clip[1]):
            raise ValueError(f"clip is {list(self.clip)}, expected [LOWEST, HIGHEST]")

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

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """See `Objective`."""
        mean, scale = self.unit_of(self.info.task)
        target_B = ((batch["value"] - mean) / scale).float()
        measure = F.mse_loss if self.loss == "mse" else F.huber_loss
        return measure(outputs.squeeze(1), target_B, reduction="none")

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss, squared and absolute error."""
        error_B = self.values(outputs) - batch["value"]
        squared, absolute = error_B.square().sum(), error_B.abs().sum()
        return {**super().tallies(outputs, batch), "mse": squared, "mae": absolute}

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the numbers, `value` `[B]`."""
        return {"value": self.values(outputs)}

    def shown(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        """Return each text's number and the predicted one."""
        both = zip(batch["value"].tolist(), self.values(outputs).tolist(), strict=True)
        return [(shown(wanted), shown(said)) for wanted, said in both]
