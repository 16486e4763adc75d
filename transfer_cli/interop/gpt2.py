"""GPT-2 (Radford et al. 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transfer_cli.interop.family import Family, PublishedHead, causal_heads
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import TRANSPOSED, Rule, same
from transfer_cli.model.backbone import BackboneShape


class Gpt2(Family):
    """GPT-2: causal, pre-norm, one matrix for queries, keys and values, stored turned."""

    name = "GPT-2"
    model_type = "gpt2"
    base_model = "GPT2Model"
    prefix = "transformer"
    blocks = "h"
    keys: ClassVar[Mapping[str, str]] = {
        "width": "n_embd", "heads": "n_head", "depth": "n_layer", "positions": "n_positions",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre", "direction": "causal", "position_kind": "learned",
        "embedding_norm": False, "embedding_width": None, "segments": 0,
    }  # fmt: skip
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
        "activation": ("activation_function", "gelu_new"),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "tie_output": ("tie_word_embeddings", True),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_bias": False}
    only: ClassVar[Mapping[str, Any]] = {
        "add_cross_attention": False, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }  # fmt: skip
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_last": None}

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape; the norm on embeddings is left to `residual`."""
        found = super().shape_fields(settings)
        feedforward = settings.value("n_inner", 4 * found["width"], int)
        return {**found, "feedforward": feedforward, "embedding_norm": None}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        own = {"n_inner": shape.feedforward, "embd_pdrop": shape.dropout}
        return {**super().config(shape), **own}

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has no bias."""
        output = [] if shape.tie_output else same("heads.lm", "lm_head", "weight")
        return causal_heads("GPT2", "GPT2LMHeadModel", output)

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings and the last norm."""
        return [
            *same("backbone.token_embedding", "wte", "weight"),
            *same("backbone.position_embedding", "wpe", "weight"),
            *same("backbone.final_norm", "ln_f"),
        ]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        rules = [*same("attention_norm", "ln_1"), *same("feed_forward_norm", "ln_2")]
        products = {
            "attention.packed": "attn.c_attn", "attention.output": "attn.c_proj",
            "feed_forward.inner": "mlp.c_fc", "feed_forward.output": "mlp.c_proj",
        }  # fmt: skip
        for here, there in products.items():
            rules.append(Rule(f"{here}.weight", (f"{there}.weight",), TRANSPOSED))
            rules += same(here, there, "bias")
        return rules
