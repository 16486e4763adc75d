"""Further losses of what the main head says, which bring no head; and distillation, one of them.

Legend: B batch, T positions, N texts, questions or words; C labels, choices or numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch
from transfer_cli.errors import ConfigError, RunError, above_zero
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import UnitObjective
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo


def main_objective(info: TaskInfo) -> UnitObjective:
    """Return the main objective, for a further loss."""
    if isinstance(info.main, UnitObjective):
        return info.main
    if info.main is None:
        raise ConfigError(
            "objective: it is a further loss, about what the main objective says of a text; take "
            "+objective@losses.NAME= instead"
        )
    raise ConfigError(
        f"losses.{info.name}: it is about what the main objective says of a text, of two, of "
        f"choices or of each word ({type(info.main).__name__} does not); take "
        "objective=classification, multilabel, regression, choice or tagging"
    )


def fixed_scores(main: UnitObjective, model: TransferModel, batch: Batch) -> Tensor:
    """Return `main.scores` of a pass of its own: other losses need the gradients of theirs."""
    with torch.no_grad():
        scores_NC = main.scores(model, batch, Encoding(model, batch))
    torch.clear_autocast_cache()  # torch before 2.11 goes on with casts without gradients
    return scores_NC


class OfMainHead(Objective):
    """A further loss of what the main head says of each unit, such as a text or a word."""

    main: UnitObjective

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.main = main_objective(info)
        tasks = () if self.main.units_are_examples else (info.task, self.main.info.task)
        if len({getattr(task, "name", None) for task in tasks}) > 1:
            raise ConfigError(
                f"losses.{info.name}.stream: {type(self.main).__name__} answers parts of an "
                "example, and these examples do not say which; take main, or a stream of rest or "
                f"of other data of the task {self.main.task}"
            )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return none: the head is that of the main loss."""
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        return self.main.pooling_of(model)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"loss": self.main.num_units(batch)}


@dataclass(eq=False, repr=False)
class Distillation(OfMainHead):
    """tau^2 KL(p || q) between a teacher's answer p and the main head's q, both flattened by tau.

    It needs no label, so it goes with any stream of the task's texts. Of numbers it is the squared
    difference. What the teachers say of each training and validation example is computed before the
    run (`assembly.teacher_answers`) and comes with its batch; several answer together, as in
    `predict`. The paper's loss is the cross-entropy, whose gradient is the same; a divergence of 0
    means "as the teacher".

    Args:
        teachers: Runs, or published models with a head; their tokenizers may be others.
        temperature: tau, above 0.
        hard: Whether p is the teacher's first choice alone (`UnitObjective.first_choice`), as in
            self-training; tau is then 1.
        confidence: What the teacher is not surer of than this is left out, in [0, 1).
    """

    teachers: tuple[str, ...]
    temperature: float = 2.0
    hard: bool = field(default=False, kw_only=True)
    confidence: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        above_zero("temperature", self.temperature)
        if not self.teachers:
            raise ValueError("teachers is empty; give one run or more: teachers=[RUN]")
        if not 0 <= self.confidence < 1:
            raise ValueError(f"confidence must be in [0, 1), got {self.confidence}")
        if self.hard:
            self.temperature = 1.0

    @property
    def teacher_runs(self) -> Sequence[str]:
        return self.teachers

    @property
    def key(self) -> str:
        """The key of the teachers' answers in a batch; see `batch`."""
        return f"teacher_{self.info.name}"

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts, questions or words that are not left out."""
        return {"loss": int(self._is_confident(self._answers(batch)).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the divergence from the teachers, summed, in float32."""
        teacher_NC = answers_NC = self._answers(batch)
        if self.hard:
            answers_NC = self.main.first_choice(teacher_NC)
        scores_NC = self.main.scores(model, batch, encoded)
        answers_NC = answers_NC[:, : scores_NC.shape[1]]  # of choices, a batch may have fewer
        tau = self.temperature if self.main.has_temperature else 1.0
        target_NC = self.main.soften(self.main.answer_scores(answers_NC), tau)
        each_N = self.main.divergence(target_NC, self.main.soften(scores_NC, tau))
        is_confident_N = self._is_confident(teacher_NC)
        return {"loss": tau**2 * torch.where(is_confident_N, each_N, 0).sum()}

    def _answers(self, batch: Batch) -> Tensor:
        if self.key not in batch:
            raise RunError(
                f"losses.{self.info.name}: what the teachers say comes with a run's own data; "
                "evaluate the main loss"
            )
        return self.main.unit_values(batch[self.key], batch)

    def _is_confident(self, answers_NC: Tensor) -> Tensor:
        if not self.confidence:
            return torch.ones_like(answers_NC[:, 0], dtype=torch.bool)
        return self.main.confidence(self.main.answer_scores(answers_NC)) > self.confidence
