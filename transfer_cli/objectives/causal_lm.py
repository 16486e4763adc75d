"""Causal language modelling: predict each next token.

Legend: B batch, T positions, N targets, D width.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, Sample, TextFacts
from transfer_cli.seeds import ExampleNoise


class CausalLM(Objective):
    """-log p(next token | tokens so far), over every target that is not padding.

    On running text every token of the text is a target once. On labelled texts the targets are the
    text's own tokens: never padding, never the appended classification token.
    """

    direction = "causal"

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the language-model head."""
        return {"lm": LanguageModelHead(backbone.shape, backbone.vocabulary)}

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Add `target`, `[B, T]`: the token after each position."""
        if "next_tokens" in batch:
            return {**batch, "target": batch["next_tokens"]}
        tokens_BT, mask_BT = batch["tokens"], batch["mask"]
        target_BT = torch.full_like(tokens_BT, IGNORE)
        real = mask_BT[:, 1:] & mask_BT[:, :-1] & (tokens_BT[:, 1:] != self.facts.vocabulary.cls)
        target_BT[:, :-1] = torch.where(real, tokens_BT[:, 1:], IGNORE)
        return {**batch, "target": target_BT}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets."""
        return {"loss": int((batch["target"] != IGNORE).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the targets, in nats."""
        return {"loss": language_model_loss(model, batch["target"], encoded)}

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return what was to come at a few places of each text, and the likeliest token there."""
        return language_model_samples(model, batch, encoded)

    def measures(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextFacts
    ) -> dict[str, float]:
        """Return loss and perplexities; with a text's counts also by word and by byte.

        All from one sum over all tokens (Merity et al. 2017 count words as this does: one for each
        space-separated word and one for each end of line).
        """
        nats, tokens = float(totals["loss"]), counts["loss"]
        found = {"loss": nats / tokens, "token_perplexity": exponential(nats / tokens)}
        if text.words:
            found["word_perplexity"] = exponential(nats / text.words)
        if text.size_bytes:
            found["bits_per_byte"] = nats / (math.log(2) * text.size_bytes)
        return found


def language_model_loss(model: TransferModel, target_BT: Tensor, encoded: Encoding) -> Tensor:
    """Return the summed cross-entropy where there is a target; logits are computed only there."""
    has_target_BT = target_BT != IGNORE
    head = model.heads["lm"]
    embedding_VD = model.backbone.token_embedding.weight
    hidden_ND = encoded.top[has_target_BT]
    loss: Tensor = head.summed_loss(hidden_ND, embedding_VD, target_BT[has_target_BT])  # type: ignore[operator]
    return loss


def language_model_samples(
    model: TransferModel, batch: Batch, encoded: Encoding, count: int = 8
) -> list[Sample]:
    """Return, for each text, its last few targets and the likeliest token at each place."""
    found = []
    for tokens_T, mask_T, target_T, top_TD in zip(
        batch["tokens"], batch["mask"], batch["target"], encoded.top, strict=True
    ):
        places = (target_T != IGNORE).nonzero().squeeze(1)[-count:]
        logits = model.heads["lm"](top_TD[places], model.backbone.token_embedding.weight)
        wanted, said = target_T[places].tolist(), logits.argmax(-1).tolist()
        found.append(Sample(tokens_T[mask_T].tolist(), wanted, said))
    return found


def exponential(nats: float) -> float:
    """Return e to the `nats`, infinity where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf
