"""BART and mBART, read and written.

Sources: Lewis et al. 2020 (BART), Liu et al. 2020 (mBART, whose norms come before sub-layers).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    POSITIONS,
    ActivationField,
    ConfigPart,
    Field,
    ModuleNames,
    TwoStackFamily,
    WriteOnly,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Conversion, Rule, skip_rows
from transfer_cli.model.shape import BackboneShape

_ROW = Conversion(lambda theirs: theirs[0].flatten(), lambda ours, _: [ours[None]])
"""A bias that is stored as a table of one row."""

_BLOCK: ModuleNames = {
    "attention.packed": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": "self_attn.out_proj", "attention_norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1", "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}  # fmt: skip
_CROSS: ModuleNames = {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}  # fmt: skip


class Bart(TwoStackFamily):
    """BART: both stacks as BERT, with positions and a norm of embeddings of their own."""

    name = "BART"
    model_type = "bart"
    base_model = "BartModel"
    prefix = "model"
    blocks = "layers"
    fields: ClassVar[Sequence[ConfigPart]] = (
        Field("width", "d_model"), Field("heads", "encoder_attention_heads"),
        WriteOnly("decoder_attention_heads", lambda shape: shape.heads),
        Field("feedforward", "encoder_ffn_dim"),
        WriteOnly("decoder_ffn_dim", lambda shape: shape.feedforward),
        Field("encoder_depth", "encoder_layers", to_theirs=lambda shape: shape.stacks[0].depth),
        Field("depth", "decoder_layers"), POSITIONS,
        Field("dropout", "dropout", 0.1), Field("attention_dropout", "attention_dropout", 0.0),
        ActivationField("activation_function", "gelu"),
        Field(
            "embedding_scale", "scale_embedding", default=False,
            to_ours=lambda scales, before: math.sqrt(before["width"]) if scales else 1.0,
            to_theirs=lambda shape: shape.embedding_scale != 1,
        ),
        WriteOnly("is_encoder_decoder", lambda _: True),
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        **TwoStackFamily.fixed, "residual": "post", "position_kind": "learned",
        "embedding_norm": True, "epsilon": 1e-5, "tie_output": True,
    }  # fmt: skip
    varies: ClassVar[Sequence[str]] = ("embedding_scale",)
    implied: ClassVar[Mapping[str, Any]] = {"output_bias": True}
    required: ClassVar[Mapping[str, Any]] = {
        "tie_word_embeddings": True, "normalize_before": False, "normalize_embedding": True,
        "add_final_layer_norm": False, "static_position_embeddings": False,
    }  # fmt: skip
    stack_modules: ClassVar[ModuleNames] = {
        "position_embedding": "embed_positions", "embedding_norm": "layernorm_embedding",
    }  # fmt: skip

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        for part, ours in (("attention_heads", "heads"), ("ffn_dim", "feedforward")):
            settings.require(f"decoder_{part}", fields[ours])
        return fields

    def block_modules(self, shape: BackboneShape, *, decodes: bool) -> ModuleNames:
        return {**_BLOCK, **_CROSS} if decodes else _BLOCK

    def conversions(self, shape: BackboneShape) -> Mapping[str, Conversion]:
        """Return that the table of positions begins with two rows that no token uses."""
        return {"position_embedding.weight": skip_rows(2)}

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        bias = Rule("heads.lm.bias", ("final_logits_bias",), _ROW)
        return {LANGUAGE_MODEL: [*super().head_rules(shape)[LANGUAGE_MODEL], bias]}

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.embedding_scale not in (1.0, math.sqrt(shape.width)):
            wrong.append(f"embedding_scale={shape.embedding_scale:g}, not 1")
        return wrong


class MBart(Bart):
    """mBART: norms before sub-layers, and behind the last ones."""

    name = "mBART"
    model_type = "mbart"
    base_model = "MBartModel"
    fixed: ClassVar[Mapping[str, Any]] = {**Bart.fixed, "residual": "pre"}
    required: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": True}
    stack_modules: ClassVar[ModuleNames] = {**Bart.stack_modules, "final_norm": "layer_norm"}
