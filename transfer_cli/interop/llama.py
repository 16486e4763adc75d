"""Llama and its relatives: causal, pre-norm, rotary positions, RMS norms, gated layers, no biases.

Sources: Touvron et al. 2023 (Llama 2), Grattafiori et al. 2024 (Llama 3), Jiang et al. 2023
(Mistral), Yang et al. 2024 (Qwen 2), Yang et al. 2025 (Qwen 3), Gemma team 2025 (Gemma 3). SmolLM2
and TinyLlama call themselves Llama.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.angles import TwoKinds, rotary_config, rotary_of, window_config
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    SEQUENCE_CLASSIFICATION,
    USUAL_KEYS,
    Family,
    PublishedHead,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import CONCATENATED, SAME, Conversion, Rule, packed_attention, same
from transfer_cli.model.backbone import BackboneShape

_MISTRAL_WINDOW = 4096


class Llama(Family):
    """Llama 1 to 3, SmolLM2, TinyLlama and many others."""

    name = "Llama"
    model_type = "llama"
    base_model = "LlamaModel"
    prefix = "model"
    blocks = "layers"
    keys: ClassVar[Mapping[str, str]] = USUAL_KEYS
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre", "direction": "causal", "position_kind": "rotary", "norm": "rms",
        "feedforward_kind": "gated", "biases": "none", "embedding_norm": False,
        "embedding_width": None, "segments": 0,
    }  # fmt: skip
    varies: ClassVar[Sequence[str]] = ("key_value_heads", "head_width")
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "attention_dropout": ("attention_dropout", 0.0),
        "activation": ("hidden_act", "silu"),
        "epsilon": ("rms_norm_eps", 1e-6),
        "tie_output": ("tie_word_embeddings", False),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_bias": False}
    only: ClassVar[Mapping[str, Any]] = {"attention_bias": False, "mlp_bias": False}
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_last": None}
    norms: ClassVar[Mapping[str, str]] = {
        "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
    }  # fmt: skip
    """What the norms of the residual stream are called here and there."""

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape; its only dropout is that of attention."""
        found = super().shape_fields(settings)
        heads = settings.value("num_key_value_heads", found["heads"], int)
        quotient = found["width"] // max(1, found["heads"])
        width = settings.value("head_dim", quotient, int)
        return {
            **found,
            "dropout": 0.0,
            "key_value_heads": None if heads == found["heads"] else heads,
            "head_width": None if width * found["heads"] == found["width"] else width,
            "rotary": rotary_of(settings),
        }

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **super().config(shape),
            "num_key_value_heads": shape.shared_heads,
            "head_dim": shape.head_size,
            **rotary_config(shape.rotary),
        }

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.position_kind == "rotary" and shape.rotary.share != 1:
            wrong.append(f"rotary.share={shape.rotary.share:g}, not 1")
        return wrong

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has no bias."""
        stem = self.base_model.removesuffix("Model")
        output = [] if shape.tie_output else same("heads.lm", "lm_head", "weight")
        score = same("heads.class.linear", "score", "weight")
        return {
            LANGUAGE_MODEL: PublishedHead(f"{stem}ForCausalLM", "text-generation", output),
            SEQUENCE_CLASSIFICATION: PublishedHead(
                f"{stem}ForSequenceClassification", "text-classification", score
            ),
        }

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings and the last norm."""
        return [
            *same("backbone.token_embedding", "embed_tokens", "weight"),
            *same("backbone.final_norm", "norm", "weight"),
        ]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        attention, wide, narrow = "self_attn", shape.heads, shape.shared_heads
        rows = [heads * shape.head_size for heads in (wide, narrow, narrow)]
        kinds = ("weight",) if shape.biases == "none" else ("weight", "bias")
        projections = (f"{attention}.{part}_proj" for part in "qkv")
        gated = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
        rules = [
            *packed_attention(*projections, kinds=kinds, rows=rows),
            *same("attention.output", f"{attention}.o_proj", "weight"),
            Rule("feed_forward.inner.weight", gated, CONCATENATED),
            *same("feed_forward.output", "mlp.down_proj", "weight"),
        ]
        norms = dict(self.norms)
        if shape.query_key_norm:
            norms |= {f"attention.{n}_norm": f"{attention}.{n[0]}_norm" for n in ("query", "key")}
        for ours, theirs in norms.items():
            rules += same(ours, theirs, "weight")
        return rules


class Mistral(Llama):
    """Mistral, the first version of which has a window in every block."""

    name = "Mistral"
    model_type = "mistral"
    base_model = "MistralModel"
    varies = (*Llama.varies, "attention")

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        if settings.values.get("sliding_window", _MISTRAL_WINDOW) is None:
            return found
        window = settings.value("sliding_window", _MISTRAL_WINDOW, int)
        return {**found, "attention": "window", "window": window}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        window = shape.window if any(shape.has_window) else None
        return {**super().config(shape), "sliding_window": window}

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if any(shape.has_window) and not all(shape.has_window):
            wrong.append(f"global_every={shape.global_every}, not 0")
        return wrong


class Qwen2(Llama):
    """Qwen 2 and 2.5: biases on queries, keys and values."""

    name = "Qwen2"
    model_type = "qwen2"
    base_model = "Qwen2Model"
    fixed: ClassVar[Mapping[str, Any]] = {**Llama.fixed, "biases": "qkv"}
    only: ClassVar[Mapping[str, Any]] = {"use_sliding_window": False}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {**super().config(shape), "use_sliding_window": False}


class Qwen3(Qwen2):
    """Qwen 3: norms of queries and keys, no biases, heads of 128 numbers."""

    name = "Qwen3"
    model_type = "qwen3"
    base_model = "Qwen3Model"
    fixed: ClassVar[Mapping[str, Any]] = {**Llama.fixed, "query_key_norm": True}
    only: ClassVar[Mapping[str, Any]] = {**Llama.only, **Qwen2.only}


_GEMMA3 = TwoKinds(
    ("rope_theta", "rope_local_base_freq"), (1_000_000.0, 10_000.0),
    every="sliding_window_pattern", common=6, first=False,
)  # fmt: skip


class Gemma3(Llama):
    """The text model of Gemma 3: sandwiched norms, windows, scaled embeddings."""

    name = "Gemma 3"
    model_type = "gemma3_text"
    base_model = "Gemma3TextModel"
    keys: ClassVar[Mapping[str, str]] = {**Llama.keys, "window": "sliding_window"}
    fixed: ClassVar[Mapping[str, Any]] = {
        **Llama.fixed, "residual": "sandwich", "norm": "rms_unit", "query_key_norm": True,
        "attention": "window",
    }  # fmt: skip
    varies = (*Llama.varies, "embedding_scale")
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        **Llama.options,
        "activation": ("hidden_activation", "gelu_pytorch_tanh"),
        "tie_output": ("tie_word_embeddings", True),
    }
    only: ClassVar[Mapping[str, Any]] = {
        "attention_bias": False, "use_bidirectional_attention": False,
    }  # fmt: skip
    norms: ClassVar[Mapping[str, str]] = {
        "attention_first_norm": "input_layernorm", "attention_norm": "post_attention_layernorm",
        "feed_forward_first_norm": "pre_feedforward_layernorm",
        "feed_forward_norm": "post_feedforward_layernorm",
    }  # fmt: skip

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        angles = _GEMMA3.rotary_of(settings)
        kept = {k: v for k, v in settings.values.items() if not k.startswith("rope_")}
        found = super().shape_fields(replace(settings, values=kept))
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if settings.values.get(key) is not None:
                raise settings.wrong(key, "null, which is all that is built here")
        scale = found["width"] ** 0.5
        order = _GEMMA3.order_of(settings, found["depth"])
        return {**found, **order, "rotary": angles, "embedding_scale": scale}

    def rules_of(self, settings: PublishedConfig, shape: BackboneShape) -> list[Rule]:
        """Return the rules; the norm of queries takes up a scale of scores that is not the width's.

        The norm multiplies by 1 + w. What is written has the width's scale, and so these norms.
        """
        usual = settings.value("query_pre_attn_scalar", 256, float)
        if not 0 < usual < math.inf:
            raise settings.wrong("query_pre_attn_scalar", "a number above 0")
        factor = (shape.head_size / usual) ** 0.5
        scaled = Conversion(lambda theirs: (1 + theirs[0]) * factor - 1, SAME.give)
        return [
            replace(rule, conversion=scaled) if factor != 1 and "query_norm" in rule.ours else rule
            for rule in super().rules_of(settings, shape)
        ]

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **super().config(shape),
            "query_pre_attn_scalar": shape.head_size,
            **window_config(shape),
            **_GEMMA3.rotary_config(shape.rotary),
        }

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.embedding_scale != shape.width**0.5:
            wrong.append(f"embedding_scale={shape.embedding_scale:g}, not {shape.width**0.5:g}")
        return wrong

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads, one of which has a name of another pattern."""
        found = super().heads(shape)
        text = replace(found[LANGUAGE_MODEL], architecture="Gemma3ForCausalLM")
        return {**found, LANGUAGE_MODEL: text}
