"""Causal language modelling: predict each next token.

Legend: B batch, T positions.
"""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from transfer_cli.batch import IGNORE, Batch, Counts, Sums
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import LOSS, Metric, perplexity
from transfer_cli.model.shape import SettledDirection
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults
from transfer_cli.objectives.language_model import LanguageModel, exp_or_inf
from transfer_cli.seeds import ExampleNoise

ACCURACY = Metric("token_accuracy", higher_is_better=True, unit="fraction")
"""The share of the targets that are the likeliest token."""


class CausalLM(LanguageModel):
    """-log p(next token | tokens so far), over every target that is not padding.

    In running text every token is a target once. In labelled texts the targets are the text's own
    tokens: never padding, never the appended classification token.
    """

    direction: SettledDirection | None = "causal"
    # Perplexity by token is the headline if words are not counted.
    metrics: ClassVar[tuple[Metric, ...]] = (
        perplexity("word_perplexity"),
        replace(LOSS, name="bits_per_byte", unit="bits"),
        perplexity("token_perplexity"),
        LOSS,
        ACCURACY,
    )

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Add `target`, `[B, T]`: the token after each position."""
        if "next_tokens" in batch:
            return {**batch, "target": batch["next_tokens"]}
        tokens_BT, mask_BT = batch["tokens"], batch["mask"]
        target_BT = torch.full_like(tokens_BT, IGNORE)
        real = mask_BT[:, 1:] & mask_BT[:, :-1] & (tokens_BT[:, 1:] != self.info.vocabulary.cls)
        target_BT[:, :-1] = torch.where(real, tokens_BT[:, 1:], IGNORE)
        return {**batch, "target": target_BT}

    def prediction_mask(self, batch: Batch) -> Tensor:
        """Return `[B, T]`, True at every real token, including the classification token."""
        return batch["mask"]

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        """Return the loss, and how many targets have the largest logit, from the same logits."""
        right = torch.zeros((), dtype=torch.int64, device=batch["target"].device)

        def count_right(logits_RV: Tensor, target_R: Tensor) -> None:
            own_R = logits_RV.gather(1, target_R[:, None]).squeeze(1)
            # The largest logit is found in a fraction of the time of its place.
            right.add_((own_R >= logits_RV.amax(1)).sum())

        return {**self.token_loss(model, batch, encoded, count_right), "right": right}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each text's summed cross-entropy, its number of targets, and what it writes."""
        results = super().example_results(model, batch, encoded)
        if not self.writes_answers:
            return results
        return replace(results, predicted=self.predictions(model, batch, encoded))

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        """Return loss and perplexities; with a text's counts also by word and by byte.

        Words are counted as in Merity et al. 2017: one for each space-separated word and one for
        each end of line.
        """
        nats, tokens = float(totals["loss"]), counts["loss"]
        measures = {"loss": nats / tokens, "token_perplexity": exp_or_inf(nats / tokens)}
        measures["token_accuracy"] = float(totals["right"]) / tokens
        if text.words:
            measures["word_perplexity"] = exp_or_inf(nats / text.words)
        if text.size_bytes:
            measures["bits_per_byte"] = nats / (math.log(2) * text.size_bytes)
        return measures
