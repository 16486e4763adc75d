"""What further losses share that are about what the main head says: they bring no head."""

from typing import Any

from torch import nn

from transfer_cli.batch import Batch
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective, TaskInfo
from transfer_cli.objectives.units import UnitObjective


def main_of(info: TaskInfo) -> UnitObjective:
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


class OfMainHead(Objective):
    """A further loss of what the main head says of each unit, such as a text or a word."""

    main: UnitObjective

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run."""
        super().setup(info)
        self.main = main_of(info)
        any_text = self.main.units_are_examples
        if not any_text and _name_of(info.task) != _name_of(self.main.info.task):
            raise ConfigError(
                f"losses.{info.name}.stream: {type(self.main).__name__} answers parts of an "
                "example, and these examples do not say which; take main, or a stream of rest or "
                f"of other data of the task {self.main.task}"
            )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return none: the head is that of the main loss."""
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return that of the main head."""
        return self.main.pooling_of(model)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of units."""
        return {"loss": self.main.num_units(batch)}


def _name_of(task: Any) -> str | None:
    return None if task is None else task.name
