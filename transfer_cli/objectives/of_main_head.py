"""What further losses share that are about what the main head says: they bring no head."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from transfer_cli.batch import Batch, size
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective, TaskInfo
from transfer_cli.objectives.sequence import SequenceObjective


def main_of(info: TaskInfo) -> SequenceObjective:
    """Return the main objective, for a further loss.

    Raises:
        ConfigError: It says nothing of whole examples.
    """
    if isinstance(info.main, SequenceObjective):
        return info.main
    name = type(info.main).__name__ if info.main else "there is none"
    raise ConfigError(
        f"losses.{info.name}: it is about what the main objective says of a text, of two "
        f"or of choices ({name} does not); take objective=classification, multilabel, "
        "regression or choice"
    )


class OfMainHead(Objective):
    """A further loss of what the main head says of a text."""

    main: SequenceObjective

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run; for errors see `main_of`."""
        super().setup(info)
        self.main = main_of(info)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return none: the head is that of the main loss."""
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return that of the main head."""
        return self.main.pooling_of(model)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of examples."""
        return {"loss": size(batch)}

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the loss, the mean over examples."""
        return {"loss": float(totals["loss"]) / counts["loss"]}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the loss, without results of single examples."""
        return (replace(LOSS, headline=True, per_example=False),)
