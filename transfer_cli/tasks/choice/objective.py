"""The loss of the right one of several choices.

Legend: B batch, C choices, S sequences that are there.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, real_sequences
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.sequence import SequenceObjective

CHANCE = Metric("chance", higher_is_better=True, unit="fraction")
"""The accuracy of a guess, which stands beside the run's."""

MEAN_RANK = Metric("mean_rank", higher_is_better=False)
"""Of the right choices, from 1."""


class MultipleChoice(SequenceObjective):
    """Cross-entropy of the right choice among those of its example; see `SequenceObjective`.

    The head gives each choice, read after its context, one number; a softmax over an example's
    choices makes probabilities of them (Radford et al. 2018, section 3.3; Zellers et al. 2018).
    """

    task = "choice"
    problem_type: ClassVar[str | None] = None
    num_outputs = 1

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True),
        CHANCE,
        MEAN_RANK,
        LOSS,
    )

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the number of each choice, `[B, C]` in float32; -inf where there is none."""
        # What stands in for a missing choice must not even reach the statistics of a batch norm.
        real_S = real_sequences(batch)
        vectors = encoded.pooled(self.head_pooling(model))
        said_S = self.read(model, vectors.index_select(0, real_S)).squeeze(1)
        shape = batch["mask"].shape[:-1]
        return (
            said_S.new_full((shape.numel(),), -torch.inf).index_copy(0, real_S, said_S).view(shape)
        )

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each right choice."""
        return F.cross_entropy(outputs, batch["label"], reduction="none")

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return hits, those of a guess, the ranks of the right choices, and the summed loss."""
        hit_B, rank_B = hits_and_ranks(outputs, batch["label"])
        return {
            "accuracy": hit_B.sum(),
            "chance": (1 / outputs.isfinite().sum(1).clamp(min=1)).sum(),
            "mean_rank": rank_B.sum(),
            "loss": F.cross_entropy(outputs, batch["label"], reduction="sum"),
        }

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return each choice's probability, `probabilities` `[B, C]`; 0 where there is none."""
        return {"probabilities": outputs.softmax(1)}

    def results(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return each example's likeliest choice, and how right that is."""
        hit_B, _ = hits_and_ranks(outputs, batch["label"])
        share_B = outputs.softmax(1).amax(1)
        return {"label": outputs.argmax(1), "probability": share_B, "right": hit_B}

    def shown(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        """Return the number of the right choice and of the likeliest."""
        both = zip(batch["label"].tolist(), outputs.argmax(1).tolist(), strict=True)
        return [(str(wanted), str(said)) for wanted, said in both]


def hits_and_ranks(logits_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each right choice is the first, and its rank from 1, `[B]` each.

    Equal choices are counted as if their order were drawn: of m that are the first, each is so with
    probability 1/m, and they share the mean of their ranks.
    """
    own_B1 = logits_BC.gather(1, label_B[:, None])
    better_B = (logits_BC > own_B1).sum(1)
    equal_B = (logits_BC == own_B1).sum(1).clamp(min=1)  # none where it is not a number
    return (better_B == 0) / equal_B, 1 + better_B + (equal_B - 1) / 2
