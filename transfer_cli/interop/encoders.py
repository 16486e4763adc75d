"""BERT and its relatives, the same encoder with other positions, embeddings and heads; ModernBERT.

Sources: Devlin et al. 2019 (BERT), Liu et al. 2019 (RoBERTa), Conneau et al. 2020 (XLM-R), Clark et
al. 2020 (ELECTRA), Lan et al. 2020 (ALBERT), Song et al. 2020 (MPNet), Sanh et al. 2019
(DistilBERT).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.angles import TwoKinds
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    MULTIPLE_CHOICE,
    POSITIONS,
    PRETRAINING,
    REPLACED_TOKENS,
    SEQUENCE_CLASSIFICATION,
    SIZES,
    ActivationField,
    ConfigPart,
    Family,
    Field,
    ModuleNames,
    WriteOnly,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Conversion, Rule, copy_rules, skip_rows
from transfer_cli.model.positions import RelativeBias
from transfer_cli.model.shape import Activation, BackboneShape

PAD = 1
"""RoBERTa's padding token."""

_EMBEDDINGS: ModuleNames = {
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
_SEGMENTS = Field("segments", "type_vocab_size", 2, to_theirs=lambda shape: max(1, shape.segments))
"""Their models have at least one."""
_EMBEDDING_WIDTH = Field(
    "embedding_width", "embedding_size", 128,
    lambda size, before: None if size == before["width"] else size,
    lambda shape: shape.embedding_size,
)  # fmt: skip
_OPTIONS: tuple[ConfigPart, ...] = (
    Field("dropout", "hidden_dropout_prob", 0.1),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.1),
    ActivationField("hidden_act", "gelu"),
    Field("epsilon", "layer_norm_eps", 1e-12),
    Field("tie_output", "tie_word_embeddings", default=True),
)
_ROBERTA_POSITIONS = Field(
    "positions", "max_position_embeddings",
    to_ours=lambda rows, _: rows - PAD - 1, to_theirs=lambda shape: shape.positions + PAD + 1,
)  # fmt: skip


class EncoderFamily(Family):
    """Their heads: a masked language model with a transform, classifiers with a pooler.

    Attributes:
        lm_head: The layer, the norm and the output layer of the language model.
        decoder: The part of that output layer with the matrix and a second bias; "": it has none.
        is_gelu_head: Whether the language model has GELU whatever the activation of the blocks.
        classifier: The pooler and the last layer of the classifier.
        choice: The same of the one that gives each choice a number.
        pair: The same of the one that says whether two texts belong together; none in most.
    """

    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "post", "direction": "bidirectional", "position_kind": "learned",
        "embedding_norm": True, "embedding_width": None,
    }  # fmt: skip
    implied: ClassVar[Mapping[str, Any]] = {"output_transform": True}
    has_token_heads = True
    lm_head: ClassVar[tuple[str, str, str]]
    decoder: ClassVar[str] = ""
    is_gelu_head: ClassVar[bool] = False
    classifier: ClassVar[tuple[str, str]]
    choice: ClassVar[tuple[str, str]]
    pair: ClassVar[tuple[str, str] | None] = None

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        rules: dict[str, Sequence[Rule]] = {
            SEQUENCE_CLASSIFICATION: _judge("class", *self.classifier),
            MULTIPLE_CHOICE: _judge("class", *self.choice),
        }
        if shape.output_activation == self.output_activation(shape.activation):
            rules[LANGUAGE_MODEL] = self._language_model(shape)
            if self.pair is not None:
                rules[PRETRAINING] = [*rules[LANGUAGE_MODEL], *_judge("pair", *self.pair)]
        return rules

    def output_activation(self, activation: Activation) -> Activation:
        """Return the activation of its language model's head, by that of its blocks."""
        return "gelu" if self.is_gelu_head else activation

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        return {**fields, "output_activation": self.output_activation(fields["activation"])}

    def _language_model(self, shape: BackboneShape) -> list[Rule]:
        transform, norm, last = self.lm_head
        rules = [*copy_rules("heads.lm.transform", transform), *copy_rules("heads.lm.norm", norm)]
        if shape.tie_output:
            return [*rules, *copy_rules("heads.lm", last, "bias")]
        if not self.decoder:
            return [*rules, *copy_rules("heads.lm", last)]
        decoder = f"{last}.{self.decoder}"
        biases = Rule("heads.lm.bias", (f"{decoder}.bias", f"{last}.bias"))
        return [*rules, *copy_rules("heads.lm", decoder, "weight"), biases]


def _judge(head: str, pooler: str, linear: str) -> list[Rule]:
    return [*copy_rules("heads.pooler.linear", pooler), *copy_rules(f"heads.{head}.linear", linear)]


class Bert(EncoderFamily):
    """BERT, whose classifier reads the pooler of the backbone."""

    name = "BERT"
    model_type = "bert"
    base_model = "BertModel"
    prefix = "bert"
    blocks = "encoder.layer"
    fields = (*SIZES, POSITIONS, *_OPTIONS, _SEGMENTS)
    required: ClassVar[Mapping[str, Any]] = {
        "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
    }  # fmt: skip
    lm_head = (
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions",
    )  # fmt: skip
    decoder = "decoder"
    classifier = choice = ("bert.pooler.dense", "classifier")
    pair: ClassVar[tuple[str, str] | None] = ("bert.pooler.dense", "cls.seq_relationship")
    pooler_activation = "tanh"
    bare_pooler = "pooler.dense"
    first_position: ClassVar[int] = 0
    """The row of the position table that belongs to the first token."""
    outside: ClassVar[ModuleNames] = {
        **_EMBEDDINGS, "segment_embedding": "embeddings.token_type_embeddings",
    }  # fmt: skip
    inside: ClassVar[ModuleNames] = {
        "attention.packed": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm", "feed_forward.inner": "intermediate.dense",
        "feed_forward.output": "output.dense", "feed_forward_norm": "output.LayerNorm",
    }  # fmt: skip

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return a row of zeros for the segment that their embeddings always have."""
        table = self.outside.get("segment_embedding")
        row = torch.zeros(1, shape.embedding_size)
        return {} if shape.segments or table is None else {f"{table}.weight": row}

    def conversions(self, shape: BackboneShape) -> Mapping[str, Conversion]:
        """Return that the table of positions may begin with rows that no token uses."""
        return {"backbone.position_embedding.weight": skip_rows(self.first_position)}


class Roberta(Bert):
    """RoBERTa: positions begin behind the padding token's number, the classifier has a pooler."""

    name = "RoBERTa"
    model_type = "roberta"
    base_model = "RobertaModel"
    prefix = "roberta"
    fields = (*SIZES, _ROBERTA_POSITIONS, *_OPTIONS, _SEGMENTS)
    first_position = PAD + 1
    required: ClassVar[Mapping[str, Any]] = {"pad_token_id": PAD, **Bert.required}
    lm_head = ("lm_head.dense", "lm_head.layer_norm", "lm_head")
    is_gelu_head = True
    pair = None
    classifier = ("classifier.dense", "classifier.out_proj")
    choice = ("roberta.pooler.dense", "classifier")
    mask_lstrip = True

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if "segments" not in self.fixed and shape.segments != 1:
            wrong.append(f"segments={shape.segments}, not 1")
        if (tokenizer.pad, tokenizer.pieces([tokenizer.cls])) != (PAD, ["<s>"]):
            wrong.append("a tokenizer without <s>")
        return wrong


class XlmRoberta(Roberta):
    """XLM-R (Conneau et al. 2020): a RoBERTa with sentence pieces of a hundred languages."""

    name = "XLM-R"
    model_type = "xlm-roberta"
    base_model = "XLMRobertaModel"


class Electra(Bert):
    """ELECTRA: narrower embeddings, the generator's language model, a classifier with a pooler."""

    name = "ELECTRA"
    model_type = "electra"
    base_model = "ElectraModel"
    prefix = "electra"
    fields = (*Bert.fields, _EMBEDDING_WIDTH)
    fixed: ClassVar[Mapping[str, Any]] = {
        key: value for key, value in Bert.fixed.items() if key != "embedding_width"
    }
    lm_head = (
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head",
    )  # fmt: skip
    decoder = ""
    is_gelu_head = True
    pair = None
    classifier = Roberta.classifier
    choice = ("sequence_summary.summary", "classifier")
    pooler_activation = "gelu"
    bare_pooler = ""
    outside: ClassVar[ModuleNames] = {
        **Bert.outside, "embedding_projection": "embeddings_project",
    }  # fmt: skip

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        """Return the rules of its heads, that of the discriminator among them."""
        judge = [
            *copy_rules("heads.discriminator.dense", "discriminator_predictions.dense"),
            *copy_rules("heads.discriminator.linear", "discriminator_predictions.dense_prediction"),
        ]
        return {**super().head_rules(shape), REPLACED_TOKENS: judge}


class Albert(Bert):
    """ALBERT: blocks that share their weights, narrow embeddings."""

    name = "ALBERT"
    model_type = "albert"
    base_model = "AlbertModel"
    prefix = "albert"
    blocks = "encoder.albert_layer_groups"
    block_prefix = "albert_layers.0."
    fields = (
        *SIZES, POSITIONS,
        Field("dropout", "hidden_dropout_prob", 0.0),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
        ActivationField("hidden_act", "gelu_new"),
        _SEGMENTS,
        Field("epsilon", "layer_norm_eps", 1e-12),
        _EMBEDDING_WIDTH,
        Field(
            "share", "num_hidden_groups", 1,
            lambda groups, before: {1: "all", before["depth"]: "none"}.get(groups, groups),
            lambda shape: shape.distinct_blocks,
        ),
        WriteOnly("inner_group_num", lambda _: 1),
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {**Electra.fixed, "tie_output": True}
    varies = ("share",)
    required: ClassVar[Mapping[str, Any]] = {
        **Bert.required, "inner_group_num": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    lm_head = ("predictions.dense", "predictions.LayerNorm", "predictions")
    classifier = choice = ("albert.pooler", "classifier")
    pair = ("albert.pooler", "sop_classifier.classifier")
    bare_pooler = "pooler"
    outside: ClassVar[ModuleNames] = {
        **Bert.outside, "embedding_projection": "encoder.embedding_hidden_mapping_in",
    }  # fmt: skip
    inside: ClassVar[ModuleNames] = {
        "attention.packed": ("attention.query", "attention.key", "attention.value"),
        "attention.output": "attention.dense", "attention_norm": "attention.LayerNorm",
        "feed_forward.inner": "ffn", "feed_forward.output": "ffn_output",
        "feed_forward_norm": "full_layer_layer_norm",
    }  # fmt: skip

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        if fields["embedding_width"] is None:
            raise settings.error("embedding_size", "another number than hidden_size")
        return fields

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.embedding_size == shape.width:
            wrong.append("embedding_width=null, not less than width")
        return wrong


class MPNet(Roberta):
    """MPNet (Song et al. 2020): no segments, and a bias of the scores for each distance."""

    name = "MPNet"
    model_type = "mpnet"
    base_model = "MPNetModel"
    prefix = "mpnet"
    fixed: ClassVar[Mapping[str, Any]] = {
        **Roberta.fixed, "position_kind": "relative_bias", "segments": 0,
    }  # fmt: skip
    fields = (
        *SIZES, _ROBERTA_POSITIONS, *_OPTIONS,
        WriteOnly("relative_attention_num_buckets", lambda _: RelativeBias.ranges),
    )  # fmt: skip
    required: ClassVar[Mapping[str, Any]] = {
        "pad_token_id": PAD, "relative_attention_num_buckets": RelativeBias.ranges,
    }  # fmt: skip
    choice = ("mpnet.pooler.dense", "classifier")
    outside: ClassVar[ModuleNames] = {
        **_EMBEDDINGS, "position_embedding.bias": "encoder.relative_attention_bias",
    }  # fmt: skip
    inside: ClassVar[ModuleNames] = {
        **Bert.inside,
        "attention.packed": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "attention.output": "attention.attn.o", "attention_norm": "attention.LayerNorm",
    }  # fmt: skip


class DistilBert(EncoderFamily):
    """DistilBERT: half of the blocks, no segments, other names."""

    name = "DistilBERT"
    model_type = "distilbert"
    base_model = "DistilBertModel"
    prefix = "distilbert"
    blocks = "transformer.layer"
    fields = (
        Field("width", "dim"), Field("heads", "n_heads"), Field("depth", "n_layers"),
        Field("feedforward", "hidden_dim"), POSITIONS,
        Field("dropout", "dropout", 0.1), Field("attention_dropout", "attention_dropout", 0.1),
        ActivationField("activation", "gelu"),
        Field("tie_output", "tie_word_embeddings", default=True),
        WriteOnly("sinusoidal_pos_embds", lambda _: False),
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {**EncoderFamily.fixed, "segments": 0, "epsilon": 1e-12}
    lm_head = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
    classifier = choice = ("pre_classifier", "classifier")
    pooler_activation = "relu"
    outside = _EMBEDDINGS
    inside: ClassVar[ModuleNames] = {
        "attention.packed": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.output": "attention.out_lin", "attention_norm": "sa_layer_norm",
        "feed_forward.inner": "ffn.lin1", "feed_forward.output": "ffn.lin2",
        "feed_forward_norm": "output_layer_norm",
    }  # fmt: skip


_ANGLES = TwoKinds(
    ("global_rope_theta", "local_rope_theta"), (160_000.0, 10_000.0),
    every_key="global_attn_every_n_layers", usual_every=3, global_first=True,
)  # fmt: skip


class ModernBert(Family):
    """ModernBERT (Warner et al. 2024): windows, rotary positions, gated layers, no biases.

    Its classifier's pooler has the form of the language model's head, and takes it over.

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
    implied: ClassVar[Mapping[str, Any]] = {"output_transform": True, "dropout": 0.0}
    required: ClassVar[Mapping[str, Any]] = {
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
        fields = super().shape_fields(settings)
        if fields["rotary"].scaling is not None:
            raise settings.error("rope_parameters", "no scaling")
        return fields

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.rotary.scaling is not None or shape.rotary.share != 1:
            wrong.append("rotary positions with a scaling or a share")
        return wrong

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        output = [
            *copy_rules("heads.lm.transform", "head.dense", "weight"),
            *copy_rules("heads.lm.norm", "head.norm", "weight"),
        ]
        if shape.output_bias:
            output += copy_rules("heads.lm", "decoder", "bias")
        if not shape.tie_output:
            output += copy_rules("heads.lm", "decoder", "weight")
        classifier = [
            *copy_rules("heads.pooler.linear", "head.dense", "weight"),
            *copy_rules("heads.pooler.norm", "head.norm", "weight"),
            *copy_rules("heads.class.linear", "classifier"),
        ]
        return {
            LANGUAGE_MODEL: output,
            SEQUENCE_CLASSIFICATION: classifier,
            MULTIPLE_CHOICE: classifier,
        }
