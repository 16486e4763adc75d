"""Llama and its relatives: causal, pre-norm, rotary positions, RMS norms, gated layers, no biases.

Sources: Touvron et al. 2023 (Llama 2), Grattafiori et al. 2024 (Llama 3), Jiang et al. 2023
(Mistral), Yang et al. 2024 (Qwen 2), Yang et al. 2025 (Qwen 3). SmolLM2 and TinyLlama call
themselves Llama.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    SEQUENCE_CLASSIFICATION,
    Family,
    PublishedHead,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import CONCATENATED, Rule, packed_attention, same
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.positions import Rotary, RotaryScaling


class Llama(Family):
    """Llama 1 to 3, SmolLM2, TinyLlama and many others."""

    name = "Llama"
    model_type = "llama"
    base_model = "LlamaModel"
    prefix = "model"
    blocks = "layers"
    keys: ClassVar[Mapping[str, str]] = {
        "width": "hidden_size", "heads": "num_attention_heads", "depth": "num_hidden_layers",
        "feedforward": "intermediate_size", "positions": "max_position_embeddings",
    }  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre", "direction": "causal", "position_kind": "rotary", "norm": "rms",
        "feedforward_kind": "gated", "biases": "none", "embedding_norm": False,
        "embedding_width": None, "segments": 0,
    }  # fmt: skip
    varies = ("key_value_heads", "head_width")
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "attention_dropout": ("attention_dropout", 0.0),
        "activation": ("hidden_act", "silu"),
        "epsilon": ("rms_norm_eps", 1e-6),
        "tie_output": ("tie_word_embeddings", False),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_bias": False}
    only: ClassVar[Mapping[str, Any]] = {"attention_bias": False, "mlp_bias": False}
    pooling = "cls_last"

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
            "rotary": _rotary(settings),
        }

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **super().config(shape),
            "num_key_value_heads": shape.shared_heads,
            "head_dim": shape.head_size,
            **_rotary_config(shape.rotary),
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
            *same("attention_norm", "input_layernorm", "weight"),
            *same("feed_forward_norm", "post_attention_layernorm", "weight"),
            Rule("feed_forward.inner.weight", gated, CONCATENATED),
            *same("feed_forward.output", "mlp.down_proj", "weight"),
        ]
        if shape.query_key_norm:
            for ours, theirs in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
                rules += same(f"attention.{ours}", f"{attention}.{theirs}", "weight")
        return rules


class Mistral(Llama):
    """Mistral; without the window of its first version."""

    name = "Mistral"
    model_type = "mistral"
    base_model = "MistralModel"

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        found = super().shape_fields(settings)
        window = settings.values.get("sliding_window", 4096)
        if window is not None and window < found["positions"]:
            raise settings.wrong("sliding_window", "null or max_position_embeddings")
        return found

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {**super().config(shape), "sliding_window": None}


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


_LLAMA3 = {
    "original_positions": "original_max_position_embeddings",
    "low_factor": "low_freq_factor", "high_factor": "high_freq_factor",
}  # fmt: skip


def _rotary(settings: PublishedConfig) -> Rotary:
    """Return the angles that a config asks for, as versions before and since 2026 write them."""
    given = settings.values.get("rope_parameters") or settings.values.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise settings.wrong("rope_parameters", "a mapping")
    rope = replace(settings, values={**settings.values, **given})
    # `type` is what `rope_type` was called in 2023.
    kind = given.get("rope_type", given.get("type", "default"))
    base = rope.value("rope_theta", 10_000.0, float)
    rope.only("partial_rotary_factor", 1.0)
    if kind == "default":
        return Rotary(base)
    if kind == "linear":
        return Rotary(base, scaling=RotaryScaling("linear", rope.value("factor", None, float)))
    if kind == "llama3":
        kinds: dict[str, type] = {
            "original_positions": int,
            "low_factor": float,
            "high_factor": float,
        }
        more: dict[str, Any] = {
            name: rope.value(key, None, kinds[name]) for name, key in _LLAMA3.items()
        }
        factor = rope.value("factor", None, float)
        return Rotary(base, scaling=RotaryScaling("llama3", factor, **more))
    raise replace(settings, values={"rope_type": kind}).wrong(
        "rope_type", "one of default, linear, llama3"
    )


def _rotary_config(rotary: Rotary) -> dict[str, Any]:
    """Return the keys that describe angles, for versions before and since 2026."""
    scaling = rotary.scaling
    rope: dict[str, Any] = {"rope_theta": rotary.base, "rope_type": "default"}
    if scaling is None:
        return {"rope_theta": rotary.base, "rope_parameters": rope}
    rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        rope |= {key: getattr(scaling, name) for name, key in _LLAMA3.items()}
    return {"rope_theta": rotary.base, "rope_parameters": rope, "rope_scaling": rope}
