"""What an ONNX graph can compute, as modules that torch's exporter can trace.

Legend: B batch, T positions, D width, V vocabulary, C classes.
"""

from typing import Any

from torch import Tensor, nn

from transfer_cli.errors import ConfigError
from transfer_cli.interop.graph_folder import HIDDEN
from transfer_cli.model.added import added_modules
from transfer_cli.model.heads import BatchNorm
from transfer_cli.model.pooling import pool
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.objectives.sequence import POOLER, SequenceObjective


class Graph(nn.Module):
    """Hidden states; subclasses compute logits from them."""

    outputs: tuple[str, ...] = (HIDDEN,)
    with_pairs = True
    """Whether an input may be two texts."""

    def __init__(self, model: TransferModel) -> None:
        super().__init__()
        # Not the model: torch's exporter writes code, in which `heads.class` is no name.
        self.backbone = model.backbone
        self.readout = model.readout

    @property
    def inputs(self) -> tuple[str, ...]:
        """Their names, in order."""
        segments = ("token_type_ids",) if self.backbone.num_segments > 1 else ()
        return ("input_ids", "attention_mask", *segments)

    def forward(
        self, tokens_BT: Tensor, attention_BT: Tensor, segment_BT: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Return the output, or several."""
        mask_BT = attention_BT != 0
        # `padded` as found in the example would be a constant of the graph.
        states = self.backbone(tokens_BT, mask_BT, segment_BT, padded=True)
        return self.compute_output(self.readout(states), mask_BT)

    def compute_output(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the output, from the hidden states that the heads read."""
        return top_BTD


class _LanguageModelGraph(Graph):
    """Logits of the vocabulary at every position, `[B, T, V]`."""

    outputs = ("logits",)
    with_pairs = False

    def __init__(self, model: TransferModel) -> None:
        super().__init__(model)
        self.head = model.heads[HEAD]

    def compute_output(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        logits_BTV: Tensor = self.head(top_BTD, self.backbone.token_embedding.weight)
        return logits_BTV


class _ClassifierGraph(Graph):
    """Logits of the classes, `[B, C]`, from the layers of the head without its `len(batch)`.

    To the exporter that is a constant, and the graph would take batches of that size only.
    """

    outputs = ("logits",)

    def __init__(self, model: TransferModel, objective: SequenceObjective) -> None:
        super().__init__(model)
        heads: Any = model.heads
        self.head = heads[objective.head]
        has_pooler = POOLER in heads and objective.pooler is not False
        self.pooler = heads[POOLER] if has_pooler else nn.Identity()

    def compute_output(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        head = self.head
        vector = self.pooler(pool(top_BTD, mask_BT, head.pooling))
        for layer in (*head.hidden, head.norm, head.drop, head.linear):
            plain = isinstance(layer, BatchNorm)
            vector = nn.BatchNorm1d.forward(layer, vector) if plain else layer(vector)
        logits_BC: Tensor = vector
        return logits_BC


class _TokenGraph(Graph):
    """What a head says of each token, `[B, T, C]`; of two outputs, each `[B, T]`."""

    def __init__(self, model: TransferModel, head: str) -> None:
        super().__init__(model)
        self.head = model.heads[head]
        self.outputs = ("start_logits", "end_logits") if head == "span" else ("logits",)

    def compute_output(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor | tuple[Tensor, ...]:
        logits_BTC: Tensor = self.head(top_BTD)
        return logits_BTC.unbind(-1) if len(self.outputs) > 1 else logits_BTC


def graph_of(model: TransferModel, objective: Objective | None) -> Graph:
    """Return the module to export."""
    if model.backbone.shape.has_encoder:
        raise ConfigError("format=onnx does not write an encoder and a decoder; take format=hf")
    for part in added_modules(model).values():
        if not part.in_graphs:
            raise ConfigError(
                f"format=onnx does not write {part.describe()}; it takes adapters, mixes of layers "
                "and what can be merged, such as LoRA"
            )
    if objective is None:
        return Graph(model)
    if isinstance(objective, SequenceObjective) and objective.head != HEAD:
        return _ClassifierGraph(model, objective)
    if objective.token_head is not None:
        return _TokenGraph(model, objective.token_head)
    if HEAD in model.heads and not isinstance(objective, SequenceObjective):
        return _LanguageModelGraph(model)
    raise ConfigError(
        "format=onnx writes classifiers, heads of tokens and language models; "
        f"{type(objective).__name__} is none of them"
    )
