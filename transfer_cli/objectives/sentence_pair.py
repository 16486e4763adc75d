"""Whether two texts belong together, learnt beside a masked language model.

Devlin et al. 2019 (next-sentence prediction), Lan et al. 2020 (sentence-order prediction).

Legend: B batch.
"""

from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.objectives.base import TaskInfo
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
    num_outputs = 2
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", higher_is_better=True, unit="fraction", headline=True),
        replace(LOSS, per_example=False),
    )

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__("cls_first", dropout, pooler=True)

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        if info.main is None:
            raise ConfigError(
                "objective: whether texts belong together is a further loss; take objective=mlm "
                "+objective@losses.pair=sentence_pair"
            )
        if info.pairs in (None, "translation"):
            raise ConfigError(
                f"losses.{info.name}: it needs pairs of texts to judge; give "
                "data.pairs=nsp or data.pairs=sop"
            )

    @property
    def head(self) -> str:
        """The name of its head, by which that of a published model is found, too."""
        return "pair"

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        if self.info.main is None:
            return batch
        return {**batch, "tokens": self.info.main.prepare(batch, noise)["tokens"]}

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch["pair"], reduction="none")

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        right_B = outputs.argmax(1) == batch["pair"]
        return {"accuracy": right_B.sum(), **super().tallies(outputs, batch)}
