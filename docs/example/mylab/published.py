"""A family of published models: our lab's own, a GPT-2 whose tensors have other names."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.interop.families import register_family
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    SEQUENCE_CLASSIFICATION,
    Family,
    PublishedHead,
)
from transfer_cli.interop.rules import Rule, packed_attention, same
from transfer_cli.model.backbone import BackboneShape


@register_family
class MylabLM(Family):
    """Causal, pre-norm, learned positions; queries, keys and values are three layers."""

    name = "MylabLM"
    model_type = "mylab_lm"
    base_model = "MylabModel"
    prefix = "model"
    blocks = "decoder.layers"
    keys: ClassVar[Mapping[str, str]] = {
        "width": "hidden_size", "heads": "num_attention_heads", "depth": "num_hidden_layers",
        "feedforward": "ffn_dim", "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre", "direction": "causal", "position_kind": "learned",
        "embedding_norm": False, "embedding_width": None, "segments": 0,
    }  # fmt: skip
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation": ("activation_function", "gelu"),
        "tie_output": ("tie_word_embeddings", True),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_bias": False}
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_last": None}

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has no bias."""
        output = [] if shape.tie_output else same("heads.lm", "lm_head", "weight")
        score = same("heads.class.linear", "score", "weight")
        return {
            LANGUAGE_MODEL: PublishedHead("MylabForCausalLM", "text-generation", output),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "MylabForSequenceClassification", "text-classification", score
            ),
        }

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings and the last norm."""
        return [
            *same("backbone.token_embedding", "decoder.embed_tokens", "weight"),
            *same("backbone.position_embedding", "decoder.embed_positions", "weight"),
            *same("backbone.final_norm", "decoder.final_layer_norm"),
        ]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        return [
            *packed_attention("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            *same("attention.output", "self_attn.out_proj"),
            *same("attention_norm", "self_attn_layer_norm"),
            *same("feed_forward.inner", "fc1"),
            *same("feed_forward.output", "fc2"),
            *same("feed_forward_norm", "final_layer_norm"),
        ]
