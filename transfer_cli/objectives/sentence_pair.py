"""Whether two texts belong together, learnt beside a masked language model.

Devlin et al. 2019 (next-sentence prediction), Lan et al. 2020 (sentence-order prediction).

Legend: B batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.seeds import ExampleNoise


class SentencePair(SequenceObjective):
    """Cross-entropy of `pair` (see `data.sentence_pairs`), from the classification token.

    Its state passes through a pooler and a linear layer, as in published models, where 0 means "the
    second text follows", too. The texts are those that the main loss reads, hidden tokens included.

    Args:
        dropout: Before the linear layer.
    """

    direction = "bidirectional"
    keeps_tokens = False
    reads_main_view = True
    problem_type: ClassVar[str | None] = None

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__("cls_first", dropout, pooler=True)

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run.

        Raises:
            ConfigError: It is the main loss, or its data are no pairs of running text.
        """
        super().setup(info)
        if info.main is None:
            raise ConfigError(
                "objective: whether texts belong together is a further loss; take objective=mlm "
                "+objective@losses.pair=sentence_pair"
            )
        if info.pairs is None:
            raise ConfigError(
                f"losses.{info.name}: it needs pairs of running text, and its data are none; give "
                "data.pairs=nsp or data.pairs=sop"
            )

    @property
    def head(self) -> str:
        """The name of its head, by which that of a published model is found, too."""
        return "pair"

    @property
    def num_outputs(self) -> int:
        """Both answers."""
        return 2

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with the tokens that the main loss reads."""
        if self.info.main is None:
            return batch
        return {**batch, "tokens": self.info.main.prepare(batch, noise)["tokens"]}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the cross-entropy, summed over pairs."""
        logits_B2 = self.outputs(model, batch, encoded)
        return {"loss": F.cross_entropy(logits_B2, batch["pair"], reduction="sum")}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the summed cross-entropy, and the number of right answers."""
        right_B = self.outputs(model, batch, encoded).argmax(1) == batch["pair"]
        return {**self.loss_sums(model, batch, encoded), "right": right_B.sum()}

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the share of right answers, and the loss."""
        return {
            "accuracy": float(totals["right"]) / counts["loss"],
            "loss": float(totals["loss"]) / counts["loss"],
        }

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the accuracy, then the loss."""
        accuracy = Metric("accuracy", higher_is_better=True, unit="fraction", headline=True)
        return accuracy, replace(LOSS, per_example=False)
