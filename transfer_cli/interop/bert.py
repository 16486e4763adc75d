"""BERT and its relatives: the same encoder with other positions, embeddings and heads.

Sources: Devlin et al. 2019 (BERT), Liu et al. 2019 (RoBERTa), Conneau et al. 2020 (XLM-R), Clark et
al. 2020 (ELECTRA), Lan et al. 2020 (ALBERT), Song et al. 2020 (MPNet), Sanh et al. 2019
(DistilBERT).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    MULTIPLE_CHOICE,
    PRETRAINING,
    QUESTION_ANSWERING,
    REPLACED_TOKENS,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    USUAL_KEYS,
    Family,
    PublishedHead,
    question_answering,
    token_classification,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Rule, from_row, packed_attention, same, with_prefix
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.positions import RelativeBias
from transfer_cli.model.shape import Activation

PAD = 1
"""RoBERTa's padding token."""

_SEGMENTS = "embeddings.token_type_embeddings"


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
    output: ClassVar[Mapping[str, bool]] = {"output_transform": True}
    lm_head: ClassVar[tuple[str, str, str]]
    decoder: ClassVar[str] = ""
    is_gelu_head: ClassVar[bool] = False
    classifier: ClassVar[tuple[str, str]]
    choice: ClassVar[tuple[str, str]]
    pair: ClassVar[tuple[str, str] | None] = None

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads."""
        stem = self.base_model.removesuffix("Model")
        found = {
            SEQUENCE_CLASSIFICATION: PublishedHead(
                f"{stem}ForSequenceClassification",
                "text-classification",
                _judge("class", *self.classifier),
            ),
            MULTIPLE_CHOICE: PublishedHead(
                f"{stem}ForMultipleChoice", "multiple-choice", _judge("class", *self.choice)
            ),
            QUESTION_ANSWERING: question_answering(stem),
            TOKEN_CLASSIFICATION: token_classification(stem),
        }
        if shape.output_activation == self.output_activation(shape.activation):
            rules = self._language_model(shape)
            found[LANGUAGE_MODEL] = PublishedHead(f"{stem}ForMaskedLM", "fill-mask", rules)
            if self.pair is not None:
                rules = [*rules, *_judge("pair", *self.pair)]
                found[PRETRAINING] = PublishedHead(f"{stem}ForPreTraining", "fill-mask", rules)
        return found

    def output_activation(self, activation: Activation) -> Activation:
        """Return the activation of its language model's head, by that of its blocks."""
        return "gelu" if self.is_gelu_head else activation

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        return {**found, "output_activation": self.output_activation(found["activation"])}

    def _language_model(self, shape: BackboneShape) -> list[Rule]:
        transform, norm, last = self.lm_head
        rules = [*same("heads.lm.transform", transform), *same("heads.lm.norm", norm)]
        if shape.tie_output:
            return [*rules, *same("heads.lm", last, "bias")]
        if not self.decoder:
            return [*rules, *same("heads.lm", last)]
        decoder = f"{last}.{self.decoder}"
        biases = Rule("heads.lm.bias", (f"{decoder}.bias", f"{last}.bias"))
        return [*rules, *same("heads.lm", decoder, "weight"), biases]


def _judge(head: str, pooler: str, linear: str) -> list[Rule]:
    return [*same("heads.pooler.linear", pooler), *same(f"heads.{head}.linear", linear)]


class Bert(EncoderFamily):
    """BERT, whose classifier reads the pooler of the backbone."""

    name = "BERT"
    model_type = "bert"
    base_model = "BertModel"
    prefix = "bert"
    blocks = "encoder.layer"
    keys: ClassVar[Mapping[str, str]] = USUAL_KEYS
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "activation": ("hidden_act", "gelu"),
        "segments": ("type_vocab_size", 2),
        "epsilon": ("layer_norm_eps", 1e-12),
        "tie_output": ("tie_word_embeddings", True),
    }
    only: ClassVar[Mapping[str, Any]] = {
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

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        return {**found, "positions": found["positions"] - self.first_position}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape; their models have at least one segment."""
        rows, segments = shape.positions + self.first_position, max(1, shape.segments)
        found = super().config(shape)
        return {**found, "max_position_embeddings": rows, "type_vocab_size": segments}

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return a row of zeros for the segment that their embeddings always have."""
        row = torch.zeros(1, shape.embedding_size)
        return {} if shape.segments else {f"{_SEGMENTS}.weight": row}

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        table = same("backbone.position_embedding", "embeddings.position_embeddings", "weight")
        rules = [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            replace(table[0], conversion=from_row(self.first_position)),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]
        if shape.segments:
            rules += same("backbone.segment_embedding", _SEGMENTS, "weight")
        return rules

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        attention = "attention.self"
        return [
            *packed_attention(f"{attention}.query", f"{attention}.key", f"{attention}.value"),
            *same("attention.output", "attention.output.dense"),
            *same("attention_norm", "attention.output.LayerNorm"),
            *same("feed_forward.inner", "intermediate.dense"),
            *same("feed_forward.output", "output.dense"),
            *same("feed_forward_norm", "output.LayerNorm"),
        ]


class Roberta(Bert):
    """RoBERTa: positions begin behind the padding token's number, the classifier has a pooler."""

    name = "RoBERTa"
    model_type = "roberta"
    base_model = "RobertaModel"
    prefix = "roberta"
    first_position = PAD + 1
    only: ClassVar[Mapping[str, Any]] = {"pad_token_id": PAD, **Bert.only}
    lm_head = ("lm_head.dense", "lm_head.layer_norm", "lm_head")
    is_gelu_head = True
    pair = None
    classifier = ("classifier.dense", "classifier.out_proj")
    choice = ("roberta.pooler.dense", "classifier")
    mask_lstrip = True

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
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

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads, that of the discriminator among them."""
        rules = [
            *same("heads.discriminator.dense", "discriminator_predictions.dense"),
            *same("heads.discriminator.linear", "discriminator_predictions.dense_prediction"),
        ]
        own = PublishedHead("ElectraForPreTraining", "feature-extraction", rules)
        return {**super().heads(shape), REPLACED_TOKENS: own}

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        size = settings.value("embedding_size", 128, int)
        return {**found, "embedding_width": None if size == found["width"] else size}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {**super().config(shape), "embedding_size": shape.embedding_size}

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        rules = super().outside_blocks(shape)
        if shape.embedding_size != shape.width:
            rules += same("backbone.embedding_projection", "embeddings_project")
        return rules


class Albert(Bert):
    """ALBERT: blocks that share their weights, narrow embeddings."""

    name = "ALBERT"
    model_type = "albert"
    base_model = "AlbertModel"
    prefix = "albert"
    blocks = "encoder.albert_layer_groups"
    fixed: ClassVar[Mapping[str, Any]] = {**Electra.fixed, "tie_output": True}
    varies = ("share",)
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
        "activation": ("hidden_act", "gelu_new"),
        "segments": ("type_vocab_size", 2),
        "epsilon": ("layer_norm_eps", 1e-12),
    }
    only: ClassVar[Mapping[str, Any]] = {
        **Bert.only, "inner_group_num": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    lm_head = ("predictions.dense", "predictions.LayerNorm", "predictions")
    classifier = choice = ("albert.pooler", "classifier")
    pair = ("albert.pooler", "sop_classifier.classifier")
    bare_pooler = "pooler"

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        size = settings.value("embedding_size", 128, int)
        if size == found["width"]:
            raise settings.wrong("embedding_size", "another number than hidden_size")
        groups = settings.value("num_hidden_groups", 1, int)
        share = {1: "all", found["depth"]: "none"}.get(groups, groups)
        return {**found, "embedding_width": size, "share": share}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **super().config(shape),
            "embedding_size": shape.embedding_size,
            "num_hidden_groups": shape.distinct_blocks,
            "inner_group_num": 1,
        }

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.embedding_size == shape.width:
            wrong.append("embedding_width=null, not less than width")
        return wrong

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        mapping = same("backbone.embedding_projection", "encoder.embedding_hidden_mapping_in")
        return [*super().outside_blocks(shape), *mapping]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        attention = "attention"
        rules = [
            *packed_attention(f"{attention}.query", f"{attention}.key", f"{attention}.value"),
            *same("attention.output", f"{attention}.dense"),
            *same("attention_norm", f"{attention}.LayerNorm"),
            *same("feed_forward.inner", "ffn"),
            *same("feed_forward.output", "ffn_output"),
            *same("feed_forward_norm", "full_layer_layer_norm"),
        ]
        return with_prefix(rules, "albert_layers.0.")


class MPNet(Roberta):
    """MPNet (Song et al. 2020): no segments, and a bias of the scores for each distance."""

    name = "MPNet"
    model_type = "mpnet"
    base_model = "MPNetModel"
    prefix = "mpnet"
    fixed: ClassVar[Mapping[str, Any]] = {
        **Roberta.fixed, "position_kind": "relative_bias", "segments": 0,
    }  # fmt: skip
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        ours: there for ours, there in Roberta.options.items() if ours != "segments"
    }
    only: ClassVar[Mapping[str, Any]] = {
        "pad_token_id": PAD, "relative_attention_num_buckets": RelativeBias.ranges,
    }  # fmt: skip
    choice = ("mpnet.pooler.dense", "classifier")

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        found = super().config(shape)
        return {**found, "relative_attention_num_buckets": RelativeBias.ranges}

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings and the biases."""
        biases = same(
            "backbone.position_embedding.bias", "encoder.relative_attention_bias", "weight"
        )
        return [*super().outside_blocks(shape), *biases]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        there = "attention.attn"
        return [
            *packed_attention(f"{there}.q", f"{there}.k", f"{there}.v"),
            *same("attention.output", f"{there}.o"),
            *same("attention_norm", "attention.LayerNorm"),
            *same("feed_forward.inner", "intermediate.dense"),
            *same("feed_forward.output", "output.dense"),
            *same("feed_forward_norm", "output.LayerNorm"),
        ]


class DistilBert(EncoderFamily):
    """DistilBERT: half of the blocks, no segments, other names."""

    name = "DistilBERT"
    model_type = "distilbert"
    base_model = "DistilBertModel"
    prefix = "distilbert"
    blocks = "transformer.layer"
    keys: ClassVar[Mapping[str, str]] = {
        "width": "dim", "heads": "n_heads", "depth": "n_layers", "feedforward": "hidden_dim",
        "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {**EncoderFamily.fixed, "segments": 0, "epsilon": 1e-12}
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "activation": ("activation", "gelu"),
        "tie_output": ("tie_word_embeddings", True),
    }
    lm_head = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
    classifier = choice = ("pre_classifier", "classifier")
    pooler_activation = "relu"

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {**super().config(shape), "sinusoidal_pos_embds": False}

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        return [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            *same("backbone.position_embedding", "embeddings.position_embeddings", "weight"),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        return [
            *packed_attention("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            *same("attention.output", "attention.out_lin"),
            *same("attention_norm", "sa_layer_norm"),
            *same("feed_forward.inner", "ffn.lin1"),
            *same("feed_forward.output", "ffn.lin2"),
            *same("feed_forward_norm", "output_layer_norm"),
        ]
