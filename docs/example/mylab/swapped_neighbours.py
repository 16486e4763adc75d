"""An objective of our own: say of each token whether it has changed places with a neighbour.

Legend: B batch, T positions, D width, N targets.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective
from transfer_cli.seeds import ExampleNoise

HEAD = "swapped"


class SwappedNeighbours(Objective):
    """Swap some neighbouring tokens, and tell from both sides which ones.

    Each pair of neighbours has a random draw of its own. It is swapped where the draw is below
    `rate` and below the draws of the two pairs that it shares a token with, so that no token moves
    twice. Special tokens stay where they are, and pairs of equal tokens count as not swapped.

    Args:
        rate: Share of the pairs that would be swapped if pairs did not get in each other's way.
    """

    direction = "bidirectional"
    keeps_tokens = False

    def __init__(self, rate: float = 0.15) -> None:
        if not 0 < rate < 1:
            raise ValueError(f"rate must be between 0 and 1, got {rate}")
        self.rate = rate

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return a head that gives one logit a token."""
        return {HEAD: nn.Linear(backbone.shape.width, 1)}

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with `tokens` swapped and `target`, 1 for swapped and 0 for others."""
        tokens_BT, length = batch["tokens"], batch["tokens"].shape[1]
        special = torch.tensor(sorted(self.info.vocabulary.special))
        ordinary_BT = batch["mask"] & ~torch.isin(tokens_BT, special)

        # Pair t is made of positions t and t + 1. Draws of pairs that do not count are set aside,
        # so that the length of the padding cannot matter.
        draw_BT = noise.uniform(batch["index"], length, 1).squeeze(-1)
        pair_BT = F.pad(ordinary_BT[:, :-1] & ordinary_BT[:, 1:], (0, 1))
        draw_BT = torch.where(pair_BT, draw_BT, 1.0)
        below_left_BT = draw_BT < F.pad(draw_BT, (1, 0), value=1.0)[:, :-1]
        below_right_BT = draw_BT < F.pad(draw_BT, (0, 1), value=1.0)[:, 1:]
        differ_BT = tokens_BT != tokens_BT.roll(-1, dims=1)
        left_BT = (draw_BT < self.rate) & below_left_BT & below_right_BT & differ_BT

        right_BT = F.pad(left_BT, (1, 0))[:, :-1]
        swapped_BT = torch.where(left_BT, tokens_BT.roll(-1, dims=1), tokens_BT)
        swapped_BT = torch.where(right_BT, tokens_BT.roll(1, dims=1), swapped_BT)
        target_BT = torch.where(ordinary_BT, (left_BT | right_BT).long(), IGNORE)
        return {**batch, "tokens": swapped_BT, "target": target_BT}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of tokens to judge."""
        return {"loss": int((batch["target"] != IGNORE).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed binary cross-entropy."""
        logit_N, target_N = judged_tokens(model, batch, encoded)
        loss = F.binary_cross_entropy_with_logits(logit_N, target_N.float(), reduction="sum")
        return {"loss": loss}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the loss, how many are right, how many were swapped and how many of those found.

        Sums all of them: an evaluation adds them up over batches, whatever their size.
        """
        logit_N, target_N = judged_tokens(model, batch, encoded)
        right_N = (logit_N > 0) == (target_N == 1)
        return {
            **self.loss_sums(model, batch, encoded),
            "right": right_N.sum(),
            "swapped": target_N.sum(),
            "found": (right_N & (target_N == 1)).sum(),
        }

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the loss, the share that is right, and the same among the swapped ones."""
        measures = {
            "loss": float(totals["loss"]) / counts["loss"],
            "accuracy": float(totals["right"]) / counts["loss"],
        }
        if totals["swapped"] > 0:
            measures["accuracy/swapped"] = float(totals["found"] / totals["swapped"])
        return measures

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return what a report shows first, first; `accuracy/swapped` is a part of the accuracy."""
        return (
            Metric("accuracy", higher_is_better=True, unit="fraction", headline=True),
            Metric("loss", higher_is_better=False, unit="nats"),
        )


def judged_tokens(model: TransferModel, batch: Batch, encoded: Encoding) -> tuple[Tensor, Tensor]:
    """Return logits in float32 and targets, each `[N]`, of the tokens that have a target."""
    has_target_BT = batch["target"] != IGNORE
    logit_N: Tensor = model.heads[HEAD](encoded.top[has_target_BT]).squeeze(-1)
    return logit_N.float(), batch["target"][has_target_BT]
