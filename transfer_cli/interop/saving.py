"""A model of ours as a folder that Hugging Face's libraries load."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError, ConfigError, nearest
from transfer_cli.interop import files, vocabulary
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, Family, PublishedHead
from transfer_cli.interop.published_config import CONFIG
from transfer_cli.interop.rules import Rule, with_prefix, without_prefix
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.weights import readable_like

TOKENS = "backbone.token_embedding.weight"
FINAL_NORM = "backbone.final_norm.bias"
"""Where the bias of a classifier goes that has none in its family."""

_CLASS_BIAS = "heads.class.linear.bias"
PADDING = "[PAD]"
"""Of a model that has no padding token of its own, and needs one to find the end of a text."""


@dataclass(frozen=True)
class ClassificationHead:
    """What turns a text's state into labels; `is_linear` if by a layer, behind a pooler or not."""

    labels: tuple[str, ...]
    pooling: str
    has_pooler: bool
    is_linear: bool


@dataclass(frozen=True)
class Ours:
    """A model to be written.

    Args:
        shape: Of its backbone.
        tensors: Its weights, by our names.
        tokenizer: Its tokenizer.
        head: The kind of head that goes along, by the name that families know it by; None: none.
        classifier: What a head that gives labels does; None for other heads.
        texts: How the texts were laid out that it was trained on last: lines, as text to pretrain
            on is; labelled, as labelled texts are; published, as its tokenizer says.
        added: Names of tensors that edits have added, each with what people call its part.
    """

    shape: BackboneShape
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer
    head: str | None
    classifier: ClassificationHead | None
    texts: Literal["lines", "labelled", "published"]
    added: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What was written.

    Args:
        family: As a model of which family.
        architecture: What that family calls it.
        pipeline: What the hub calls its task.
        labels: Names of the classes.
        folded_bias: Whether the classifier's bias stands in the final norm.
        left_out: Tensors of ours that the family has no place for and the outputs do not need.
    """

    family: Family
    architecture: str
    pipeline: str
    labels: tuple[str, ...]
    folded_bias: bool
    left_out: tuple[str, ...]


def write_folder(ours: Ours, folder: Path, family: str | None = None) -> Written:
    """Write `config.json`, `model.safetensors` and the tokenizer's files.

    Args:
        ours: The model.
        folder: Where to; it is there, and empty.
        family: The `model_type` of the family to write it as. None: the first that fits.

    Raises:
        ConfigError: There is no such family.
        CheckpointError: No family has such a model; the message says what does not fit.
    """
    kind = _fitting(ours, family)
    rules, head = _rules(kind, ours)
    tensors = dict(ours.tensors)
    pad = ours.tokenizer.pad
    needs_padding = ours.classifier is not None and pad == ours.tokenizer.cls
    folds_bias = ours.classifier is not None and not any(r.ours == _CLASS_BIAS for r in rules)
    if folds_bias:
        tensors = _without_bias(tensors, kind)
    if needs_padding:
        table = tensors[TOKENS]
        tensors[TOKENS] = torch.cat([table, torch.zeros(1, table.shape[1], dtype=table.dtype)])
        pad = len(table)
    before = f"{kind.prefix}." if head else ""
    given = {f"{before}{name}": each for name, each in kind.constants(ours.shape).items()}
    for rule in rules:
        parts = rule.conversion.give(tensors[rule.ours].detach().cpu())
        given |= dict(zip(rule.theirs, parts, strict=True))
    save_file(
        {name: tensor.contiguous() for name, tensor in given.items()},
        folder / files.WEIGHTS,
        metadata={"format": "pt"},
    )
    readable_like(folder / files.WEIGHTS, folder)
    architecture = head.architecture if head else kind.base_model
    config = {
        "architectures": [architecture],
        "model_type": kind.model_type,
        "dtype": "float32",
        "vocab_size": len(tensors[TOKENS]),
        **kind.config(ours.shape),
        **_tokens(ours, pad),
        **(_labels(ours.classifier) if ours.classifier else {}),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    _write_tokenizer(ours, kind, folder, pad if needs_padding else None)
    used = {rule.ours for rule in rules} | ({_CLASS_BIAS} if folds_bias else set())
    return Written(
        kind,
        architecture,
        head.pipeline if head else "feature-extraction",
        ours.classifier.labels if ours.classifier else (),
        folds_bias,
        tuple(sorted(ours.tensors.keys() - used)),
    )


def _fitting(ours: Ours, wanted: str | None) -> Family:
    """Return the family that has such models."""
    known = families()
    if wanted is not None and wanted not in known:
        raise ConfigError(
            f"family: {wanted!r} is not one of {', '.join(known)}.{nearest(wanted, known)}"
        )
    asked = list(known.values()) if wanted is None else [known[wanted]]
    found = {family: _misfits(family, ours) for family in asked}
    best = min(asked, key=lambda family: len(found[family]))
    if found[best]:
        none = "no published family has such a model; " if wanted is None else ""
        nearly = f"{best.name} comes nearest, and " if wanted is None else f"as a {best.name}, "
        raise CheckpointError(
            f"run: {none}{nearly}what does not fit is {'; '.join(found[best])}. "
            "format=onnx takes any model"
        )
    return best


def _misfits(family: Family, ours: Ours) -> list[str]:
    wrong = family.misfits(ours.shape, ours.tokenizer)
    if wrong:
        return wrong
    has_place = {rule.ours for rule in family.backbone(ours.shape)}
    lost = [n for n in ours.tensors if not n.startswith("heads.") and n not in has_place]
    wrong += sorted({ours.added.get(name, name) for name in lost})
    if ours.head is None:
        return wrong
    head = family.heads(ours.shape).get(ours.head)
    if ours.head == LANGUAGE_MODEL:
        own = {name for name in ours.tensors if name.startswith("heads.lm.")}
        theirs = {rule.ours for rule in head.rules} if head else set()
        if own and own != theirs:
            names = ", ".join(sorted(own ^ theirs))
            wrong.append(f"the language-model head ({names}; head=false leaves it out)")
        return wrong
    if ours.classifier is not None:
        wrong += _classifier_misfits(family, ours, ours.classifier)
    if head is None:
        wrong.append(f"a head for {ours.head.replace('_', ' ')} (head=false leaves it out)")
    elif not wrong:
        wrong += [f"no {rule.ours}" for rule in head.rules if rule.ours not in ours.tensors]
    return wrong


def _classifier_misfits(family: Family, ours: Ours, classifier: ClassificationHead) -> list[str]:
    wrong = []
    if classifier.pooling != family.pooling:
        wrong.append(f"objective.pooling={classifier.pooling}, not {family.pooling}")
    if not classifier.is_linear:
        wrong.append("a classifier of several layers (objective.hidden, objective.batch_norm)")
    needs_pooler = family.pooler_activation != "none"
    if needs_pooler and not classifier.has_pooler:
        wrong.append("a classifier without a pooler (objective.pooler=true trains one)")
    if classifier.has_pooler and not needs_pooler:
        wrong.append("a classifier with a pooler (objective.pooler=false)")
    if ours.shape.pooler == "none" and classifier.has_pooler and family.pooler_activation != "tanh":
        wrong.append(f"a pooler with tanh, not {family.pooler_activation}")
    return wrong


def _rules(family: Family, ours: Ours) -> tuple[list[Rule], PublishedHead | None]:
    """Return the rules, with whole names, and the head that goes along."""
    head = family.heads(ours.shape).get(ours.head) if ours.head else None
    if head is not None and any(rule.ours not in ours.tensors for rule in head.rules):
        head = None  # a model that came without the head of its pretraining
    of_head = list(head.rules) if head else []
    has_place = {rule.ours for rule in of_head}
    pooler = [r for r in family.pooler() if r.ours in ours.tensors and r.ours not in has_place]
    prefix = f"{family.prefix}."
    rules = [*with_prefix(family.backbone(ours.shape), prefix), *pooler, *of_head]
    # A bare backbone has no prefix, nor has what belongs to it.
    return (rules, head) if head else (without_prefix(rules, prefix), None)


def _without_bias(tensors: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Fold the classifier's bias into the bias of the norm that it reads.

    Of the shifts c of the norm with W c = b the shortest is taken; the logits are the same.
    """
    found = dict(tensors)
    weight, bias = found["heads.class.linear.weight"].double(), found.pop(_CLASS_BIAS).double()
    norm = found.get(FINAL_NORM)
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    if norm is None or not torch.allclose(weight @ shift, bias, atol=1e-7):
        raise CheckpointError(
            f"run: the classifier's bias has no place in {family.name}, whose classifier has none; "
            "format=onnx takes any model"
        )
    return found | {FINAL_NORM: (norm.double() + shift).to(norm.dtype)}


def _labels(classifier: ClassificationHead) -> dict[str, Any]:
    named = dict(enumerate(classifier.labels))
    return {
        "id2label": {str(number): label for number, label in named.items()},
        "label2id": {label: number for number, label in named.items()},
        "problem_type": "single_label_classification",
    }


def _tokens(ours: Ours, pad: int) -> dict[str, int]:
    tokenizer = ours.tokenizer
    return {
        "pad_token_id": pad, "bos_token_id": tokenizer.cls, "eos_token_id": tokenizer.sep,
    }  # fmt: skip


def _write_tokenizer(ours: Ours, family: Family, folder: Path, new_padding: int | None) -> None:
    """Write the tokenizer, with the layout of special tokens that the model was trained with."""
    tokenizer, path = ours.tokenizer, folder / vocabulary.FILE
    tokenizer.save(path)
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    kinds = ("pad", "unk", "cls", "sep", "mask")
    numbers = [getattr(tokenizer, kind) for kind in kinds]
    names = dict(zip(kinds, tokenizer.pieces(numbers), strict=True))
    if new_padding is not None:
        names["pad"] = PADDING
        data["added_tokens"].append(
            {
                "id": new_padding, "content": PADDING, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
        )  # fmt: skip
    if family.mask_lstrip:
        for token in data["added_tokens"]:
            if token["content"] in (names["mask"], names["unk"]):
                token["lstrip"] = token["content"] == names["mask"]
    causal = ours.shape.direction == "causal"
    is_bare = data.get("post_processor") is None and not causal
    if ours.texts != "published" or is_bare:
        data["post_processor"] = _layout(ours, names)
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": ours.shape.positions,
        "padding_side": "right",
        "model_input_names": [
            "input_ids",
            *(["token_type_ids"] if ours.shape.segments > 1 else []),
            "attention_mask",
        ],
        "clean_up_tokenization_spaces": False,
        **{f"{key}_token": name for key, name in names.items()},
    }
    if causal:
        options |= {"bos_token": names["cls"], "eos_token": names["sep"]}
    (folder / vocabulary.OPTIONS).write_text(
        json.dumps(options, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _layout(ours: Ours, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what puts special tokens around texts."""
    texts = "lines" if ours.texts == "lines" else "labelled"
    later = 1 if ours.shape.segments > 1 else 0

    def template(layout: str) -> list[dict[str, Any]]:
        before, _, _ = layout.partition("B")
        words = [(word, 0) for word in before.split()]
        words += [(word, later) for word in layout.removeprefix(before).split()]
        return [
            {"Sequence": {"id": word, "type_id": kind}}
            if word in "AB"
            else {"SpecialToken": {"id": names[word], "type_id": kind}}
            for word, kind in words
        ]

    single, pair = map(template, vocabulary.LAYOUTS[texts, ours.shape.direction])
    numbers = {names[kind]: getattr(ours.tokenizer, kind) for kind in ("cls", "sep")}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in numbers.items()
        },
    }
