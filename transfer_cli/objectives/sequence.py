"""What objectives share that read one vector for each text: its pooling, its pooler, its head.

Legend: B batch, T positions, D width, N outputs.
"""

from abc import abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor, nn

from transfer_cli.batch import Batch
from transfer_cli.errors import CheckpointError
from transfer_cli.model.added import added_parameters
from transfer_cli.model.added_embeddings import AddedRows
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import Pooler, SequenceHead
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import UnitObjective
from transfer_cli.objectives.base import Encoding

POOLER = "pooler"
"""The name of the pooler among the heads: all that read one vector for each text share it."""

TABLE = "backbone.token_embedding.weight"


@dataclass(eq=False, repr=False)
class SequenceObjective(UnitObjective):
    """A loss of what a head says of one vector for each text.

    Args:
        pooling: See `model.pooling.pool`. auto: the state of the classification token, last in a
            causal and first in a bidirectional model; but the mean if that token's embedding is
            frozen, since it may not have occurred in pretraining. In published masked models it
            has: there it is the mean if nothing in the backbone trains. In published causal models
            that token ends texts and says little of the one before it: there it is the mean.
        pooler: Whether the vector passes through a `model.heads.Pooler`. None: if the kind of model
            has one and `pooling` is auto or the state of the classification token; a frozen pooler
            is not applied to a mean.
        dropout: Before every linear layer.
        hidden: Sizes of the layers between the pooled state and the last one.
        batch_norm: Whether every layer begins with batch norm. Howard and Ruder (2018, section 3.3)
            use it with `hidden: [50]` and `pooling: concat`.
    """

    problem_type: ClassVar[str | None]
    """What transformers calls what its head says of a text; None: it judges several texts."""

    pooling: Literal["auto", "cls_first", "cls_last", "mean", "max", "concat"] = "auto"
    dropout: float = 0.1
    hidden: tuple[int, ...] = ()
    batch_norm: bool = field(default=False, kw_only=True)
    pooler: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if any(layer < 1 for layer in self.hidden):
            raise ValueError(f"hidden must be sizes of 1 or more, got {list(self.hidden)}")

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """The size of the head's output."""

    @property
    def head(self) -> str:
        """The name of its head, one for each such loss of a run.

        It is `class` whatever it says of a text, as published models call theirs `classifier`.
        """
        return "class" if self.info.name == "main" else f"class_{self.info.name}"

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        by_direction: Pooling = "cls_last" if backbone.causal else "cls_first"
        pooling = by_direction if self.pooling == "auto" else self.pooling
        head = SequenceHead(
            backbone.shape.width, self.num_outputs, pooling, self.dropout, hidden=self.hidden,
            batch_norm=self.batch_norm,
        )  # fmt: skip
        kind, has_pooler = backbone.shape.pooler, self.pooler
        if has_pooler is None:
            has_pooler = kind != "none" and pooling.startswith("cls")
        if not has_pooler:
            return {self.head: head}
        activation = "tanh" if kind == "none" else kind
        return {self.head: head, POOLER: Pooler(backbone.shape, activation)}

    def inherit_options(self, options: Mapping[str, Any]) -> None:
        """Pool as the inherited head does, if `pooling` is auto."""
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
        decided = {**super().finalize_options(model, trains), "pooling": head.pooling}
        if POOLER in model.heads:
            self.pooler = decided["pooler"] = has_pooler
        return decided

    def _can_read_token(self, model: TransferModel, trains: Set[str]) -> bool:
        """Return whether the state of the classification token is pretrained or can be trained."""
        vocabulary, has_pooler = self.info.vocabulary, model.backbone.shape.pooler != "none"
        if model.backbone.causal and not has_pooler and vocabulary.cls == vocabulary.sep:
            return False  # their only special token ends texts
        learns = any(name.startswith("backbone.") for name in trains)
        has_own_row = any(
            isinstance(part, AddedRows) and vocabulary.cls in part.tokens
            for name, part in added_parameters(model).items()
            if name in trains
        )
        return TABLE in trains or has_own_row or (has_pooler and learns)

    def unit_of(self, task: Any) -> tuple[float, float]:
        """Return the mean and the deviation of answers that the outputs are relative to."""
        return 0.0, 1.0

    def left_out_of_exports(self, task: Any) -> tuple[str, ...]:
        """Return in words what of its answers no exported model does."""
        is_unsure = getattr(task, "abstain_below", 0.0) > 0
        return ("the threshold below which there is no answer",) if is_unsure else ()

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return the pooling of its head, which is all that reads states."""
        return self.head_pooling(model)

    def head_pooling(self, model: TransferModel) -> Pooling:
        """Return the pooling of its head."""
        pooling: Pooling = model.heads[self.head].pooling  # type: ignore[assignment]
        return pooling

    def text_outputs(self, model: TransferModel, encoded: Encoding) -> Tensor:
        """Return what the head says of each text, in float32, `[S, N]`."""
        return self.head_outputs(model, encoded.pooled(self.head_pooling(model)))

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        return self.text_outputs(model, encoded)

    def scores(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        return self.outputs(model, batch, encoded)

    def head_outputs(self, model: TransferModel, pooled_BD: Tensor) -> Tensor:
        """Return what the head says of vectors, in float32, `[B, N]`."""
        heads = model.heads
        pooler = heads[POOLER] if POOLER in heads and self.pooler is not False else None
        outputs_BN: Tensor = heads[self.head](pooled_BD, pooler)
        return outputs_BN.float()
