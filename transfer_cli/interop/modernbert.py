"""ModernBERT (Warner et al. 2024): windows, rotary positions, gated layers, no biases."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.angles import TwoKinds
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    MULTIPLE_CHOICE,
    POSITIONS,
    SEQUENCE_CLASSIFICATION,
    SIZES,
    ActivationField,
    Family,
    Field,
    ModuleNames,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Rule, same
from transfer_cli.model.shape import BackboneShape

_ANGLES = TwoKinds(
    ("global_rope_theta", "local_rope_theta"), (160_000.0, 10_000.0),
    every="global_attn_every_n_layers", common=3, first=True,
)  # fmt: skip


class ModernBert(Family):
    """Its classifier's pooler has the form of the language model's head, and takes it over.

    There are several dropouts, all 0 in what was published; ours is not written. Its heads for each
    token have that layer, too, and ours have not: they are neither read nor written.
    """

    name = "ModernBERT"
    model_type = "modernbert"
    base_model = "ModernBertModel"
    prefix = "model"
    blocks = "layers"
    fields = (
        *SIZES, POSITIONS, Field("window", "local_attention"),
        Field("attention_dropout", "attention_dropout", 0.0),
        ActivationField("hidden_activation", "gelu"),
        Field("epsilon", "norm_eps", 1e-5),
        Field("tie_output", "tie_word_embeddings", default=True),
        Field("output_bias", "decoder_bias", default=True),
        _ANGLES,
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre_first_plain", "direction": "bidirectional", "position_kind": "rotary",
        "norm": "layer_no_bias", "feedforward_kind": "gated", "biases": "none",
        "attention": "window", "embedding_norm": True, "embedding_width": None,
        "segments": 0,
    }  # fmt: skip
    unsaid: ClassVar[Mapping[str, Any]] = {"output_transform": True, "dropout": 0.0}
    only: ClassVar[Mapping[str, Any]] = {
        "attention_bias": False, "mlp_bias": False, "norm_bias": False, "classifier_bias": False,
        "classifier_activation": "gelu",
    }  # fmt: skip
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_first": "cls", "mean": "mean"}
    pooler_activation = "gelu_norm"
    mask_lstrip = True

    outside: ClassVar[ModuleNames] = {
        "token_embedding": "embeddings.tok_embeddings", "embedding_norm": "embeddings.norm",
        "final_norm": "final_norm",
    }  # fmt: skip
    inside: ClassVar[ModuleNames] = {
        "attention_norm": "attn_norm", "attention.packed": "attn.Wqkv",
        "attention.output": "attn.Wo", "feed_forward_norm": "mlp_norm",
        "feed_forward.inner": "mlp.Wi", "feed_forward.output": "mlp.Wo",
    }  # fmt: skip

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        if found["rotary"].scaling is not None:
            raise settings.wrong("rope_parameters", "no scaling")
        return found

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.rotary.scaling is not None or shape.rotary.share != 1:
            wrong.append("rotary positions with a scaling or a share")
        return wrong

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        """Return the rules of its heads."""
        output = [
            *same("heads.lm.transform", "head.dense", "weight"),
            *same("heads.lm.norm", "head.norm", "weight"),
        ]
        if shape.output_bias:
            output += same("heads.lm", "decoder", "bias")
        if not shape.tie_output:
            output += same("heads.lm", "decoder", "weight")
        classifier = [
            *same("heads.pooler.linear", "head.dense", "weight"),
            *same("heads.pooler.norm", "head.norm", "weight"),
            *same("heads.class.linear", "classifier"),
        ]
        return {
            LANGUAGE_MODEL: output,
            SEQUENCE_CLASSIFICATION: classifier,
            MULTIPLE_CHOICE: classifier,
        }
