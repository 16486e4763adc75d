"""Heads: from hidden states to logits.

Legend: B batch, T positions, D width, N rows, V vocabulary, C classes.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.model.backbone import BackboneShape, initialise_plain
from transfer_cli.model.block import ACTIVATIONS
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.norms import build_norm
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.vocabulary_loss import summed_cross_entropy

POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "gelu": F.gelu, "relu": F.relu, "gelu_norm": F.gelu,
}  # fmt: skip


class LanguageModelHead(nn.Module):
    """Hidden states to vocabulary logits, W h + b.

    A tied head has no matrix: each call receives the token embedding. So there is one parameter,
    counted once, and still tied after loading, copying or wrapping.
    """

    transform: nn.Linear | None
    """The layer before the matrix, with its activation and norm; None: there is none."""

    def __init__(self, shape: BackboneShape, vocabulary: int) -> None:
        super().__init__()
        size = shape.embedding_size if shape.tie_output else shape.width
        if shape.output_transform:
            self.transform = nn.Linear(shape.width, size, bias=shape.biases == "all")
            self.norm = build_norm(shape, size)
            self.activation = ACTIVATIONS[shape.output_activation]
            initialise_plain(self.transform)
        else:
            self.transform = None
        if not shape.tie_output:
            self.weight = nn.Parameter(torch.empty(vocabulary, size))
            nn.init.normal_(self.weight, std=0.02)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if shape.output_bias else None
        self.scale = shape.output_scale
        self.compiled = False
        """Whether `torch.compile` compiles the loss."""
        self.on_rows: Callable[[int], None] | None = None
        """Called with the number of rows that the matrix multiplies; see `engine.cost`."""

    def summed_loss(
        self,
        hidden_ND: Tensor,
        embedding_VD: Tensor,
        target_N: Tensor,
        on_logits: Callable[[Tensor, slice], None] | None = None,
    ) -> Tensor:
        """Return the cross-entropy summed over rows, without materialising all logits.

        For `on_logits` see `vocabulary_loss.summed_cross_entropy`.
        """
        output = self.linear_inputs(hidden_ND, embedding_VD)
        return summed_cross_entropy(*output, target_N, compiled=self.compiled, on_logits=on_logits)

    def forward(self, hidden_ND: Tensor, embedding_VD: Tensor) -> Tensor:
        """Return logits `[N, V]`."""
        return F.linear(*self.linear_inputs(hidden_ND, embedding_VD))

    def linear_inputs(
        self, hidden_ND: Tensor, embedding_VD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what the matrix multiplies, the matrix and the bias."""
        if self.on_rows is not None:
            self.on_rows(hidden_ND.numel() // hidden_ND.shape[-1])
        if self.transform is not None:
            hidden_ND = self.norm(self.activation(self.transform(hidden_ND)))
        if self.scale != 1:
            hidden_ND = hidden_ND * self.scale
        return hidden_ND, getattr(self, "weight", embedding_VD), self.bias


class Pooler(nn.Module):
    """A linear layer and an activation between the pooled hidden state and the classifier (BERT).

    Args:
        activation: tanh, gelu, relu, or gelu_norm: GELU and a norm, and no bias where blocks have
            none (ModernBERT).
    """

    def __init__(self, shape: BackboneShape, activation: str) -> None:
        super().__init__()
        has_norm = activation == "gelu_norm"
        has_bias = not has_norm or shape.biases == "all"
        self.linear = nn.Linear(shape.width, shape.width, bias=has_bias)
        self.activation = POOLER_ACTIVATIONS[activation]
        self.norm = build_norm(shape, shape.width) if has_norm else nn.Identity()
        initialise_plain(self.linear)

    def forward(self, pooled_BD: Tensor) -> Tensor:
        """Return `[B, D]`."""
        activated: Tensor = self.norm(self.activation(self.linear(pooled_BD)))
        return activated


class TokenDiscriminator(nn.Module):
    """A number for each token: two layers, with the activation of the blocks between (ELECTRA)."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.width)
        self.activation = ACTIVATIONS[shape.activation]
        self.linear = nn.Linear(shape.width, 1)
        self.apply(initialise_plain)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Return `[N]`."""
        numbers_N1: Tensor = self.linear(self.activation(self.dense(hidden_ND)))
        return numbers_N1.squeeze(-1)


class SequenceHead(nn.Module):
    """Layers of dropout, linear and ReLU, the last without ReLU, on one vector a text.

    Args:
        width: D.
        outputs: C.
        dropout: Before every linear layer.
        batch_norm: Whether each layer begins with batch norm (Howard and Ruder 2018, section 3.3).
            Results then depend on the size of a micro-batch.
    """

    def __init__(
        self,
        width: int,
        outputs: int,
        pooling: Pooling,
        dropout: float = 0.1,
        *,
        hidden: Sequence[int] = (),
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        sizes = [width * (3 if pooling == "concat" else 1), *hidden]
        layers: list[nn.Module] = []
        for inputs, size in itertools.pairwise(sizes):
            layers += [BatchNorm(inputs)] if batch_norm else []
            layers += [Dropout(dropout), nn.Linear(inputs, size), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.norm = BatchNorm(sizes[-1]) if batch_norm else nn.Identity()
        self.drop = Dropout(dropout)
        self.linear = nn.Linear(sizes[-1], outputs)
        self.apply(initialise_plain)

    def forward(self, pooled: Tensor, pooler: nn.Module | None = None) -> Tensor:
        """Return logits `[B, C]` of `pool`'s vectors; the pooler, if any, is applied to them."""
        if pooler is not None:
            pooled = pooler(pooled)
        logits: Tensor = self.linear(self.drop(self.norm(self.hidden(pooled))))
        return logits


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that accepts a batch of one, the last of some epochs.

    One row has no variance; it is normalised by the running statistics, as in evaluation.
    """

    def forward(self, rows_ND: Tensor) -> Tensor:
        """Return `[N, D]`."""
        if len(rows_ND) > 1:
            return super().forward(rows_ND)
        return F.batch_norm(
            rows_ND, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
