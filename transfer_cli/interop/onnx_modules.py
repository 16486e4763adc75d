"""The outputs that an ONNX graph can have, as modules that torch's exporter can follow.

Legend: B batch, T positions, D width, V vocabulary, C classes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from transfer_cli.errors import ConfigError
from transfer_cli.model.heads import BatchNorm, LanguageModelHead, Pooling, SequenceHead, pool
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective
from transfer_cli.objectives.classification import POOLER, Classification
from transfer_cli.objectives.language_model import HEAD


class Graph(nn.Module):
    """What the graph computes: hidden states, from which others read more."""

    output = "hidden"
    with_pairs = True
    """Whether its inputs are labelled texts, of which there may be two."""

    def __init__(self, model: TransferModel) -> None:
        super().__init__()
        # The parts by themselves: the code that torch writes cannot say `heads.class`.
        self.backbone = model.backbone
        self.readout = model.readout

    @property
    def inputs(self) -> tuple[str, ...]:
        """Their names, in order."""
        segments = ("token_type_ids",) if self.backbone.shape.segments > 1 else ()
        return ("input_ids", "attention_mask", *segments)

    def forward(
        self, tokens_BT: Tensor, attention_BT: Tensor, segment_BT: Tensor | None = None
    ) -> Tensor:
        """Return the output."""
        mask_BT = attention_BT != 0
        # Whether there is padding is not asked: the answer would be a constant of the graph.
        states = self.backbone(tokens_BT, mask_BT, segment_BT, padded=True)
        return self.read(self.readout(states), mask_BT)

    def read(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return what comes out, from what the heads see."""
        return top_BTD


class _LanguageModelGraph(Graph):
    """Logits of the vocabulary at every position, `[B, T, V]`."""

    output = "logits"
    with_pairs = False

    def __init__(self, model: TransferModel, head: LanguageModelHead) -> None:
        super().__init__(model)
        self.head = head

    def read(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return `[B, T, V]`."""
        logits_BTV: Tensor = self.head(top_BTD, self.backbone.token_embedding.weight)
        return logits_BTV


class _ClassifierGraph(Graph):
    """Logits of the classes, `[B, C]`: the head's own layers without its `len` of a batch.

    To the exporter `len` is a number, and the graph would take batches of that size only.
    """

    output = "logits"

    def __init__(self, model: TransferModel, head: SequenceHead, pooler: nn.Module | None) -> None:
        super().__init__(model)
        self.head = head
        self.pooler = nn.Identity() if pooler is None else pooler

    def read(self, top_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return `[B, C]`."""
        head = self.head
        vector = self.pooler(_pool(top_BTD, mask_BT, head.pooling))
        for layer in (*head.hidden, head.norm, head.drop, head.linear):
            plain = isinstance(layer, BatchNorm)
            vector = nn.BatchNorm1d.forward(layer, vector) if plain else layer(vector)
        logits_BC: Tensor = vector
        return logits_BC


def _pool(hidden_BTD: Tensor, mask_BT: Tensor, pooling: Pooling) -> Tensor:
    """Return what `model.heads.pool` does, for any batch."""
    if pooling == "concat":
        parts: tuple[Pooling, ...] = ("cls_last", "max", "mean")
        return torch.cat([_pool(hidden_BTD, mask_BT, part) for part in parts], dim=1)
    if pooling not in ("cls_first", "cls_last"):
        return pool(hidden_BTD, mask_BT, pooling)
    place_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    if pooling == "cls_first":
        place_B = torch.where(mask_BT, place_T, mask_BT.shape[1] - 1).amin(1)
    else:
        place_B = torch.where(mask_BT, place_T, 0).amax(1)
    index_B1D = place_B[:, None, None].expand(-1, 1, hidden_BTD.shape[2])
    return hidden_BTD.gather(1, index_B1D).squeeze(1)


def graph_of(model: TransferModel, objective: Objective | None) -> Graph:
    """Return the module whose graph is wanted.

    Raises:
        ConfigError: The model has no head that a graph can end with.
    """
    heads: Any = model.heads
    if objective is None:
        return Graph(model)
    if isinstance(objective, Classification):
        return _ClassifierGraph(model, heads[objective.head], _pooler(model, objective))
    if HEAD in heads:
        return _LanguageModelGraph(model, heads[HEAD])
    raise ConfigError(
        f"format=onnx writes classifiers and language models; {type(objective).__name__} is neither"
    )


def _pooler(model: TransferModel, objective: Classification) -> nn.Module | None:
    if POOLER not in model.heads or objective.pooler is False:
        return None
    return model.heads[POOLER]
