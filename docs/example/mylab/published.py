"""A family of published models: our lab's own, a GPT-2 whose tensors have other names."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.interop.families import register_family
from transfer_cli.interop.family import (
    POSITIONS,
    ActivationField,
    CausalFamily,
    Field,
    ModuleNames,
)


@register_family
class MylabLM(CausalFamily):
    """Causal, pre-norm, learned positions; queries, keys and values are three layers."""

    name = "MylabLM"
    model_type = "mylab_lm"
    base_model = "MylabModel"
    prefix = "model"
    blocks = "decoder.layers"
    fields = (
        Field("width", "hidden_size"), Field("heads", "num_attention_heads"),
        Field("depth", "num_hidden_layers"), Field("feedforward", "ffn_dim"), POSITIONS,
        Field("dropout", "dropout", 0.1), Field("attention_dropout", "attention_dropout", 0.0),
        ActivationField("activation_function", "gelu"),
        Field("tie_output", "tie_word_embeddings", default=True),
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {**CausalFamily.fixed, "position_kind": "learned"}
    outside: ClassVar[ModuleNames] = {
        "token_embedding": "decoder.embed_tokens",
        "position_embedding": "decoder.embed_positions",
        "final_norm": "decoder.final_layer_norm",
    }
    inside: ClassVar[ModuleNames] = {
        "attention.packed": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": "self_attn.out_proj", "attention_norm": "self_attn_layer_norm",
        "feed_forward.inner": "fc1", "feed_forward.output": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }  # fmt: skip
