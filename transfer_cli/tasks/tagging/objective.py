"""The loss of a tag for each word.

Legend: B rows, T positions, D width, N targets, C tags.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch, rows_with_target, rows_with_word
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone, initialise_plain
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import UnitObjective, occurrences
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.class_weights import ClassWeight
from transfer_cli.objectives.confidence import Calibrate

MAX_CONFUSION_LABELS = 256
"""Most tags for which confusions are counted, each with each."""


class TagHead(nn.Linear):
    """A linear layer at each position, behind dropout."""

    def __init__(self, width: int, tags: int, dropout: float) -> None:
        super().__init__(width, tags)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[..., C]` of `[..., D]`."""
        return super().forward(self.dropout(hidden))


@dataclass(eq=False, repr=False)
class TokenTagging(UnitObjective):
    """Cross-entropy of each word's tag, read at one of its pieces (Devlin et al. 2019).

    Its units are the words, each in the window in which it is read.

    Args:
        dropout: Before the linear layer.
        class_weight: How much the words of each tag count in training, see `ClassWeight`.
        calibrate, abstain: See `UnitObjective`.
    """

    task = "tagging"
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS,)
    task_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("entity_f1", higher_is_better=True, unit="fraction", headline=True),
        Metric("entity_precision", higher_is_better=True, unit="fraction"),
        Metric("entity_recall", higher_is_better=True, unit="fraction"),
        Metric("entity_f1_strict", higher_is_better=True, unit="fraction"),
        Metric("macro_f1", higher_is_better=True, unit="fraction"),
        # Tags without entities have this alone.
        Metric("accuracy", higher_is_better=True, unit="fraction", headline=True),
    )
    counted: ClassVar[tuple[str, ...]] = ("confusion",)
    units_are_examples: ClassVar[bool] = False

    dropout: float = 0.1
    class_weight: ClassWeight = field(default=None, kw_only=True)
    calibrate: Calibrate = field(default=False, kw_only=True)
    abstain: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    def classes(self, batch: Batch) -> Tensor:
        target_BT = batch["target"]
        return target_BT[target_BT != IGNORE]

    @property
    def head(self) -> str:
        return "tags" if self.info.name == "main" else f"tags_{self.info.name}"

    @property
    def token_head(self) -> str:
        return self.head

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        head = TagHead(backbone.shape.width, len(self.info.labels), self.dropout)
        initialise_plain(head)
        return {self.head: head}

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the logits of each tag at each position, `[B, T, C]`."""
        logits_BTC: Tensor = model.heads[self.head](encoded.top)
        return logits_BTC.float()

    def _logits_at(self, rows_N: Tensor, model: TransferModel, encoded: Encoding) -> Tensor:
        states_ND = encoded.top.flatten(0, 1).index_select(0, rows_N)
        logits_NC: Tensor = model.heads[self.head](states_ND)
        return logits_NC.float()

    def scores(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the logits of each word, `[N, C]`."""
        return self._logits_at(rows_with_word(batch), model, encoded)

    def num_units(self, batch: Batch) -> int:
        return len(rows_with_word(batch))

    def unit_values(self, values: Tensor, batch: Batch) -> Tensor:
        return values.flatten(0, 1).index_select(0, rows_with_word(batch))

    def drop_hidden_units(self, batch: Batch, mask: Tensor) -> Batch:
        """Leave out the words whose pieces at which they are read are gone."""
        return {**batch, "word": batch["word"].where(mask, IGNORE)}

    def visible_units(self, batch: Batch, mask: Tensor) -> Tensor:
        """Return whether the piece is left at which each word is read."""
        return mask.flatten().index_select(0, rows_with_word(batch))

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        rows_N = rows_with_target(batch)
        logits_NC = self._logits_at(rows_N, model, encoded)
        weight_C = self.class_weights_on(logits_NC.device)
        return {"loss": _summed_loss(logits_NC, batch, rows_N, weight_C)}

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each row, summed over its targets."""
        logits_BCT, target_BT = outputs.transpose(1, 2), batch["target"]
        return F.cross_entropy(logits_BCT, target_BT, ignore_index=IGNORE, reduction="none").sum(1)

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss, and the counts `[C, C]` of words: rows are tags, columns said.

        What is said of a word is its likeliest tag, whatever its neighbours have.
        """
        logits_NC, rows_N = outputs.flatten(0, 1), rows_with_target(batch)
        loss = _summed_loss(logits_NC.index_select(0, rows_N), batch, rows_N)
        classes = len(self.info.labels)
        if classes > MAX_CONFUSION_LABELS:
            return {"loss": loss}
        word_N, predicted_N = _word_targets(batch).flatten(), logits_NC.argmax(-1)
        # What is no word goes into a cell of its own.
        cell_N = torch.where(word_N == IGNORE, classes**2, word_N * classes + predicted_N)
        cells = occurrences(cell_N, classes**2 + 1)[:-1]
        return {"loss": loss, "confusion": cells.view(classes, classes)}

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probability of each tag at each position, `shares` `[B, T, C]`."""
        return {"shares": self.calibrated(outputs).softmax(-1)}

    def judged_units(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits and tags, of each word where it is read."""
        return outputs, _word_targets(batch)

    def display_pairs(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        target_BT = _word_targets(batch)
        predicted_BT = torch.where(target_BT == IGNORE, IGNORE, outputs.argmax(-1))
        both = zip(target_BT.tolist(), predicted_BT.tolist(), strict=True)
        return [(self._names(expected), self._names(predicted)) for expected, predicted in both]

    def _names(self, tags: Sequence[int]) -> str:
        return " ".join(self.info.labels[tag] for tag in tags if tag != IGNORE)


def _summed_loss(
    logits_NC: Tensor, batch: Batch, rows_N: Tensor, weight_C: Tensor | None = None
) -> Tensor:
    """Return the cross-entropy of targets, given their logits and where they stand."""
    target_N = batch["target"].flatten().index_select(0, rows_N)
    return F.cross_entropy(logits_NC, target_N, weight=weight_C, reduction="sum")


def _word_targets(batch: Batch) -> Tensor:
    """Return the target of each word where it is read alone, `[B, T]`."""
    return batch["target"].where(batch["word"] != IGNORE, IGNORE)
