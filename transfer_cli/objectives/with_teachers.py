"""Base class of losses that compare with other models in each step."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from transfer_cli.batch import Batch
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective
from transfer_cli.objectives.language_model import LanguageModel


@dataclass(eq=False, repr=False)
class WithTeachers(Objective):
    """A loss that needs finished models beside the one that trains.

    It opens none: a run introduces their shapes before there is a model, and lends them before the
    first step. They are no part of the run's model, of its checkpoints and of its optimizer.

    Args:
        teachers: Runs, or published models; they have the run's own tokenizer.
    """

    teachers: tuple[str, ...]
    language_model: LanguageModel | None = field(default=None, init=False)
    """Whose head is needed of a teacher; None: its backbone is all."""

    def __post_init__(self) -> None:
        if not self.teachers:
            raise ValueError("teachers is empty; give one run or more: teachers=[RUN]")
        self.shapes: tuple[BackboneShape, ...] = ()
        """Of the teachers; none where the objective is not at work in a run."""
        self.key = "objective"
        """The config key of this loss."""
        self._lent: tuple[TransferModel, ...] = ()

    def introduce(self, shapes: Sequence[BackboneShape], key: str) -> None:
        """Learn what the teachers are like; `key` is the config key of this loss."""
        self.shapes, self.key = tuple(shapes), key
        for name, shape in zip(self.teachers, shapes, strict=True):
            problem = self.misfit(shape)
            if problem:
                raise ConfigError(f"{key}.teachers: {name} {problem}")

    @abstractmethod
    def misfit(self, teacher: BackboneShape) -> str:
        """Return why nothing can be learnt from a teacher of this shape, and a cure; else ""."""

    def lend(self, models: Sequence[TransferModel]) -> None:
        """Take the teachers, in evaluation mode, frozen and on the device."""
        self._lent = tuple(models)

    @property
    def other_models(self) -> Sequence[TransferModel]:
        """The teachers; none where they are not there."""
        return self._lent

    @staticmethod
    def tokens_of(batch: Batch) -> Batch:
        """Return a batch without the states that the student's frozen backbone has at its texts."""
        return {key: value for key, value in batch.items() if key not in ("states", "pooled")}

    @property
    def lent(self) -> tuple[TransferModel, ...]:
        """The teachers."""
        if not self._lent:
            raise RunError(
                f"{self.key}: it compares with teachers, which a finished run does not hold; "
                "adapt the student to a task (transfer finetune), or evaluate another of its losses"
            )
        return self._lent
