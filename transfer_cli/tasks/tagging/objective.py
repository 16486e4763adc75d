"""The loss of a tag for each word.

Legend: B rows, T positions, C tags.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone, initialise_plain
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample
from transfer_cli.tasks.tagging.decoding import decode


class TokenHead(nn.Module):
    """Dropout and a linear layer at every position."""

    def __init__(self, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(width, num_outputs)
        initialise_plain(self.linear)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return logits `[B, T, C]`."""
        logits_BTC: Tensor = self.linear(self.dropout(hidden_BTD))
        return logits_BTC


class Tagging(Objective):
    """Cross-entropy of each word's tag, at one of the word's pieces (Devlin et al. 2019).

    Tags of entities are decoded together, so that each sequence is a valid one.

    Args:
        dropout: Before the linear layer.
    """

    task = "tagging"

    def __init__(self, *, dropout: float = 0.1) -> None:
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.dropout = dropout

    @property
    def head(self) -> str:
        """The name of its head."""
        return "tags" if self.info.name == "main" else f"tags_{self.info.name}"

    @property
    def token_head(self) -> str:
        """Its head: it scores each token."""
        return self.head

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the head, with an output for each tag."""
        return {self.head: TokenHead(backbone.shape.width, len(self.info.labels), self.dropout)}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of tags: of words, or of all pieces if these learn, too."""
        return {"loss": int((batch["tag"] != IGNORE).sum())}

    def logits(self, model: TransferModel, encoded: Encoding) -> Tensor:
        """Return the score of each tag at each position, `[B, T, C]`."""
        logits_BTC: Tensor = model.heads[self.head](encoded.top)
        return logits_BTC.float()

    def losses(self, logits_BTC: Tensor, batch: Batch) -> Tensor:
        """Return the loss at each position, `[B, T]`."""
        return F.cross_entropy(
            logits_BTC.transpose(1, 2), batch["tag"], ignore_index=IGNORE, reduction="none"
        )

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed loss."""
        return {"loss": self.losses(self.logits(model, encoded), batch).sum()}

    def decoded(self, logits_BTC: Tensor, batch: Batch) -> Tensor:
        """Return the number of each word's tag, where the word is read, `[B, T]`."""
        return decode(logits_BTC.log_softmax(2), batch["word"].bool(), self.info.labels)

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the tags, `[B, T]`, and the probability of each tag, `[B, T, C]`."""
        logits_BTC = self.logits(model, encoded)
        return {"tags": self.decoded(logits_BTC, batch), "probabilities": logits_BTC.softmax(2)}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each row's loss and tags."""
        logits_BTC = self.logits(model, encoded)
        loss_B, targets_B = self.losses(logits_BTC, batch).sum(1), (batch["tag"] != IGNORE).sum(1)
        return ExampleResults(loss_B, targets_B, {"tags": self.decoded(logits_BTC, batch)})

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return each row with its tags and those that are said."""
        said_BT = self.decoded(self.logits(model, encoded), batch)
        is_word_BT = batch["word"].bool()
        return [
            Sample(tokens[mask].tolist(), self._names(given[is_word]), self._names(said[is_word]))
            for tokens, mask, is_word, given, said in zip(
                batch["tokens"], batch["mask"], is_word_BT, batch["tag"], said_BT, strict=True
            )
        ]

    def _names(self, tags_W: Tensor) -> str:
        return " ".join(self.info.labels[number] for number in tags_W.tolist())

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the loss of a word."""
        return {"loss": float(totals["loss"]) / max(counts["loss"], 1)}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the loss; the measures of answers are `answer_metrics`."""
        return (LOSS,)

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return the measures of `TaggingTask.scores`; without entities the accuracy judges."""
        return tuple(
            Metric(name, higher_is_better=True, unit="fraction", headline=headline)
            for name, headline in (
                ("entity_f1", True),
                ("entity_precision", False),
                ("entity_recall", False),
                ("entity_f1_strict", False),
                ("accuracy", True),
            )
        )
