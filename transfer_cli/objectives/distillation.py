"""Distillation: learn what finished runs say of a text (Hinton et al. 2015).

Legend: B batch, N labels, choices or numbers.
"""

import torch
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.errors import RunError, above_zero
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.of_main_head import OfMainHead


class Distillation(OfMainHead):
    """tau^2 KL(p || q) between a teacher's answer p and the main head's q, both flattened by tau.

    It needs no label, so it goes with any stream of the task's texts. Of numbers it is the squared
    difference. What the teachers say of each training and validation example is computed before the
    run (`assembly.teachers`) and comes with its batch; several teachers answer together, as in
    `predict`. The paper's loss is the cross-entropy, whose gradient is the same; a divergence of 0
    means "as the teacher".

    Args:
        teachers: Runs, or published models with a head; their tokenizers may be others.
        temperature: tau, above 0.
        hard: Whether p is the teacher's first choice alone, as in self-training; tau is then 1.
        confidence: Examples of which the teacher is not surer than this are left out, in [0, 1).
    """

    def __init__(
        self,
        teachers: tuple[str, ...],
        temperature: float = 2.0,
        *,
        hard: bool = False,
        confidence: float = 0.0,
    ) -> None:
        above_zero("temperature", temperature)
        if not teachers:
            raise ValueError("teachers is empty; give one run or more: teachers=[RUN]")
        if not 0 <= confidence < 1:
            raise ValueError(f"confidence must be in [0, 1), got {confidence}")
        self.teachers = teachers
        self.temperature = 1.0 if hard else temperature
        self.hard = hard
        self.confidence = confidence

    @property
    def key(self) -> str:
        """The key of the teachers' answers in a batch, `[B, N]` float32."""
        return f"teacher_{self.info.name}"

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of examples that are not left out."""
        return {"loss": int(self._kept(self._answers(batch)).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the divergence from the teachers, summed over the examples, in float32."""
        answers_BN = self._answers(batch)
        if self.hard:
            likeliest_B1 = answers_BN.argmax(1, keepdim=True)
            answers_BN = torch.zeros_like(answers_BN).scatter(1, likeliest_B1, 1.0)
        scores_BN = self.main.scores(model, batch, encoded)
        answers_BN = answers_BN[:, : scores_BN.shape[1]]  # of choices, a batch may have fewer
        each_B = self.main.divergence(
            *(
                self.main.softened(each_BN, self.temperature)
                for each_BN in (self.main.scores_of(answers_BN), scores_BN)
            )
        )
        kept_B = self._kept(self._answers(batch))
        return {"loss": self.temperature**2 * torch.where(kept_B, each_B, 0).sum()}

    def _answers(self, batch: Batch) -> Tensor:
        if self.key not in batch:
            raise RunError(
                f"losses.{self.info.name}: what the teachers say comes with a run's own data; "
                "evaluate the main loss"
            )
        return batch[self.key]

    def _kept(self, answers_BN: Tensor) -> Tensor:
        if not self.confidence:
            return torch.ones_like(answers_BN[:, 0], dtype=torch.bool)
        return self.main.sureness(self.main.scores_of(answers_BN)) > self.confidence
