"""Classification of whole texts.

Legend: B batch, T positions, D width, C classes.
"""

from collections.abc import Mapping, Set
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch, size
from transfer_cli.data.split import TextStats
from transfer_cli.errors import CheckpointError, one_of
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.added import added_parameters
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import Pooler, Pooling, SequenceHead
from transfer_cli.model.new_rows import AddedRows
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample

POOLER = "pooler"
"""The name of the pooler among the heads: all classifications of a run share it."""

TABLE = "backbone.token_embedding.weight"

MOST_IN_CONFUSION = 256
"""Labels of which it is counted how often each was taken for each; of more, nobody reads that."""

METRICS = (
    Metric("error_rate", higher_is_better=False, unit="percent", headline=True, per_example=True),
    Metric("macro_f1", higher_is_better=True, unit="fraction"),
    Metric("accuracy", higher_is_better=True, unit="fraction", per_example=True),
    LOSS,
)


class Classification(Objective):
    """Cross-entropy of the label, from one vector per text.

    Args:
        pooling: See `model.heads.pool`. auto: the state of the classification token, last in a
            causal and first in a bidirectional model; but the mean if that token's embedding is
            frozen, since it may not have occurred in pretraining. In published models it has: there
            it is the mean if nothing in the backbone trains.
        pooler: Whether the vector passes through a `model.heads.Pooler`. None: if the kind of model
            has one and `pooling` is auto or the state of the classification token; a frozen pooler
            is not applied to a mean.
        dropout: Before every linear layer.
        hidden: Sizes of the layers between the pooled state and the last one.
        batch_norm: Whether every layer begins with batch norm. Howard and Ruder (2018, section 3.3)
            use it with `hidden: [50]` and `pooling: concat`.
    """

    task = "classification"

    def __init__(
        self,
        pooling: Literal["auto", "cls_first", "cls_last", "mean", "max", "concat"] = "auto",
        dropout: float = 0.1,
        hidden: tuple[int, ...] = (),
        *,
        batch_norm: bool = False,
        pooler: bool | None = None,
    ) -> None:
        one_of("pooling", pooling, ("auto", *get_args(Pooling)), ValueError)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if any(layer < 1 for layer in hidden):
            raise ValueError(f"hidden must be sizes of 1 or more, got {list(hidden)}")
        self.pooling = pooling
        self.dropout = dropout
        self.hidden = hidden
        self.batch_norm = batch_norm
        self.pooler = pooler

    @property
    def head(self) -> str:
        """The name of its head, one for each classification of a run."""
        return "class" if self.info.name == "main" else f"class_{self.info.name}"

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the classification head, and the pooler if there is one."""
        by_direction: Pooling = "cls_last" if backbone.causal else "cls_first"
        pooling = by_direction if self.pooling == "auto" else self.pooling
        head = SequenceHead(
            backbone.shape.width,
            len(self.info.labels),
            pooling,
            self.dropout,
            hidden=self.hidden,
            batch_norm=self.batch_norm,
        )
        if not self._has_pooler(backbone, pooling):
            return {self.head: head}
        kind = backbone.shape.pooler
        activation = "tanh" if kind == "none" else kind
        return {self.head: head, POOLER: Pooler(backbone.shape.width, activation)}

    def _has_pooler(self, backbone: Backbone, pooling: Pooling) -> bool:
        if self.pooler is None:
            return backbone.shape.pooler != "none" and pooling.startswith("cls")
        return self.pooler

    def inherit_options(self, options: Mapping[str, Any]) -> None:
        """Pool as the inherited head does, if `pooling` is auto.

        Raises:
            CheckpointError: The stored pooling is unknown.
        """
        if self.pooling == "auto" and "pooling" in options:
            if options["pooling"] not in get_args(Pooling):
                raise CheckpointError(f"init_from: its head pools by {options['pooling']!r}")
            self.pooling = options["pooling"]
        if self.pooler is None and "pooler" in options:
            self.pooler = bool(options["pooler"])

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        """Pool by the mean if `pooling` is auto and the classification token cannot learn."""
        head = model.heads[self.head]
        has_pooler = POOLER in model.heads
        if self.pooling == "auto" and not self._can_read_token(model, trains):
            head.pooling = "mean"  # type: ignore[assignment]
            if self.pooler is None:
                # A frozen pooler has learnt to read another vector.
                learns = any(name.startswith(f"heads.{POOLER}.") for name in trains)
                has_pooler = has_pooler and learns
        decided = {"pooling": head.pooling}
        if POOLER in model.heads:
            self.pooler = has_pooler
            decided["pooler"] = has_pooler  # type: ignore[assignment]
        return decided

    def _can_read_token(self, model: TransferModel, trains: Set[str]) -> bool:
        """Return whether the state of the classification token is pretrained or can be trained."""
        vocabulary = self.info.vocabulary
        # True of kinds of model with a pooler, or whose only special token ends its texts.
        was_pretrained = model.backbone.shape.pooler != "none" or vocabulary.cls == vocabulary.sep
        learns = any(name.startswith("backbone.") for name in trains)
        has_own_row = any(
            isinstance(part, AddedRows) and vocabulary.cls in part.tokens
            for name, part in added_parameters(model).items()
            if name in trains
        )
        return TABLE in trains or has_own_row or (was_pretrained and learns)

    def pooling_of(self, model: TransferModel) -> Pooling:
        """Return the pooling of its head."""
        pooling: Pooling = model.heads[self.head].pooling  # type: ignore[assignment]
        return pooling

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts."""
        return {"loss": size(batch)}

    def class_logits(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the classifier's logits in float32, `[B, C]`."""
        heads = model.heads
        pooler = heads[POOLER] if POOLER in heads and self.pooler is not False else None
        logits_BC: Tensor = heads[self.head](encoded.pooled(self.pooling_of(model)), pooler)
        return logits_BC.float()

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the labels."""
        logits_BC = self.class_logits(model, batch, encoded)
        return {"loss": F.cross_entropy(logits_BC, batch["label"], reduction="sum")}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the summed loss and the counts `[C, C]`: rows are labels, columns predictions.

        Of very many labels `[3, C]`: how often each was predicted rightly, given, and predicted.
        """
        logits_BC = self.class_logits(model, batch, encoded)
        classes, label_B, said_B = logits_BC.shape[1], batch["label"], logits_BC.argmax(1)
        loss = F.cross_entropy(logits_BC, label_B, reduction="sum")
        if classes <= MOST_IN_CONFUSION:
            cells = torch.bincount(label_B * classes + said_B, minlength=classes**2)
            return {"loss": loss, "confusion": cells.view(classes, classes)}
        right_B = torch.where(said_B == label_B, label_B, classes)
        counts = [
            torch.bincount(numbers_B, minlength=classes + 1)[:classes]
            for numbers_B in (right_B, label_B, said_B)
        ]
        return {"loss": loss, "labels": torch.stack(counts)}

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the probability of each label, `probabilities` `[B, C]`."""
        return {"probabilities": self.class_logits(model, batch, encoded).softmax(1)}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each text's cross-entropy, its predicted label and that label's probability."""
        logits_BC, label_B = self.class_logits(model, batch, encoded), batch["label"]
        return ExampleResults(
            loss=F.cross_entropy(logits_BC, label_B, reduction="none"),
            targets=torch.ones_like(label_B),
            predicted={"label": logits_BC.argmax(1), "probability": logits_BC.softmax(1).amax(1)},
        )

    def tables(self, totals: Mapping[str, Tensor]) -> dict[str, list[list[int]]]:
        """Return the counts of `metric_sums`."""
        return {
            name: totals[name].long().tolist() for name in ("confusion", "labels") if name in totals
        }

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return each text with its label and the predicted one."""
        said_B = self.class_logits(model, batch, encoded).argmax(1).tolist()
        names = self.info.labels
        return [
            Sample(tokens[mask].tolist(), names[wanted], names[said])
            for tokens, mask, wanted, said in zip(
                batch["tokens"], batch["mask"], batch["label"].tolist(), said_B, strict=True
            )
        ]

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return loss, accuracy, error rate in percent, macro-F1 and each class's accuracy."""
        if "labels" in totals:
            right, given, said = totals["labels"].double()
        else:
            confusion = totals["confusion"].double()
            right, given, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        accuracy = float(right.sum() / given.sum())
        # As in sklearn's macro average, a class that is neither given nor predicted has no F1.
        occurs = given + said > 0
        f1 = 2 * right[occurs] / (given + said)[occurs]
        found = {
            "loss": float(totals["loss"]) / counts["loss"],
            "accuracy": accuracy,
            "error_rate": 100 * (1 - accuracy),
            "macro_f1": float(f1.mean()),
        }
        for name, hit, all_of in zip(self.info.labels, right, given, strict=True):
            if all_of:
                found[f"accuracy/{name}"] = float(hit / all_of)
        return found

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the error rate first, then the other metrics."""
        return METRICS
