"""DistilBERT (Sanh et al. 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.interop.family import ACTIVATIONS, Architectures, Family, activation_there
from transfer_cli.interop.rules import Rule, Stacked, same
from transfer_cli.interop.settings import Settings
from transfer_cli.model.backbone import BackboneShape

EPSILON = 1e-12
"""Its config has no say in this."""


class DistilBert(Family):
    """BERT with half of the blocks, without segments, with a classifier of two layers."""

    name = "DistilBERT"
    model_type = "distilbert"
    prefix = "distilbert"
    architectures = Architectures(
        "DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"
    )
    keys: ClassVar[Mapping[str, str]] = {
        "width": "dim", "heads": "n_heads", "depth": "n_layers", "feedforward": "hidden_dim",
        "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "post", "direction": "bidirectional", "position_kind": "learned",
        "embedding_norm": True, "embedding_width": None, "segments": 0, "epsilon": EPSILON,
    }  # fmt: skip

    pooler_activation = "relu"

    def shape(self, settings: Settings) -> BackboneShape:
        """Return the shape that a config describes."""
        return BackboneShape(
            **self.sizes(settings),
            dropout=settings.fraction("dropout", 0.1),
            attention_dropout=settings.fraction("attention_dropout", 0.1),
            activation=settings.one_of("activation", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
            residual="post",
            direction="bidirectional",
            embedding_norm=True,
            output_transform=True,
            tie_output=settings.truth("tie_word_embeddings", otherwise=True),
            epsilon=EPSILON,
            pooler=self.pooler_activation,  # type: ignore[arg-type]
        )

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **self.sizes_there(shape),
            "dropout": shape.dropout,
            "attention_dropout": shape.attention_dropout,
            "activation": activation_there(shape),
            "sinusoidal_pos_embds": False,
            "tie_word_embeddings": shape.tie_output,
        }

    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone."""
        rules = [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            *same("backbone.position_embedding", "embeddings.position_embeddings", "weight"),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]
        for number in range(shape.depth):
            rules += _block(f"backbone.blocks.{number}", f"transformer.layer.{number}")
        return rules

    def language_model(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the head that restores hidden tokens."""
        if shape.activation != "gelu":  # there it is the head's, too
            return []
        rules = [
            *same("heads.lm.transform", "vocab_transform"),
            *same("heads.lm.norm", "vocab_layer_norm"),
            *same("heads.lm", "vocab_projector", "bias"),
        ]
        return rules if shape.tie_output else rules + same("heads.lm", "vocab_projector", "weight")

    def pooler(self, *, of_classifier: bool) -> list[Rule]:
        """Return the rules of the classifier's first layer."""
        return same("heads.pooler.linear", "pre_classifier") if of_classifier else []

    def classifier(self) -> list[Rule]:
        """Return the rules of its second layer."""
        return same("heads.class.linear", "classifier")


def _block(ours: str, theirs: str) -> list[Rule]:
    attention = f"{theirs}.attention"
    return [
        *(
            Rule(
                f"{ours}.attention.packed.{kind}",
                tuple(f"{attention}.{part}_lin.{kind}" for part in "qkv"),
                Stacked(3),
            )
            for kind in ("weight", "bias")
        ),
        *same(f"{ours}.attention.output", f"{attention}.out_lin"),
        *same(f"{ours}.attention_norm", f"{theirs}.sa_layer_norm"),
        *same(f"{ours}.feed_forward.inner", f"{theirs}.ffn.lin1"),
        *same(f"{ours}.feed_forward.output", f"{theirs}.ffn.lin2"),
        *same(f"{ours}.feed_forward_norm", f"{theirs}.output_layer_norm"),
    ]
