"""The losses of a dialog: which candidate follows, and the words of the right one.

Legend: B turns, C candidates, T positions, D width, V vocabulary, R replies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.split import TextStats
from transfer_cli.errors import at_least
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import exponential
from transfer_cli.objectives.replies import replies, text_until, without_special
from transfer_cli.tasks.choice.task import CHANCE, MEAN_RANK, MultipleChoice
from transfer_cli.tasks.scoring import f1


@dataclass(eq=False, repr=False)
class NextUtterance(MultipleChoice):
    """Cross-entropy of the right candidate, and of its words (Wolf et al. 2019).

    The words have their own term, which counts by `language_model`; a further loss on them,
    `+objective@losses.lm=clm`, does the same. Both see the right candidate alone: its words and
    the token that ends it.

    Args:
        language_model: How much the words count beside the choice.
        reply_tokens: How many tokens the model says at most where what it says is compared with
            what was said (`f1`), the likeliest first; 0: it is not asked.
        options: Those of `SequenceObjective`.
    """

    task = "dialog"
    direction = "causal"

    language_model: float = field(default=0.0, kw_only=True)
    reply_tokens: int = field(default=20, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("reply_tokens", self.reply_tokens, 0)
        if self.language_model < 0:
            raise ValueError(f"language_model is {self.language_model}, expected 0 or more")
        self._words = CausalLM()

    @property
    def weights(self) -> Mapping[str, float]:
        return {"loss": 1.0, "words": self.language_model}

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self._words.setup(info)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        return {**super().modules(backbone), **self._words.modules(backbone)}

    def pooling_of(self, model: TransferModel) -> None:
        """Return None: the words need the state of every token."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of turns, and of words of right replies."""
        return {**super().counts(batch), "words": int((batch["next_tokens"] != IGNORE).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        sums = super().loss_sums(model, batch, encoded)
        return {**sums, "words": self._nats(model, batch, encoded)}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the sums of a choice, the nats of the words, and the F1 of what is generated."""
        sums = super().metric_sums(model, batch, encoded)
        sums["words"] = self._nats(model, batch, encoded)
        if self.reply_tokens:
            sums["f1"] = torch.tensor(self._f1(model, batch))
        return sums

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return hits at 1, those of a guess, the mean rank, perplexity, F1 and the loss."""
        means = super().compute_metrics(totals, counts, text)
        del means["words"]
        perplexity = exponential(float(totals["words"]) / counts["words"])
        return {"hits_at_1": means.pop("accuracy"), **means, "perplexity": perplexity}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics; runs are judged by the hits."""
        fraction: Literal["fraction"] = "fraction"
        hits = Metric("hits_at_1", True, fraction, headline=True, per_example=True)  # noqa: FBT003
        words = Metric("f1", higher_is_better=True, unit=fraction)
        return (
            hits,
            Metric("perplexity", higher_is_better=False, unit="perplexity"),
            *([words] if self.reply_tokens else []),
            CHANCE,
            MEAN_RANK,
            LOSS,
        )

    def _nats(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        words = {**batch, "target": batch["next_tokens"]}
        return self._words.loss_sums(model, words, encoded)["loss"]

    def _f1(self, model: TransferModel, batch: Batch) -> float:
        """Return the summed F1 of the words of what the model says to each turn of a batch."""
        target_BT = _of_right(batch, batch["next_tokens"])
        has_target_BT = target_BT != IGNORE
        begin_B = 1 + has_target_BT.int().argmax(1)  # after the mark of the turn
        predicted = replies(
            model,
            _of_right(batch, batch["tokens"]),
            _of_right(batch, batch["segment"]),
            begin_B,
            most=self.reply_tokens,
            pick=lambda logits: self.allowed(logits).argmax(1),
        )
        total = 0.0
        for row, target, has in zip(predicted.tolist(), target_BT, has_target_BT, strict=True):
            total += f1(self.text_of(target[has].tolist()), self.text_of(row))
        return total

    def text_of(self, reply: list[int]) -> str:
        """Return the text of a reply up to its end."""
        return text_until(reply, self.info.vocabulary, self.info.vocabulary.cls)

    def allowed(self, logits_RV: Tensor) -> Tensor:
        """Return logits with -inf at special tokens but the one that ends a reply."""
        return without_special(logits_RV, self.info.vocabulary, self.info.vocabulary.cls)


def _of_right(batch: Batch, values_BCT: Tensor) -> Tensor:
    """Return `[B, T]` of the right candidates."""
    label_B = batch["label"]
    return values_BCT[torch.arange(len(label_B), device=label_B.device), label_B]
