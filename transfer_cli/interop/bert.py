"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ELECTRA (Clark et al. 2020).

The three have one encoder under other names; they differ in positions, embeddings and heads.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    SEQUENCE_CLASSIFICATION,
    Family,
    PublishedHead,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Copied, FromRow, Rule, packed_attention, same
from transfer_cli.model.backbone import BackboneShape

PAD = 1
"""RoBERTa's padding token."""

ROBERTA_FIRST_POSITION = PAD + 1
"""Its positions are counted on from that number."""

_SEGMENTS = "embeddings.token_type_embeddings"


class Bert(Family):
    """BERT."""

    name = "BERT"
    model_type = "bert"
    base_model = "BertModel"
    prefix = "bert"
    blocks = "encoder.layer"
    keys: ClassVar[Mapping[str, str]] = {
        "width": "hidden_size", "heads": "num_attention_heads", "depth": "num_hidden_layers",
        "feedforward": "intermediate_size", "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "post", "direction": "bidirectional", "position_kind": "learned",
        "embedding_norm": True, "embedding_width": None,
    }  # fmt: skip
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "activation": ("hidden_act", "gelu"),
        "segments": ("type_vocab_size", 2),
        "epsilon": ("layer_norm_eps", 1e-12),
        "tie_output": ("tie_word_embeddings", True),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_transform": True}
    only: ClassVar[Mapping[str, Any]] = {
        "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
    }  # fmt: skip
    pooler_activation = "tanh"

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape; their models have a segment at least."""
        return {**super().config(shape), "type_vocab_size": max(1, shape.segments)}

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier reads the pooler of the backbone."""
        transform = "cls.predictions.transform"
        output = [
            *same("heads.lm.transform", f"{transform}.dense"),
            *same("heads.lm.norm", f"{transform}.LayerNorm"),
            *_output(shape, "cls.predictions"),
        ]
        found = {
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "BertForSequenceClassification",
                "text-classification",
                [*self.pooler(), *same("heads.class.linear", "classifier")],
            )
        }
        if shape.activation == "gelu":  # there it is the head's, too
            found[LANGUAGE_MODEL] = PublishedHead("BertForMaskedLM", "fill-mask", output)
        return found

    def pooler(self) -> list[Rule]:
        """Return the rules of the pooler."""
        return same("heads.pooler.linear", f"{self.prefix}.pooler.dense")

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return a row of zeros for the one segment that their embeddings always have."""
        return (
            {} if shape.segments else {f"{_SEGMENTS}.weight": torch.zeros(1, shape.embedding_size)}
        )

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        rules = [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            self.positions(),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]
        if shape.segments:
            rules += same("backbone.segment_embedding", _SEGMENTS, "weight")
        return rules

    def positions(self) -> Rule:
        """Return the rule of the position table."""
        return Rule(
            "backbone.position_embedding.weight", ("embeddings.position_embeddings.weight",)
        )

    def block(self) -> list[Rule]:
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
    """RoBERTa: other positions, another vocabulary, a pooler that belongs to the classifier."""

    name = "RoBERTa"
    model_type = "roberta"
    base_model = "RobertaModel"
    prefix = "roberta"
    only: ClassVar[Mapping[str, Any]] = {"pad_token_id": PAD, **Bert.only}
    mask_lstrip = True

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no RoBERTa has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.segments != 1:
            wrong.append(f"segments={shape.segments}, not 1")
        if (tokenizer.pad, tokenizer.pieces([tokenizer.cls])) != (PAD, ["<s>"]):
            wrong.append("a tokenizer without <s>")
        return wrong

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        return {**found, "positions": found["positions"] - ROBERTA_FIRST_POSITION}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        rows = shape.positions + ROBERTA_FIRST_POSITION
        return {**super().config(shape), "max_position_embeddings": rows}

    def positions(self) -> Rule:
        """Return the rule of the position table."""
        rule = super().positions()
        return Rule(rule.ours, rule.theirs, FromRow(ROBERTA_FIRST_POSITION))

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has a pooler of its own."""
        return {
            LANGUAGE_MODEL: PublishedHead(
                "RobertaForMaskedLM",
                "fill-mask",
                [
                    *same("heads.lm.transform", "lm_head.dense"),
                    *same("heads.lm.norm", "lm_head.layer_norm"),
                    *_output(shape, "lm_head"),
                ],
            ),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "RobertaForSequenceClassification", "text-classification", _two_layers()
            ),
        }


class Electra(Bert):
    """ELECTRA: embeddings of a width of their own, a classifier with GELU."""

    name = "ELECTRA"
    model_type = "electra"
    base_model = "ElectraModel"
    prefix = "electra"
    fixed: ClassVar[Mapping[str, Any]] = {
        key: value for key, value in Bert.fixed.items() if key != "embedding_width"
    }
    pooler_activation = "gelu"

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        size = settings.number("embedding_size", 128)
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

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads, of which the language model's is the generator's."""
        output = [
            *same("heads.lm.transform", "generator_predictions.dense"),
            *same("heads.lm.norm", "generator_predictions.LayerNorm"),
            *same("heads.lm", "generator_lm_head", "bias"),
        ]
        if not shape.tie_output:
            output += same("heads.lm", "generator_lm_head", "weight")
        return {
            LANGUAGE_MODEL: PublishedHead("ElectraForMaskedLM", "fill-mask", output),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "ElectraForSequenceClassification", "text-classification", _two_layers()
            ),
        }

    def pooler(self) -> list[Rule]:
        """Return nothing: its classifier alone has one."""
        return []


def _two_layers() -> list[Rule]:
    """Return the rules of a classifier that brings its own pooler."""
    return [
        *same("heads.pooler.linear", "classifier.dense"),
        *same("heads.class.linear", "classifier.out_proj"),
    ]


def _output(shape: BackboneShape, theirs: str) -> list[Rule]:
    """Return the rules of the last layer of the language-model head.

    Its bias stands beside the layer; a layer that is not tied has it as its own, too.
    """
    if shape.tie_output:
        return same("heads.lm", theirs, "bias")
    biases = (f"{theirs}.decoder.bias", f"{theirs}.bias")
    return [
        *same("heads.lm", f"{theirs}.decoder", "weight"),
        Rule("heads.lm.bias", biases, Copied(len(biases))),
    ]
