"""Causal families: the first GPT, GPT-2, GPT-NeoX, and Llama with its relatives.

Sources: Touvron et al. 2023 (Llama 2), Grattafiori et al. 2024 (Llama 3), Jiang et al. 2023
(Mistral), Yang et al. 2024 (Qwen 2), Yang et al. 2025 (Qwen 3), Gemma team 2025 (Gemma 3). SmolLM2
and TinyLlama call themselves Llama.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.angles import LOCAL, Angles, TwoKinds, read_order
from transfer_cli.interop.family import (
    POSITIONS,
    SIZES,
    ActivationField,
    CausalFamily,
    ConfigPart,
    Field,
    ModuleNames,
    WriteOnly,
)
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import SAME, TRANSPOSED, Conversion, Rule, by_head
from transfer_cli.model.shape import BackboneShape

_GPT = (
    Field("width", "n_embd"), Field("heads", "n_head"), Field("depth", "n_layer"),
    Field("positions", "n_positions"),
    Field("dropout", "resid_pdrop", 0.1), WriteOnly("embd_pdrop", lambda shape: shape.dropout),
    Field("attention_dropout", "attn_pdrop", 0.1), Field("epsilon", "layer_norm_epsilon", 1e-5),
    Field("tie_output", "tie_word_embeddings", default=True),
)  # fmt: skip
"""What both GPTs call these."""


class Gpt2(CausalFamily):
    """GPT-2 (Radford et al. 2019): one matrix for queries, keys and values, stored turned."""

    name = "GPT-2"
    model_type = "gpt2"
    base_model = "GPT2Model"
    prefix = "transformer"
    blocks = "h"
    fields: ClassVar[Sequence[ConfigPart]] = (
        *_GPT,
        Field("feedforward", "n_inner", lambda before: 4 * before["width"]),
        ActivationField("activation_function", "gelu_new"),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**CausalFamily.fixed, "position_kind": "learned"}
    implied: ClassVar[Mapping[str, Any]] = {**CausalFamily.implied, "embedding_norm": None}
    required: ClassVar[Mapping[str, Any]] = {
        "add_cross_attention": False, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }  # fmt: skip
    language_model = "GPT2LMHeadModel"
    has_token_heads = True
    outside: ClassVar[ModuleNames] = {
        "token_embedding": "wte", "position_embedding": "wpe", "final_norm": "ln_f",
    }  # fmt: skip
    inside: ClassVar[ModuleNames] = {
        "attention_norm": "ln_1", "attention.packed": "attn.c_attn",
        "attention.output": "attn.c_proj", "feed_forward_norm": "ln_2",
        "feed_forward.inner": "mlp.c_fc", "feed_forward.output": "mlp.c_proj",
    }  # fmt: skip

    def conversions(self, shape: BackboneShape) -> Mapping[str, Conversion]:
        """Return that matrices have their inputs as rows."""
        return {f"{name}.weight": TRANSPOSED for name in self.inside if "norm" not in name}


_WIDENED = 4
"""How many times as wide as its states the inner layers of the first GPT are."""


class OpenAIGpt(CausalFamily):
    """The first GPT (Radford et al. 2018): a norm behind each sub-layer and no other ones.

    What it calls GELU is the approximation by tanh. Its tokenizer has no token but the unknown one
    beside those of text.
    """

    name = "OpenAI GPT"
    model_type = "openai-gpt"
    base_model = "OpenAIGPTModel"
    prefix = "transformer"
    blocks = "h"
    fields: ClassVar[Sequence[ConfigPart]] = (
        *_GPT,
        ActivationField(
            "afn", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
        ),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**Gpt2.fixed, "residual": "post"}
    language_model = "OpenAIGPTLMHeadModel"
    text_end = "<|endoftext|>"
    outside: ClassVar[ModuleNames] = {
        "token_embedding": "tokens_embed", "position_embedding": "positions_embed",
    }  # fmt: skip
    inside = Gpt2.inside

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        return {**fields, "feedforward": _WIDENED * fields["width"]}

    def conversions(self, shape: BackboneShape) -> Mapping[str, Conversion]:
        return Gpt2().conversions(shape)

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.feedforward != _WIDENED * shape.width:
            wrong.append(f"feedforward={shape.feedforward}, not {_WIDENED * shape.width}")
        if shape.activation == "gelu":
            wrong.append("activation=gelu, not gelu_tanh")
        return wrong


_RESIDUALS = {True: "parallel", False: "pre"}
"""By `use_parallel_residual`."""


class GptNeoX(CausalFamily):
    """GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023).

    Both sub-layers are beside each other, and rotary positions are on a quarter of each head.
    """

    name = "GPT-NeoX"
    model_type = "gpt_neox"
    base_model = "GPTNeoXModel"
    prefix = "gpt_neox"
    blocks = "layers"
    fields: ClassVar[Sequence[ConfigPart]] = (
        *SIZES, POSITIONS,
        Field("dropout", "hidden_dropout", 0.0),
        Field("attention_dropout", "attention_dropout", 0.0),
        ActivationField("hidden_act", "gelu"),
        Field("epsilon", "layer_norm_eps", 1e-5),
        Field("tie_output", "tie_word_embeddings", default=False),
        Angles(0.25, {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}),
        Field(
            "residual", "use_parallel_residual", True,  # noqa: FBT003
            lambda is_parallel, _: _RESIDUALS[is_parallel],
            lambda shape: shape.residual == "parallel",
        ),
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {
        **CausalFamily.fixed, "residual": "parallel", "position_kind": "rotary",
    }  # fmt: skip
    varies: ClassVar[Sequence[str]] = ("residual",)
    required: ClassVar[Mapping[str, Any]] = {"attention_bias": True}
    synonyms: ClassVar[Mapping[str, str]] = {"lm_head.": "embed_out."}
    output_layer = "embed_out"
    has_token_heads = True
    outside: ClassVar[ModuleNames] = {
        "token_embedding": "embed_in", "final_norm": "final_layer_norm",
    }  # fmt: skip
    inside: ClassVar[ModuleNames] = {
        "attention.packed": "attention.query_key_value", "attention.output": "attention.dense",
        "attention_norm": "input_layernorm", "feed_forward.inner": "mlp.dense_h_to_4h",
        "feed_forward.output": "mlp.dense_4h_to_h",
        "feed_forward_norm": "post_attention_layernorm",
    }  # fmt: skip

    def conversions(self, shape: BackboneShape) -> Mapping[str, Conversion]:
        """Return that queries, keys and values are stored head by head."""
        packed = ("attention.packed.weight", "attention.packed.bias")
        return dict.fromkeys(packed, by_head(shape.heads))

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.residual not in _RESIDUALS.values():
            wrong.append(f"residual={shape.residual}, not parallel or pre")
        return wrong


_MISTRAL_WINDOW = 4096

_SIZES = (
    *SIZES, POSITIONS,
    Field(
        "key_value_heads", "num_key_value_heads", lambda before: before["heads"],
        lambda shared, before: None if shared == before["heads"] else shared,
        lambda shape: shape.kv_heads,
    ),
    Field(
        "head_width", "head_dim", lambda before: before["width"] // before["heads"],
        lambda width, before: None if width * before["heads"] == before["width"] else width,
        lambda shape: shape.head_size,
    ),
    Field("attention_dropout", "attention_dropout", 0.0),
    Field("epsilon", "rms_norm_eps", 1e-6),
)  # fmt: skip


class Llama(CausalFamily):
    """Llama 1 to 3, SmolLM2, TinyLlama and many others.

    RMS norms, gated layers, no biases; the only dropout is that of attention.
    """

    name = "Llama"
    model_type = "llama"
    base_model = "LlamaModel"
    prefix = "model"
    blocks = "layers"
    fields: ClassVar[Sequence[ConfigPart]] = (
        *_SIZES,
        ActivationField("hidden_act", "silu"),
        Field("tie_output", "tie_word_embeddings", default=False),
        Angles(),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        **CausalFamily.fixed, "position_kind": "rotary", "norm": "rms", "biases": "none",
        "feedforward_kind": "gated",
    }  # fmt: skip
    varies: ClassVar[Sequence[str]] = ("key_value_heads", "head_width")
    implied: ClassVar[Mapping[str, Any]] = {**CausalFamily.implied, "dropout": 0.0}
    required: ClassVar[Mapping[str, Any]] = {"attention_bias": False, "mlp_bias": False}
    outside: ClassVar[ModuleNames] = {"token_embedding": "embed_tokens", "final_norm": "norm"}
    inside: ClassVar[ModuleNames] = {
        "attention.packed": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": "self_attn.o_proj", "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "feed_forward.inner": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward.output": "mlp.down_proj", "attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    }  # fmt: skip

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.position_kind == "rotary" and shape.rotary.share != 1:
            wrong.append(f"rotary.share={shape.rotary.share:g}, not 1")
        return wrong


class Mistral(Llama):
    """Mistral, the first version of which has a window in every block, and Ministral in some."""

    name = "Mistral"
    model_type = "mistral"
    base_model = "MistralModel"
    varies = (*Llama.varies, "attention")

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        if settings.values.get("sliding_window", _MISTRAL_WINDOW) is None:
            return fields
        window = settings.value("sliding_window", _MISTRAL_WINDOW, int)
        order = read_order(settings, [LOCAL] * fields["depth"])
        return {**fields, "attention": "window", "window": window, **order}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        window = shape.window if any(shape.has_window) else None
        return {**super().config(shape), "sliding_window": window}

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if any(shape.has_window) and not all(shape.has_window):
            wrong.append(f"global_every={shape.global_every}, not 0")
        return wrong


class Qwen2(Llama):
    """Qwen 2 and 2.5: biases on queries, keys and values."""

    name = "Qwen2"
    model_type = "qwen2"
    base_model = "Qwen2Model"
    fields: ClassVar[Sequence[ConfigPart]] = (
        *Llama.fields,
        WriteOnly("use_sliding_window", lambda _: False),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**Llama.fixed, "biases": "qkv"}
    required: ClassVar[Mapping[str, Any]] = {"use_sliding_window": False}


class Qwen3(Qwen2):
    """Qwen 3: norms of queries and keys, no biases, heads of 128 numbers."""

    name = "Qwen3"
    model_type = "qwen3"
    base_model = "Qwen3Model"
    fixed: ClassVar[Mapping[str, Any]] = {**Llama.fixed, "query_key_norm": True}
    required: ClassVar[Mapping[str, Any]] = {**Llama.required, **Qwen2.required}


_GEMMA3 = TwoKinds(
    ("rope_theta", "rope_local_base_freq"), (1_000_000.0, 10_000.0),
    every_key="sliding_window_pattern", usual_every=6, global_first=False,
)  # fmt: skip


class Gemma3(Llama):
    """The text model of Gemma 3: sandwiched norms, windows, scaled embeddings."""

    name = "Gemma 3"
    model_type = "gemma3_text"
    base_model = "Gemma3TextModel"
    fields: ClassVar[Sequence[ConfigPart]] = (
        *_SIZES,
        Field("window", "sliding_window"),
        ActivationField("hidden_activation", "gelu_pytorch_tanh"),
        Field("tie_output", "tie_word_embeddings", default=True),
        WriteOnly("query_pre_attn_scalar", lambda shape: shape.head_size),
        _GEMMA3,
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        **Llama.fixed, "residual": "sandwich", "norm": "rms_unit", "query_key_norm": True,
        "attention": "window",
    }  # fmt: skip
    varies = (*Llama.varies, "embedding_scale")
    required: ClassVar[Mapping[str, Any]] = {
        "attention_bias": False, "use_bidirectional_attention": False,
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
    }  # fmt: skip
    language_model = "Gemma3ForCausalLM"
    inside: ClassVar[ModuleNames] = {
        **Llama.inside, "attention_first_norm": "input_layernorm",
        "attention_norm": "post_attention_layernorm",
        "feed_forward_first_norm": "pre_feedforward_layernorm",
        "feed_forward_norm": "post_feedforward_layernorm",
    }  # fmt: skip

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        return {**fields, "embedding_scale": fields["width"] ** 0.5}

    def import_rules(self, settings: PublishedConfig, shape: BackboneShape) -> list[Rule]:
        """Return the rules; the norm of queries takes up a scale of scores that is not the width's.

        The norm multiplies by 1 + w. What is written has the width's scale, and so these norms.
        """
        usual = settings.value("query_pre_attn_scalar", 256, float)
        if not 0 < usual < math.inf:
            raise settings.error("query_pre_attn_scalar", "a number above 0")
        factor = (shape.head_size / usual) ** 0.5
        scaled = Conversion(lambda theirs: (1 + theirs[0]) * factor - 1, SAME.to_theirs)
        return [
            replace(rule, conversion=scaled) if factor != 1 and "query_norm" in rule.ours else rule
            for rule in super().import_rules(settings, shape)
        ]

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if shape.embedding_scale != shape.width**0.5:
            wrong.append(f"embedding_scale={shape.embedding_scale:g}, not {shape.width**0.5:g}")
        return wrong
