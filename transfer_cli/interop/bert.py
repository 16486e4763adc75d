"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ELECTRA (Clark et al. 2020).

The three have one encoder under other names; they differ in positions, embeddings and heads.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.family import ACTIVATIONS, Architectures, Family, activation_there
from transfer_cli.interop.rules import Copied, FromRow, Rule, Stacked, same
from transfer_cli.interop.settings import Settings
from transfer_cli.model.backbone import BackboneShape

PAD = 1
"""RoBERTa's padding token."""

ROBERTA_FIRST_POSITION = PAD + 1
"""Its positions are counted on from that number."""


class Bert(Family):
    """BERT."""

    name = "BERT"
    model_type = "bert"
    prefix = "bert"
    architectures = Architectures("BertModel", "BertForMaskedLM", "BertForSequenceClassification")
    keys: ClassVar[Mapping[str, str]] = {
        "width": "hidden_size", "heads": "num_attention_heads", "depth": "num_hidden_layers",
        "feedforward": "intermediate_size", "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "post", "direction": "bidirectional", "position_kind": "learned",
        "embedding_norm": True, "embedding_width": None,
    }  # fmt: skip
    pooler_activation = "tanh"

    def shape(self, settings: Settings) -> BackboneShape:
        """Return the shape that a config describes."""
        return BackboneShape(**self.shape_fields(settings))

    def shape_fields(self, settings: Settings) -> dict[str, Any]:
        """Return the fields of the shape, of a config that asks for nothing else."""
        settings.only("position_embedding_type", "absolute")
        settings.only("is_decoder", value=False)
        settings.only("add_cross_attention", value=False)
        return {
            **self.sizes(settings),
            "dropout": settings.fraction("hidden_dropout_prob", 0.1),
            "attention_dropout": settings.fraction("attention_probs_dropout_prob", 0.1),
            "activation": settings.one_of("hidden_act", ACTIVATIONS, "gelu"),
            "residual": "post",
            "direction": "bidirectional",
            "embedding_norm": True,
            "output_transform": True,
            "tie_output": settings.truth("tie_word_embeddings", otherwise=True),
            "segments": settings.number("type_vocab_size", 2),
            "epsilon": settings.fraction("layer_norm_eps", 1e-12),
            "pooler": self.pooler_activation,
        }

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **self.sizes_there(shape),
            "hidden_dropout_prob": shape.dropout,
            "attention_probs_dropout_prob": shape.attention_dropout,
            "hidden_act": activation_there(shape),
            "type_vocab_size": max(1, shape.segments),
            "layer_norm_eps": shape.epsilon,
            "tie_word_embeddings": shape.tie_output,
        }

    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone."""
        rules = [
            *same("backbone.token_embedding", "embeddings.word_embeddings", "weight"),
            self.positions(),
            *same("backbone.embedding_norm", "embeddings.LayerNorm"),
        ]
        if shape.segments:
            rules += same(
                "backbone.segment_embedding", "embeddings.token_type_embeddings", "weight"
            )
        for number in range(shape.depth):
            rules += self._block(f"backbone.blocks.{number}", f"encoder.layer.{number}")
        return rules

    def positions(self) -> Rule:
        """Return the rule of the position table."""
        return Rule(
            "backbone.position_embedding.weight", ("embeddings.position_embeddings.weight",)
        )

    def _block(self, ours: str, theirs: str) -> list[Rule]:
        attention = f"{theirs}.attention"
        return [
            *(
                Rule(
                    f"{ours}.attention.packed.{kind}",
                    tuple(f"{attention}.self.{part}.{kind}" for part in ("query", "key", "value")),
                    Stacked(3),
                )
                for kind in ("weight", "bias")
            ),
            *same(f"{ours}.attention.output", f"{attention}.output.dense"),
            *same(f"{ours}.attention_norm", f"{attention}.output.LayerNorm"),
            *same(f"{ours}.feed_forward.inner", f"{theirs}.intermediate.dense"),
            *same(f"{ours}.feed_forward.output", f"{theirs}.output.dense"),
            *same(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm"),
        ]

    def language_model(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the head that restores hidden tokens."""
        if shape.activation != "gelu":  # there it is the head's, too
            return []
        rules = [
            *same("heads.lm.transform", "cls.predictions.transform.dense"),
            *same("heads.lm.norm", "cls.predictions.transform.LayerNorm"),
        ]
        return rules + _output(shape, "cls.predictions")

    def pooler(self, *, of_classifier: bool) -> list[Rule]:
        """Return the rules of the pooler, which every BERT may have."""
        return same("heads.pooler.linear", f"{self.prefix}.pooler.dense")

    def classifier(self) -> list[Rule]:
        """Return the rules of the layer after the pooler."""
        return same("heads.class.linear", "classifier")


class Roberta(Bert):
    """RoBERTa: other positions, another vocabulary, a pooler that belongs to the classifier."""

    name = "RoBERTa"
    model_type = "roberta"
    prefix = "roberta"
    architectures = Architectures(
        "RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"
    )

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no RoBERTa has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.segments != 1:
            wrong.append(f"segments={shape.segments}, not 1")
        if (tokenizer.pad, tokenizer.pieces([tokenizer.cls])) != (PAD, ["<s>"]):
            wrong.append("a tokenizer without <s>")
        return wrong

    def shape(self, settings: Settings) -> BackboneShape:
        """Return the shape that a config describes."""
        settings.only("pad_token_id", PAD)
        found = self.shape_fields(settings)
        return BackboneShape(**{**found, "positions": found["positions"] - ROBERTA_FIRST_POSITION})

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        rows = shape.positions + ROBERTA_FIRST_POSITION
        return {**super().config(shape), "max_position_embeddings": rows}

    def positions(self) -> Rule:
        """Return the rule of the position table."""
        rule = super().positions()
        return Rule(rule.ours, rule.theirs, FromRow(ROBERTA_FIRST_POSITION))

    def language_model(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the head that restores hidden tokens."""
        rules = [
            *same("heads.lm.transform", "lm_head.dense"),
            *same("heads.lm.norm", "lm_head.layer_norm"),
        ]
        return rules + _output(shape, "lm_head")

    def pooler(self, *, of_classifier: bool) -> list[Rule]:
        """Return the rules of the pooler."""
        theirs = "classifier.dense" if of_classifier else f"{self.prefix}.pooler.dense"
        return same("heads.pooler.linear", theirs)

    def classifier(self) -> list[Rule]:
        """Return the rules of the layer after the pooler."""
        return same("heads.class.linear", "classifier.out_proj")


class Electra(Bert):
    """ELECTRA: embeddings of a width of their own, a classifier with GELU."""

    name = "ELECTRA"
    model_type = "electra"
    prefix = "electra"
    architectures = Architectures(
        "ElectraModel", "ElectraForMaskedLM", "ElectraForSequenceClassification"
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        key: value for key, value in Bert.fixed.items() if key != "embedding_width"
    }
    pooler_activation = "gelu"

    def shape_fields(self, settings: Settings) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        size = settings.number("embedding_size", 128)
        return {**found, "embedding_width": None if size == found["width"] else size}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {**super().config(shape), "embedding_size": shape.embedding_size}

    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone."""
        rules = super().backbone(shape)
        if shape.embedding_size != shape.width:
            rules += same("backbone.embedding_projection", "embeddings_project")
        return rules

    def language_model(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the generator's head."""
        rules = [
            *same("heads.lm.transform", "generator_predictions.dense"),
            *same("heads.lm.norm", "generator_predictions.LayerNorm"),
            *same("heads.lm", "generator_lm_head", "bias"),
        ]
        if not shape.tie_output:
            rules += same("heads.lm", "generator_lm_head", "weight")
        return rules

    def pooler(self, *, of_classifier: bool) -> list[Rule]:
        """Return the rules of the classifier's first layer."""
        return same("heads.pooler.linear", "classifier.dense") if of_classifier else []

    def classifier(self) -> list[Rule]:
        """Return the rules of its second layer."""
        return same("heads.class.linear", "classifier.out_proj")


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
