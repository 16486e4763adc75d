"""Base class of language-model objectives, which predict tokens at targets.

Legend: B batch, T positions, N targets, D width, V vocabulary, R texts, K models.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch, rows_with_target, select_rows
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample
from transfer_cli.seeds import ExampleNoise

HEAD = "lm"

CHUNK = 64
"""Tokens of a part of the vocabulary, in which a draw is looked for."""


def language_model_head(model: TransferModel) -> LanguageModelHead:
    """Return the head that gives a token's probability."""
    return cast("LanguageModelHead", model.heads[HEAD])


def token_logits(model: TransferModel, states: Tensor) -> Tensor:
    """Return what the head says of states, `[..., D]`, as logits, `[..., V]`."""
    logits: Tensor = model.heads[HEAD](states, model.backbone.token_embedding.weight)
    return logits


class LanguageModel(Objective):
    """Cross-entropy of the tokens in `target`, which a subclass's `prepare` adds to the batch."""

    predicts_tokens = True

    @abstractmethod
    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with `target`, `IGNORE` where nothing is predicted."""

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        return {HEAD: LanguageModelHead(backbone.shape, backbone.vocabulary)}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"loss": int((batch["target"] != IGNORE).sum())}

    def head_rows(self, batch: Batch) -> dict[str, int]:
        return {HEAD: self.counts(batch)["loss"]}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the targets, in nats, from their logits alone."""
        return self.token_loss(model, batch, encoded)

    def token_loss(
        self,
        model: TransferModel,
        batch: Batch,
        encoded: Encoding,
        on_logits: Callable[[Tensor, Tensor], None] | None = None,
    ) -> dict[str, Tensor]:
        """Return the loss; `on_logits` gets logits of some targets, `[R, V]`, and these, `[R]`."""
        rows_N = rows_with_target(batch)
        target_N = select_rows(batch["target"].flatten(), rows_N)
        loss = language_model_head(model).summed_loss(
            select_rows(encoded.top.flatten(0, 1), rows_N),
            model.backbone.token_embedding.weight,
            target_N,
            on_logits and (lambda logits_RV, rows: on_logits(logits_RV, target_N[rows])),
        )
        return {"loss": loss}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        has_target_BT = batch["target"] != IGNORE
        losses = []
        # One at a time, so that memory holds the logits of one text only.
        for top_TD, target_T, has_T in zip(
            encoded.top, batch["target"], has_target_BT, strict=True
        ):
            logits_NV = token_logits(model, top_TD[has_T]).float()
            losses.append(F.cross_entropy(logits_NV, target_T[has_T], reduction="sum"))
        return ExampleResults(torch.stack(losses), has_target_BT.sum(1))

    def prediction_mask(self, batch: Batch) -> Tensor:
        """Return where predictions are meaningful, `[B, T]` bool: at the targets."""
        return batch["target"] != IGNORE

    def with_drawn_targets(
        self, model: TransferModel, batch: Batch, encoded: Encoding, generator: torch.Generator
    ) -> Batch:
        """Return the batch with each target replaced by a draw from the model's softmax(logits).

        The generator is on the CPU, so that a seed gives the same draws on every device.
        """
        rows_N = rows_with_target(batch)
        # Outside `no_grad`: the loss is computed from the same states.
        hidden_ND = select_rows(encoded.top.flatten(0, 1), rows_N)
        with torch.no_grad():
            logits_NV = token_logits(model, hidden_ND)
        draw_N = torch.rand(len(rows_N), generator=generator, dtype=torch.float64)
        drawn_N = draw_tokens(logits_NV, draw_N.to(logits_NV.device, non_blocking=True))
        target = batch["target"].flatten().index_copy(0, rows_N, drawn_N)
        return {**batch, "target": target.view_as(batch["target"])}

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return the last few targets of each text, and the most likely token at each."""
        samples = []
        shown_places = 8  # number of targets of a text in a sample
        for tokens_T, mask_T, target_T, top_TD in zip(
            batch["tokens"], batch["mask"], batch["target"], encoded.top, strict=True
        ):
            places = (target_T != IGNORE).nonzero().squeeze(1)[-shown_places:]
            predicted = token_logits(model, top_TD[places]).argmax(-1).tolist()
            expected = target_T[places].tolist()
            samples.append(Sample(tokens_T[mask_T].tolist(), expected, predicted))
        return samples


def draw_tokens(logits_NV: Tensor, draw_N: Tensor) -> Tensor:
    """Return a token for each row, drawn from softmax(logits) by a number in [0, 1), `[N]`.

    It is the first one at which the sum of the probabilities exceeds the number. That is looked for
    among parts of the vocabulary, then within one. Sums of parts are in float64: in float32, those
    over a large vocabulary would lose rare tokens.
    """
    wide_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    share_NV, vocabulary = wide_NV.softmax(-1), wide_NV.shape[1]
    whole_NV, rest_NR = share_NV.tensor_split((vocabulary // CHUNK * CHUNK,), dim=1)
    sums = [whole_NV.unflatten(1, (-1, CHUNK)).sum(-1), rest_NR.sum(1, keepdim=True)]
    sum_NC = torch.cat(sums, 1).double()
    reached_NC = sum_NC.cumsum(1)
    wanted_N1 = draw_N.double()[:, None] * reached_NC[:, -1:]
    part_N1 = torch.searchsorted(reached_NC, wanted_N1, right=True)
    part_N1 = part_N1.clamp(max=(vocabulary - 1) // CHUNK)
    token_NP = part_N1 * CHUNK + torch.arange(CHUNK, device=part_N1.device)
    own_NP = share_NV.gather(1, token_NP.clamp(max=vocabulary - 1)).double()
    before_N1 = reached_NC.gather(1, part_N1) - sum_NC.gather(1, part_N1)
    within_N1 = torch.searchsorted(own_NP.cumsum(1), wanted_N1 - before_N1, right=True)
    return (part_N1 * CHUNK + within_N1).squeeze(1).clamp(max=vocabulary - 1)


def log_mean_softmax(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of several models' distributions, `[R, V]` like each."""
    each_KRV = torch.stack([logits_RV.float().log_softmax(-1) for logits_RV in logits])
    return each_KRV.logsumexp(0) - math.log(len(logits))


def exp_or_inf(nats: float) -> float:
    """Return e to the `nats`, infinity where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf
