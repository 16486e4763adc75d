"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.angles import rotary_config, rotary_of
from transfer_cli.interop.family import USUAL_KEYS, Family, PublishedHead, causal_heads
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Rule, by_head, same
from transfer_cli.model.backbone import BackboneShape

_OLD_ANGLES = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
"""What configs from before 2026 call what is said of angles."""
_USUAL_SHARE = 0.25
_RESIDUALS = {True: "parallel", False: "pre"}
"""By `use_parallel_residual`."""


class GptNeoX(Family):
    """Causal, both sub-layers beside each other, rotary positions on a quarter of each head."""

    name = "GPT-NeoX"
    model_type = "gpt_neox"
    base_model = "GPTNeoXModel"
    prefix = "gpt_neox"
    blocks = "layers"
    keys: ClassVar[Mapping[str, str]] = USUAL_KEYS
    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "parallel", "direction": "causal", "position_kind": "rotary",
        "embedding_norm": False, "embedding_width": None, "segments": 0,
    }  # fmt: skip
    varies: ClassVar[Sequence[str]] = ("residual",)
    options: ClassVar[Mapping[str, tuple[str, Any]]] = {
        "dropout": ("hidden_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation": ("hidden_act", "gelu"),
        "epsilon": ("layer_norm_eps", 1e-5),
        "tie_output": ("tie_word_embeddings", False),
    }
    output: ClassVar[Mapping[str, bool]] = {"output_bias": False}
    only: ClassVar[Mapping[str, Any]] = {"attention_bias": True}
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_last": None}
    synonyms: ClassVar[Mapping[str, str]] = {"lm_head.": "embed_out."}

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of the shape."""
        old = {new: settings.values.get(key) for key, new in _OLD_ANGLES.items()}
        angles = rotary_of(replace(settings, values={**old, **settings.values}), _USUAL_SHARE)
        residual = _RESIDUALS[settings.value("use_parallel_residual", True, bool)]  # noqa: FBT003
        return {**super().shape_fields(settings), "rotary": angles, "residual": residual}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape."""
        return {
            **super().config(shape),
            **rotary_config(shape.rotary),
            "rotary_emb_base": shape.rotary.base,
            "rotary_pct": shape.rotary.share,
            "use_parallel_residual": shape.residual == "parallel",
        }

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has."""
        wrong = super().misfits(shape, tokenizer)
        if shape.residual not in _RESIDUALS.values():
            wrong.append(f"residual={shape.residual}, not parallel or pre")
        return wrong

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return its heads; the classifier has no bias."""
        output = [] if shape.tie_output else same("heads.lm", "embed_out", "weight")
        return causal_heads("GPTNeoX", "GPTNeoXForCausalLM", output)

    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the embeddings and the last norm."""
        return [
            *same("backbone.token_embedding", "embed_in", "weight"),
            *same("backbone.final_norm", "final_layer_norm"),
        ]

    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block."""
        packed = same("attention.packed", "attention.query_key_value")
        return [
            *(replace(rule, conversion=by_head(shape.heads)) for rule in packed),
            *same("attention.output", "attention.dense"),
            *same("attention_norm", "input_layernorm"),
            *same("feed_forward.inner", "mlp.dense_h_to_4h"),
            *same("feed_forward.output", "mlp.dense_4h_to_h"),
            *same("feed_forward_norm", "post_attention_layernorm"),
        ]
