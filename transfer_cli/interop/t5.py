"""T5 and mT5, read and written.

Sources: Raffel et al. 2020 (T5), Shazeer 2020 (version 1.1), Chung et al. 2022 (FLAN-T5, which
calls itself T5), Xue et al. 2021 (mT5).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.family import ConfigPart, Field, ModuleNames, TwoStackFamily, WriteOnly
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.model.positions import DistanceBias
from transfer_cli.model.shape import BackboneShape

_FEED_FORWARDS = {
    "relu": ("mlp", "relu"), "gated-gelu": ("gated", "gelu_tanh"), "gated-silu": ("gated", "silu"),
}  # fmt: skip
"""By `feed_forward_proj`: kind and activation."""


@dataclass(frozen=True)
class _FeedForwardField(ConfigPart):
    """The key that says both the kind of feed-forward layer and its activation."""

    default: str

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {name: name for name in _FEED_FORWARDS}
        values = _FEED_FORWARDS[settings.one_of("feed_forward_proj", known, self.default)]
        return dict(zip(("feedforward_kind", "activation"), values, strict=True))

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        kind = shape.feedforward_kind, shape.activation
        return {
            "feed_forward_proj": next(n for n, values in _FEED_FORWARDS.items() if values == kind)
        }


_SIZES: tuple[ConfigPart, ...] = (
    Field("width", "d_model"), Field("heads", "num_heads"), Field("feedforward", "d_ff"),
    Field(
        "head_width", "d_kv", 64,
        lambda width, before: None if width * before["heads"] == before["width"] else width,
        lambda shape: shape.head_size,
    ),
    Field("encoder_depth", "num_layers", to_theirs=lambda shape: shape.stacks[0].depth),
    Field("depth", "num_decoder_layers", lambda before: before["encoder_depth"]),
    Field("positions", "n_positions", 512),
    Field("dropout", "dropout_rate", 0.1),
    Field("attention_dropout", "dropout_rate", 0.1, to_theirs=lambda shape: shape.dropout),
    Field("epsilon", "layer_norm_epsilon", 1e-6),
    WriteOnly("is_encoder_decoder", lambda _: True),
)  # fmt: skip


class T5(TwoStackFamily):
    """T5: biases of distances, RMS norms, no other biases, no scale of scores.

    Where the output layer is the token embedding, what it reads is scaled (version 1.0).
    """

    name = "T5"
    model_type = "t5"
    base_model = "T5Model"
    prefix = ""
    blocks = "block"
    fields: ClassVar[Sequence[ConfigPart]] = (*_SIZES, _FeedForwardField("relu"))
    fixed: ClassVar[Mapping[str, Any]] = {
        **TwoStackFamily.fixed, "residual": "pre", "position_kind": "bias", "norm": "rms",
        "biases": "none", "scaled_scores": False, "embedding_norm": False,
    }  # fmt: skip
    varies: ClassVar[Sequence[str]] = ("feedforward_kind", "head_width", "output_scale")
    implied: ClassVar[Mapping[str, Any]] = {"output_bias": False}
    required: ClassVar[Mapping[str, Any]] = {
        "relative_attention_num_buckets": DistanceBias.ranges,
        "relative_attention_max_distance": DistanceBias.farthest,
    }  # fmt: skip
    stack_modules: ClassVar[ModuleNames] = {
        "position_embedding.bias": "block.0.layer.0.SelfAttention.relative_attention_bias",
        "final_norm": "final_layer_norm",
    }  # fmt: skip
    scales_output: ClassVar[bool] = True
    """Whether what an output layer reads is scaled where it is tied."""

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        fields = super().shape_fields(settings)
        keys = ("tie_word_embeddings", "scale_decoder_outputs")
        is_scaled = self.scales_output and all(
            settings.value(k, default=True, kind=bool) for k in keys
        )
        return {**fields, "output_scale": fields["width"] ** -0.5 if is_scaled else 1.0}

    def shape_from_weights(self, shape: BackboneShape, names: Collection[str]) -> BackboneShape:
        """Return the shape with an output layer of its own, if there is one that is not a copy."""
        return replace(shape, tie_output=shape.output_scale != 1 or "lm_head.weight" not in names)

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        tied = shape.output_scale != 1 if self.scales_output else shape.tie_output
        return {**super().config(shape), "tie_word_embeddings": tied}

    def block_modules(self, shape: BackboneShape, *, decodes: bool) -> ModuleNames:
        first, last = "layer.0", f"layer.{1 + decodes}"
        inner = ("wi_0", "wi_1") if shape.feedforward_kind == "gated" else ("wi",)
        names: dict[str, str | tuple[str, ...]] = {
            "attention_norm": f"{first}.layer_norm",
            "attention.packed": tuple(f"{first}.SelfAttention.{part}" for part in "qkv"),
            "attention.output": f"{first}.SelfAttention.o",
            "feed_forward_norm": f"{last}.layer_norm",
            "feed_forward.inner": tuple(f"{last}.DenseReluDense.{part}" for part in inner),
            "feed_forward.output": f"{last}.DenseReluDense.wo",
        }
        if decodes:
            cross = "layer.1.EncDecAttention"
            names |= {
                "cross_attention_norm": "layer.1.layer_norm", "cross_attention.query": f"{cross}.q",
                "cross_attention.key_value": (f"{cross}.k", f"{cross}.v"),
                "cross_attention.output": f"{cross}.o",
            }  # fmt: skip
        return names

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        wrong = super().misfits(shape, tokenizer)
        if (shape.feedforward_kind, shape.activation) not in _FEED_FORWARDS.values():
            wrong.append(
                f"activation={shape.activation} with feedforward_kind={shape.feedforward_kind}"
            )
        scales = (1.0, shape.width**-0.5) if self.scales_output and shape.tie_output else (1.0,)
        if shape.output_scale not in scales:
            wrong.append(f"output_scale={shape.output_scale:g}, not {scales[-1]:g}")
        return wrong


class MT5(T5):
    """mT5, version 1.1 with sentence pieces of a hundred languages; nothing is scaled."""

    name = "mT5"
    model_type = "mt5"
    base_model = "MT5Model"
    fields: ClassVar[Sequence[ConfigPart]] = (*_SIZES, _FeedForwardField("gated-gelu"))
    scales_output = False
