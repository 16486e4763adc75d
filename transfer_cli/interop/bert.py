"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ELECTRA (Clark et al. 2020).

They have the same encoder, and differ in positions, embeddings and heads.
"""

from collections.abc import Mapping
from dataclasses import replace
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
from transfer_cli.interop.rules import (
    Copied,
    FromRow,
    Rule,
    classifier_head,
    masked_lm_head,
    packed_attention,
    same,
)
from transfer_cli.model.backbone import BackboneShape

PAD = 1
"""RoBERTa's padding token."""

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

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier reads the pooler of the backbone."""
        found = {
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "BertForSequenceClassification",
                "text-classification",
                classifier_head("bert.pooler.dense", "classifier"),
            )
        }
        if shape.activation == "gelu":  # the head's activation is that of the blocks
            transform, output = "cls.predictions.transform", _output(shape, "cls.predictions")
            rules = masked_lm_head(f"{transform}.dense", f"{transform}.LayerNorm", output)
            found[LANGUAGE_MODEL] = PublishedHead("BertForMaskedLM", "fill-mask", rules)
        return found

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return a row of zeros for the segment that their embeddings always have."""
        row = torch.zeros(1, shape.embedding_size)
        return {} if shape.segments else {f"{_SEGMENTS}.weight": row}

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings."""
        table = same("backbone.position_embedding", "embeddings.position_embeddings", "weight")
        rules = [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            replace(table[0], conversion=FromRow(self.first_position)),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]
        if shape.segments:
            rules += same("backbone.segment_embedding", _SEGMENTS, "weight")
        return rules

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
    """RoBERTa: positions begin behind the padding token's number, the classifier has a pooler."""

    name = "RoBERTa"
    model_type = "roberta"
    base_model = "RobertaModel"
    prefix = "roberta"
    first_position = PAD + 1
    only: ClassVar[Mapping[str, Any]] = {"pad_token_id": PAD, **Bert.only}
    mask_lstrip = True

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.segments != 1:
            wrong.append(f"segments={shape.segments}, not 1")
        if (tokenizer.pad, tokenizer.pieces([tokenizer.cls])) != (PAD, ["<s>"]):
            wrong.append("a tokenizer without <s>")
        return wrong

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has a pooler of its own."""
        output = masked_lm_head("lm_head.dense", "lm_head.layer_norm", _output(shape, "lm_head"))
        return {
            LANGUAGE_MODEL: PublishedHead("RobertaForMaskedLM", "fill-mask", output),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "RobertaForSequenceClassification", "text-classification", _two_layers()
            ),
        }


class Electra(Bert):
    """ELECTRA: narrower embeddings, a classifier with GELU and a pooler of its own."""

    name = "ELECTRA"
    model_type = "electra"
    base_model = "ElectraModel"
    prefix = "electra"
    fixed: ClassVar[Mapping[str, Any]] = {
        key: value for key, value in Bert.fixed.items() if key != "embedding_width"
    }
    pooler_activation = "gelu"
    bare_pooler = ""

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
        """Return its heads; that of the language model is the generator's."""
        last = same(
            "heads.lm", "generator_lm_head", "bias", *(() if shape.tie_output else ("weight",))
        )
        transform = "generator_predictions"
        output = masked_lm_head(f"{transform}.dense", f"{transform}.LayerNorm", last)
        return {
            LANGUAGE_MODEL: PublishedHead("ElectraForMaskedLM", "fill-mask", output),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                "ElectraForSequenceClassification", "text-classification", _two_layers()
            ),
        }


def _two_layers() -> list[Rule]:
    return classifier_head("classifier.dense", "classifier.out_proj")


def _output(shape: BackboneShape, theirs: str) -> list[Rule]:
    """Return the rules of a language model's last layer; if it is not tied, it has two biases."""
    if shape.tie_output:
        return same("heads.lm", theirs, "bias")
    biases = (f"{theirs}.decoder.bias", f"{theirs}.bias")
    return [
        *same("heads.lm", f"{theirs}.decoder", "weight"),
        Rule("heads.lm.bias", biases, Copied(len(biases))),
    ]
