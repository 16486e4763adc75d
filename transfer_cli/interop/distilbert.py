"""DistilBERT (Sanh et al. 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    SEQUENCE_CLASSIFICATION,
    Family,
    PublishedHead,
)
from transfer_cli.interop.rules import (
    Rule,
    classifier_head,
    masked_lm_head,
    packed_attention,
    same,
)
from transfer_cli.model.backbone import BackboneShape


class DistilBert(Family):
    """BERT with half of the blocks, without segments, with a classifier of two layers."""

    name = "DistilBERT"
    model_type = "distilbert"
    base_model = "DistilBertModel"
    prefix = "distilbert"
    blocks = "transformer.layer"
    keys: ClassVar[Mapping[str, str]] = {
        "width": "dim", "heads": "n_heads", "depth": "n_layers", "feedforward": "hidden_dim",
        "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "post", "direction": "bidirectional", "position_kind": "learned",
        "embedding_norm": True, "embedding_width": None, "segments": 0, "epsilon": 1e-12,
    }  # fmt: skip
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "activation": ("activation", "gelu"),
        "tie_output": ("tie_word_embeddings", True),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_transform": True}
    pooler_activation = "relu"

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {**super().config(shape), "sinusoidal_pos_embds": False}

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has two layers."""
        found = {
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "DistilBertForSequenceClassification",
                "text-classification",
                classifier_head("pre_classifier", "classifier"),
            )
        }
        if shape.activation == "gelu":  # the head's activation is that of the blocks
            last = same(
                "heads.lm", "vocab_projector", "bias", *(() if shape.tie_output else ("weight",))
            )
            output = masked_lm_head("vocab_transform", "vocab_layer_norm", last)
            found[LANGUAGE_MODEL] = PublishedHead("DistilBertForMaskedLM", "fill-mask", output)
        return found

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        return [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            *same("backbone.position_embedding", "embeddings.position_embeddings", "weight"),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]

    def block(self) -> list[Rule]:
        """Return the rules of a block."""
        return [
            *packed_attention("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            *same("attention.output", "attention.out_lin"),
            *same("attention_norm", "sa_layer_norm"),
            *same("feed_forward.inner", "ffn.lin1"),
            *same("feed_forward.output", "ffn.lin2"),
            *same("feed_forward_norm", "output_layer_norm"),
        ]
