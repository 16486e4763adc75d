"""ModernBERT (Warner et al. 2024): windows, rotary positions, gated layers, no biases."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.angles import TwoKinds, window_config
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    MULTIPLE_CHOICE,
    SEQUENCE_CLASSIFICATION,
    USUAL_KEYS,
    Family,
    PublishedHead,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Rule, same
from transfer_cli.model.backbone import BackboneShape

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
    keys: ClassVar[Mapping[str, str]] = {**USUAL_KEYS, "window": "local_attention"}
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre_first_plain", "direction": "bidirectional", "position_kind": "rotary",
        "norm": "layer_no_bias", "feedforward_kind": "gated", "biases": "none",
        "attention": "window", "embedding_norm": True, "embedding_width": None,
        "segments": 0,
    }  # fmt: skip
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "attention_dropout": ("attention_dropout", 0.0),
        "activation": ("hidden_activation", "gelu"),
        "epsilon": ("norm_eps", 1e-5),
        "tie_output": ("tie_word_embeddings", True),
        "output_bias": ("decoder_bias", True),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_transform": True}
    only: ClassVar[Mapping[str, Any]] = {
        "attention_bias": False, "mlp_bias": False, "norm_bias": False, "classifier_bias": False,
        "classifier_activation": "gelu",
    }  # fmt: skip
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_first": "cls", "mean": "mean"}
    pooler_activation = "gelu_norm"
    mask_lstrip = True

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        order, rotary = _ANGLES.order_of(settings, found["depth"]), _ANGLES.rotary_of(settings)
        if rotary.scaling is not None:
            raise settings.wrong("rope_parameters", "no scaling")
        return {**found, **order, "dropout": 0.0, "rotary": rotary}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **super().config(shape), **window_config(shape), **_ANGLES.rotary_config(shape.rotary)
        }  # fmt: skip

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.rotary.scaling is not None or shape.rotary.share != 1:
            wrong.append("rotary positions with a scaling or a share")
        return wrong

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads."""
        rules = [
            *same("heads.lm.transform", "head.dense", "weight"),
            *same("heads.lm.norm", "head.norm", "weight"),
        ]
        if shape.output_bias:
            rules += same("heads.lm", "decoder", "bias")
        if not shape.tie_output:
            rules += same("heads.lm", "decoder", "weight")
        classifier = [
            *same("heads.pooler.linear", "head.dense", "weight"),
            *same("heads.pooler.norm", "head.norm", "weight"),
            *same("heads.class.linear", "classifier"),
        ]
        return {
            LANGUAGE_MODEL: PublishedHead("ModernBertForMaskedLM", "fill-mask", rules),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "ModernBertForSequenceClassification", "text-classification", classifier
            ),
            MULTIPLE_CHOICE: PublishedHead(
                "ModernBertForMultipleChoice", "multiple-choice", classifier
            ),
        }

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings, their norm and the last one."""
        return [
            *same("backbone.token_embedding", "embeddings.tok_embeddings", "weight"),
            *same("backbone.embedding_norm", "embeddings.norm", "weight"),
            *same("backbone.final_norm", "final_norm", "weight"),
        ]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        names = {
            "attention_norm": "attn_norm", "attention.packed": "attn.Wqkv",
            "attention.output": "attn.Wo", "feed_forward_norm": "mlp_norm",
            "feed_forward.inner": "mlp.Wi", "feed_forward.output": "mlp.Wo",
        }  # fmt: skip
        return [rule for ours, theirs in names.items() for rule in same(ours, theirs, "weight")]

    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone, whose first block has no norm before its attention."""
        rules = super().backbone(shape)
        return [rule for rule in rules if rule.ours != "backbone.blocks.0.attention_norm.weight"]
