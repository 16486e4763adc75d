"""GPT-2 (Radford et al. 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.interop.family import ACTIVATIONS, Architectures, Family, activation_there
from transfer_cli.interop.rules import Rule, Transposed, same
from transfer_cli.interop.settings import Settings
from transfer_cli.model.backbone import BackboneShape


class Gpt2(Family):
    """GPT-2: causal, pre-norm, one matrix for queries, keys and values, stored turned."""

    name = "GPT-2"
    model_type = "gpt2"
    prefix = "transformer"
    architectures = Architectures("GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification")
    keys: ClassVar[Mapping[str, str]] = {
        "width": "n_embd", "heads": "n_head", "depth": "n_layer", "positions": "n_positions",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre", "direction": "causal", "position_kind": "learned",
        "embedding_norm": False, "embedding_width": None, "segments": 0,
    }  # fmt: skip
    pooling = "cls_last"

    def shape(self, settings: Settings) -> BackboneShape:
        """Return the shape that a config describes."""
        settings.only("add_cross_attention", value=False)
        settings.only("scale_attn_weights", value=True)
        settings.only("scale_attn_by_inverse_layer_idx", value=False)
        sizes = self.sizes(settings)
        return BackboneShape(
            **sizes,
            feedforward=settings.number("n_inner", 4 * sizes["width"]),
            dropout=settings.fraction("resid_pdrop", 0.1),
            attention_dropout=settings.fraction("attn_pdrop", 0.1),
            activation=settings.one_of("activation_function", ACTIVATIONS, "gelu_new"),  # type: ignore[arg-type]
            residual="pre",
            direction="causal",
            output_bias=False,
            tie_output=settings.truth("tie_word_embeddings", otherwise=True),
            epsilon=settings.fraction("layer_norm_epsilon", 1e-5),
        )

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **self.sizes_there(shape),
            "n_inner": shape.feedforward,
            "resid_pdrop": shape.dropout,
            "embd_pdrop": shape.dropout,
            "attn_pdrop": shape.attention_dropout,
            "activation_function": activation_there(shape),
            "layer_norm_epsilon": shape.epsilon,
            "tie_word_embeddings": shape.tie_output,
        }

    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone."""
        rules = [
            *same("backbone.token_embedding", "wte", "weight"),
            *same("backbone.position_embedding", "wpe", "weight"),
            *same("backbone.final_norm", "ln_f"),
        ]
        for number in range(shape.depth):
            rules += _block(f"backbone.blocks.{number}", f"h.{number}")
        return rules

    def language_model(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the head: none where the token embedding is its matrix."""
        return [] if shape.tie_output else same("heads.lm", "lm_head", "weight")

    def pooler(self, *, of_classifier: bool) -> list[Rule]:
        """Return nothing: there is none."""
        return []

    def classifier(self) -> list[Rule]:
        """Return the rule of its matrix; it has no bias."""
        return same("heads.class.linear", "score", "weight")


def _block(ours: str, theirs: str) -> list[Rule]:
    rules = [
        *same(f"{ours}.attention_norm", f"{theirs}.ln_1"),
        *same(f"{ours}.feed_forward_norm", f"{theirs}.ln_2"),
    ]
    products = {
        "attention.packed": "attn.c_attn", "attention.output": "attn.c_proj",
        "feed_forward.inner": "mlp.c_fc", "feed_forward.output": "mlp.c_proj",
    }  # fmt: skip
    for here, there in products.items():
        rules += [
            Rule(f"{ours}.{here}.weight", (f"{theirs}.{there}.weight",), Transposed()),
            Rule(f"{ours}.{here}.bias", (f"{theirs}.{there}.bias",)),
        ]
    return rules
