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
from transfer_cli.errors import CheckpointError, one_of
from transfer_cli.interop import files, vocabulary
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, Family, PublishedHead
from transfer_cli.interop.inputs import Inputs
from transfer_cli.interop.published_config import CONFIG
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.rules import Rule, with_prefix, without_prefix
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.weights import readable_like
from transfer_cli.objectives.classification import Classification

TOKENS = "backbone.token_embedding.weight"
CLASS_BIAS = "heads.class.linear.bias"
PADDING = "[PAD]"
"""For a classifier without a padding token, which needs one to find the end of a text."""


@dataclass(frozen=True)
class Ours:
    """A model to be written.

    Args:
        shape: Of its backbone.
        tensors: Its weights, by our names.
        tokenizer: Its tokenizer.
        head: The kind of head to write, as in `Family.heads`; None: none.
        classifier: What a head that gives labels was trained by; None for other heads.
        texts: Which layout of special tokens it was trained with last: that of lines to pretrain
            on, that of labelled texts, or (published) its tokenizer's.
        length: The longest text in tokens that it reads, special ones included.
        labels: Names of the classifier's classes.
        added: Names of tensors that edits have added, each with a description of its part.
    """

    shape: BackboneShape
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer
    head: str | None
    classifier: Classification | None
    texts: Literal["lines", "labelled", "published"]
    length: int
    labels: tuple[str, ...] = ()
    added: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What was written.

    Args:
        family: The family that it is a model of.
        architecture: What that family calls it.
        pipeline: What the hub calls its task.
        labels: Names of the classes.
        left_out: Tensors of ours that the family has no place for and the outputs do not need.
    """

    family: Family
    architecture: str
    pipeline: str
    labels: tuple[str, ...]
    left_out: tuple[str, ...]


def write_folder(ours: Ours, folder: Path, family: str | None = None) -> Written:
    """Write `config.json`, `model.safetensors` and the tokenizer's files, and read them again.

    Args:
        ours: The model.
        folder: An empty folder.
        family: The `model_type` of the family to write it as. None: the first that fits.

    Raises:
        ConfigError: There is no such family.
        CheckpointError: No family has such a model, and the message says what does not fit; or
            what was read is not what was written.
    """
    kind = _fitting(ours, family)
    rules, head = _rules(kind, ours)
    tensors, tokenizer, classifier = dict(ours.tensors), ours.tokenizer, ours.classifier
    pad = tokenizer.pad
    folds_bias = classifier is not None and not any(r.ours == CLASS_BIAS for r in rules)
    if folds_bias:
        _fold_bias(tensors, kind)
    if classifier is not None and pad == tokenizer.cls:
        pad = len(tensors[TOKENS])
        tensors[TOKENS] = torch.nn.functional.pad(tensors[TOKENS], (0, 0, 0, 1))
    prefix = f"{kind.prefix}." if head else ""
    given = {f"{prefix}{name}": each for name, each in kind.constants(ours.shape).items()}
    for rule in rules:
        parts = rule.conversion.give(tensors[rule.ours].detach().cpu(), len(rule.theirs))
        given |= zip(rule.theirs, (part.contiguous() for part in parts), strict=True)
    save_file(given, folder / files.WEIGHTS, metadata={"format": "pt"})
    readable_like(folder / files.WEIGHTS, folder)
    architecture = head.architecture if head else kind.base_model
    labels = ours.labels if classifier else ()
    config = {
        "architectures": [architecture],
        "model_type": kind.model_type,
        "dtype": "float32",
        "vocab_size": len(tensors[TOKENS]),
        **kind.config(ours.shape),
        "pad_token_id": pad,
        "bos_token_id": tokenizer.cls,
        "eos_token_id": tokenizer.sep,
    }
    if classifier:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
        config["problem_type"] = "single_label_classification"
    files.dump_json(folder / CONFIG, config)
    _write_tokenizer(ours, kind, folder, pad)
    for name, tensor in open_folder(folder, "to").tensors().items():
        if name in tensors and not torch.equal(tensor, tensors[name].float()):
            raise CheckpointError(f"to: {name} was not written as it is; the disk may be damaged")
    used = {rule.ours for rule in rules} | ({CLASS_BIAS} if folds_bias else set())
    return Written(
        kind,
        architecture,
        head.pipeline if head else "feature-extraction",
        labels,
        tuple(sorted(ours.tensors.keys() - used)),
    )


def _fitting(ours: Ours, wanted: str | None) -> Family:
    """Return the family that has such models."""
    known = families()
    if wanted is not None:
        one_of("family", wanted, known)
        known = {wanted: known[wanted]}
    found = {family: _misfits(family, ours) for family in known.values()}
    best = min(found, key=lambda family: len(found[family]))
    if found[best]:
        nearly = f"no published family has such a model; {best.name} comes nearest, and"
        if wanted is not None:
            nearly = f"as a {best.name},"
        raise CheckpointError(
            f"run: {nearly} what does not fit is {'; '.join(found[best])}. "
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


def _classifier_misfits(family: Family, ours: Ours, classifier: Classification) -> list[str]:
    wrong, activation = [], family.pooler_activation
    if classifier.pooling != family.pooling:
        wrong.append(f"objective.pooling={classifier.pooling}, not {family.pooling}")
    if classifier.hidden or classifier.batch_norm:
        wrong.append("a classifier of several layers (objective.hidden, objective.batch_norm)")
    if not classifier.pooler and activation != "none":
        wrong.append("a classifier without a pooler (objective.pooler=true trains one)")
    if classifier.pooler and activation == "none":
        wrong.append("a classifier with a pooler (objective.pooler=false)")
    if classifier.pooler and ours.shape.pooler == "none" and activation != "tanh":
        wrong.append(f"a pooler with tanh, not {activation}")
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


def _fold_bias(tensors: dict[str, Tensor], family: Family) -> None:
    """Move the classifier's bias into the bias of the norm that it reads.

    Of the shifts c of the norm with W c = b, this takes the shortest; the logits are the same.
    """
    weight, bias = tensors["heads.class.linear.weight"].double(), tensors.pop(CLASS_BIAS).double()
    norm = tensors.get("backbone.final_norm.bias")
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    if norm is None or not torch.allclose(weight @ shift, bias, atol=1e-7):
        raise CheckpointError(
            f"run: the classifier's bias has no place in {family.name}, whose classifier has none; "
            "format=onnx takes any model"
        )
    tensors["backbone.final_norm.bias"] = (norm.double() + shift).to(norm.dtype)


def _write_tokenizer(ours: Ours, family: Family, folder: Path, pad: int) -> None:
    """Write the tokenizer, with the layout of special tokens that the model was trained with."""
    tokenizer, path = ours.tokenizer, folder / vocabulary.FILE
    tokenizer.save(path)
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    numbers = [getattr(tokenizer, kind) for kind in vocabulary.SPECIAL_TOKENS]
    names = dict(zip(vocabulary.SPECIAL_TOKENS, tokenizer.pieces(numbers), strict=True))
    if pad != tokenizer.pad:
        names["pad"] = PADDING
        data["added_tokens"].append(
            {
                "id": pad, "content": PADDING, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
        )  # fmt: skip
    if family.mask_lstrip:
        for token in data["added_tokens"]:
            if token["content"] in (names["mask"], names["unk"]):
                token["lstrip"] = token["content"] == names["mask"]
    causal = ours.shape.direction == "causal"
    is_bare = data.get("post_processor") is None and not causal
    inputs = None
    if ours.texts != "published" or is_bare:
        inputs = _inputs(ours)
        data |= inputs.settings(names, {kind: getattr(tokenizer, kind) for kind in names})
    files.dump_json(path, data)
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": ours.length,
        "truncation_side": "right",
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
    if ours.classifier is not None:
        # Here a text is never taken for a special token; one that fills gaps holds masks.
        options["split_special_tokens"] = True
    files.dump_json(folder / vocabulary.OPTIONS, options)
    if inputs is not None:
        inputs.check(path, tokenizer, "causal" if causal else "bidirectional", "to")


def _inputs(ours: Ours) -> Inputs:
    """Return how texts become inputs; a language model is given all of a text."""
    texts: Literal["lines", "labelled"] = "lines" if ours.texts == "lines" else "labelled"
    layouts = vocabulary.layouts_of(texts, ours.shape.direction, ours.tokenizer)
    length = None if texts == "lines" else ours.length
    return Inputs(length, *layouts, segments=ours.shape.segments > 1)
