"""Low-rank updates and factors of a published model as a folder of the peft library.

Its config names the modules and tensors of the published model, which it is loaded onto.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from transfer_cli.errors import ConfigError
from transfer_cli.interop.files import dump_json
from transfer_cli.interop.published_folder import PEFT_CLASSES
from transfer_cli.interop.rules import TRANSPOSED, Rule
from transfer_cli.interop.saving import published_tensors
from transfer_cli.interop.targets import CLASS_BIAS, Ours, Target, target_of
from transfer_cli.model.edited_linear import EditedLinear, RowChange
from transfer_cli.model.lora import Decomposed
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import copy_permissions

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ROOT = "base_model.model."


@dataclass(frozen=True)
class _Part:
    """What changes one module of the published model: its tensors, and of LoRA rank and alpha."""

    tensors: Mapping[str, Tensor]
    rank: int = 0
    alpha: float = 0.0
    is_input: bool = False


def write_adapter(
    model: TransferModel, ours: Ours, base: Mapping[str, Tensor], place: str, folder: Path,
    family: str,
) -> Target:  # fmt: skip
    """Write `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        model: With its edits, not merged.
        ours: The same; its tensors are those of the base, with the heads.
        base: The tensors of the published model, by our names.
        place: What the config calls that.
        family: Its `model_type`.
    """
    moved = [n for n, tensor in base.items() if not n.startswith("heads.") and not (
        n in ours.tensors and torch.equal(ours.tensors[n], tensor))]  # fmt: skip
    if moved:
        raise ConfigError(
            f"format: peft is for LoRA, DoRA and (IA)3, and here {moved[0]} of the published model "
            "has trained, too; take format=hf"
        )
    layers = {n: m for n, m in model.named_modules() if isinstance(m, EditedLinear)}
    if not layers:
        raise ConfigError(
            "format: peft is for LoRA, DoRA and (IA)3, and there is none of them here"
        )
    target = target_of(ours, family)
    if ours.classifier is not None and not any(r.ours == CLASS_BIAS for r in target.rules):
        raise ConfigError(
            f"format: peft has no place for the bias of a classifier of {target.family.name}; take "
            "format=hf or format=onnx"
        )
    rules = {rule.ours: rule for rule in target.rules}
    parts = {
        module: part
        for name, layer in layers.items()
        for module, part in _Layer(layer, rules[f"{name}.weight"]).parts().items()
    }
    heads = {n: t for n, t in ours.tensors.items() if n.startswith("heads.") and n in rules}
    trains = any(n not in base or not torch.equal(base[n], t) for n, t in heads.items())
    head_target = replace(target, rules=[rules[n] for n in heads if trains], constants={})
    trained = published_tensors(heads, head_target)
    tensors = {f"{m}.{n}": t for m, part in parts.items() for n, t in part.tensors.items()}
    tensors = {f"{_ROOT}{n}": t.contiguous() for n, t in {**tensors, **trained}.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    copy_permissions(folder / WEIGHTS, folder)
    ends = {end: kind for kind, end in PEFT_CLASSES.items()}
    kinds = (kind for end, kind in ends.items() if target.architecture.endswith(end))
    dump_json(folder / CONFIG, {
        "base_model_name_or_path": place, "inference_mode": True,
        "task_type": "CAUSAL_LM" if ours.head == "language_model" and target.family.is_causal
        else next(kinds, None),
        "target_modules": [*parts], "modules_to_save": sorted({*map(_module_of, trained)}) or None,
        "fan_in_fan_out": any(rule.conversion is TRANSPOSED for rule in target.rules),
        **_options(parts, layers.values()),
    })  # fmt: skip
    return target


def _module_of(tensor: str) -> str:
    """Return the module that peft keeps whole, by a tensor of it."""
    first, _, _ = tensor.partition(".")
    whole = first in ("classifier", "score", "qa_outputs")
    return first if whole else tensor.rpartition(".")[0]


def _options(parts: Mapping[str, _Part], layers: Iterable[EditedLinear]) -> dict[str, Any]:
    ranks = {module: part.rank for module, part in parts.items()}
    if not all(ranks.values()):
        inputs = [module for module, part in parts.items() if part.is_input]
        return {"peft_type": "IA3", "feedforward_modules": inputs}
    rank, alphas = min(ranks.values()), {module: part.alpha for module, part in parts.items()}
    alpha = min(alphas.values())
    return {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none",
        "use_dora": any(isinstance(u, Decomposed) for layer in layers for u in layer.lora.values()),
        "rank_pattern": {module: r for module, r in ranks.items() if r != rank},
        "alpha_pattern": {module: a for module, a in alphas.items() if a != alpha},
    }  # fmt: skip


@dataclass(frozen=True)
class _Layer:
    """A layer with what was added to it, and the modules there that its rows belong to."""

    layer: EditedLinear
    rule: Rule

    def split_rows(self, rows_NC: Tensor) -> list[Tensor]:
        """Return the rows of each module, of what there is for each row of the layer."""
        split = self.rule.conversion.to_theirs(rows_NC, len(self.rule.theirs))
        return [part.T if self.rule.conversion is TRANSPOSED else part for part in split]

    def fill_rows(self, change: RowChange, values_NC: Tensor, rest: float) -> list[Tensor]:
        """Return the same of a change of some rows, with `rest` for the others."""
        rows_NC = torch.full((self.layer.out_features, values_NC.shape[1]), rest)
        rows_NC[change.rows] = values_NC.detach()
        return self.split_rows(rows_NC)

    def parts(self) -> dict[str, _Part]:
        """Return what changes each module."""
        layer = self.layer
        changes = cast("list[RowChange]", [*layer.lora.values(), *layer.factors.values()])
        if layer.lora and (layer.factors or layer.input_factors is not None):
            raise ConfigError("format: peft has none for LoRA and (IA)3 together; take format=hf")
        parts: dict[str, _Part] = {}
        for at, name in enumerate(self.rule.theirs):
            module = name.removesuffix(".weight")
            here = [c for c in changes if self.fill_rows(c, torch.ones(1, 1), 0.0)[at].any()]
            if here:
                parts[module] = self._low_rank(at, here) if layer.lora else self._factors(at, here)
            if layer.input_factors is not None:
                row = layer.input_factors.weight.detach()[None]
                parts[module] = _Part({"ia3_l": row}, is_input=True)
        return parts

    def _factors(self, at: int, here: Sequence[Any]) -> _Part:
        rows = [self.fill_rows(factor, factor.weight[:, None], 1.0)[at] for factor in here]
        return _Part({"ia3_l": torch.stack(rows).prod(0)})

    def _low_rank(self, at: int, here: Sequence[Any]) -> _Part:
        down = torch.cat([update.down.detach() for update in here])
        up = torch.cat([self.fill_rows(update, update.up, 0.0)[at] for update in here], 1)
        tensors = {"lora_A.weight": down, "lora_B.weight": up}
        if isinstance(here[0], Decomposed):
            norms_N1 = self.layer.weight.detach().square().sum(1, keepdim=True).sqrt()
            for update in here:
                norms_N1[update.rows] = update.magnitude.detach()[:, None]
            tensors["lora_magnitude_vector"] = self.split_rows(norms_N1)[at].flatten()
        return _Part(tensors, len(down), here[0].scale * len(down))
