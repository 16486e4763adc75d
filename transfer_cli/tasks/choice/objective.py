"""The loss of the right one of several choices.

Legend: B batch, C choices, S sequences that are there.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, real_sequences
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Sample
from transfer_cli.objectives.sequence import SequenceObjective


class MultipleChoice(SequenceObjective):
    """Cross-entropy of the right choice among those of its example; see `SequenceObjective`.

    The head gives each choice, read after its context, one number; a softmax over an example's
    choices makes probabilities of them (Radford et al. 2018, section 3.3; Zellers et al. 2018).
    """

    task = "choice"
    problem_type: ClassVar[str | None] = None
    num_outputs = 1

    def logits(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the number of each choice, `[B, C]` in float32; -inf where there is none."""
        # What stands in for a missing choice must not even reach the statistics of a batch norm.
        real_S = real_sequences(batch)
        vectors = encoded.pooled(self.head_pooling(model))
        said_S = self.read(model, vectors.index_select(0, real_S)).squeeze(1)
        shape = batch["mask"].shape[:-1]
        return (
            said_S.new_full((shape.numel(),), -torch.inf).index_copy(0, real_S, said_S).view(shape)
        )

    def scores(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """See `SequenceObjective`."""
        return self.logits(model, batch, encoded)

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the right choices."""
        logits_BC = self.logits(model, batch, encoded)
        return {"loss": F.cross_entropy(logits_BC, batch["label"], reduction="sum")}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the summed loss, hits, ranks of the right choices, and hits of a guess."""
        return tallies(self.logits(model, batch, encoded), batch["label"])

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return each choice's probability, `probabilities` `[B, C]`; 0 where there is none."""
        return {"probabilities": self.logits(model, batch, encoded).softmax(1)}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each example's cross-entropy, its likeliest choice, and how right that is."""
        logits_BC, label_B = self.logits(model, batch, encoded), batch["label"]
        hit_B, _ = hits_and_ranks(logits_BC, label_B)
        return ExampleResults(
            loss=F.cross_entropy(logits_BC, label_B, reduction="none"),
            targets=torch.ones_like(label_B),
            predicted={
                "label": logits_BC.argmax(1),
                "probability": logits_BC.softmax(1).amax(1),
                "right": hit_B,
            },
        )

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return the tokens of all choices, the number of the right one and of the likeliest."""
        said_B = self.logits(model, batch, encoded).argmax(1).tolist()
        return [
            Sample(tokens[mask].tolist(), str(wanted), str(said))
            for tokens, mask, wanted, said in zip(
                batch["tokens"], batch["mask"], batch["label"].tolist(), said_B, strict=True
            )
        ]

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return accuracy, that of a guess, the mean rank from 1, and the loss."""
        names = {"accuracy": "hits", "chance": "guessed", "mean_rank": "ranks", "loss": "loss"}
        return {said: float(totals[name]) / counts["loss"] for said, name in names.items()}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics; the accuracy of a guess stands beside the run's."""
        return (
            Metric(
                "accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True
            ),
            Metric("chance", higher_is_better=True, unit="fraction"),
            Metric("mean_rank", higher_is_better=False),
            LOSS,
        )


def tallies(logits_BC: Tensor, label_B: Tensor) -> dict[str, Tensor]:
    """Return the summed loss, hits, ranks of the right choices, and hits of a guess."""
    hit_B, rank_B = hits_and_ranks(logits_BC, label_B)
    return {
        "loss": F.cross_entropy(logits_BC, label_B, reduction="sum"),
        "hits": hit_B.sum(),
        "ranks": rank_B.sum(),
        "guessed": (1 / logits_BC.isfinite().sum(1).clamp(min=1)).sum(),
    }


def hits_and_ranks(logits_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each right choice is the first, and its rank from 1, `[B]` each.

    Equal choices are counted as if their order were drawn: of m that are the first, each is so with
    probability 1/m, and they share the mean of their ranks.
    """
    own_B1 = logits_BC.gather(1, label_B[:, None])
    better_B = (logits_BC > own_B1).sum(1)
    equal_B = (logits_BC == own_B1).sum(1).clamp(min=1)  # none where it is not a number
    return (better_B == 0) / equal_B, 1 + better_B + (equal_B - 1) / 2
