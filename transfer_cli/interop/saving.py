"""A model of ours as a folder that Hugging Face's libraries load."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError
from transfer_cli.interop import files, vocabulary
from transfer_cli.interop.bert import Bert, Roberta
from transfer_cli.interop.families import FAMILIES
from transfer_cli.interop.family import Family
from transfer_cli.interop.gpt2 import Gpt2
from transfer_cli.interop.rules import Rule
from transfer_cli.interop.settings import CONFIG
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.weights import readable_like

TOKENS = "backbone.token_embedding.weight"
CLASS = "heads.class.linear"
PADDING = "[PAD]"
"""Of a model that has no padding token of its own, and needs one to find the end of a text."""


@dataclass(frozen=True)
class Classifier:
    """What turns a text's state into labels.

    Args:
        labels: Their names.
        pooling: Which state it reads.
        has_pooler: Whether that passes through the pooler.
        is_linear: Whether nothing else stands between them.
    """

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
        classifier: What it was adapted for; None for a language model or a bare backbone.
        keeps_head: Whether the head goes along.
        texts: How the texts were laid out that it was trained on last: lines, as text to pretrain
            on is; labelled, as labelled texts are; published, as its tokenizer says.
        added: Names of tensors that edits have added, each with what people call its part.
    """

    shape: BackboneShape
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer
    classifier: Classifier | None
    keeps_head: bool
    texts: Literal["lines", "labelled", "published"]
    added: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What was written.

    Args:
        family: As a model of which family.
        architecture: What that family calls it.
        kind: "classifier", "causal", "masked" or "backbone".
        folded_bias: Whether the classifier's bias stands in the final norm.
        left_out: Tensors of ours that the family has no place for and the outputs do not need.
    """

    family: Family
    architecture: str
    kind: str
    folded_bias: bool
    left_out: tuple[str, ...]


def write_folder(ours: Ours, folder: Path) -> Written:
    """Write `config.json`, `model.safetensors` and the tokenizer's files.

    Args:
        ours: The model.
        folder: Where to; it is there, and empty.

    Raises:
        CheckpointError: No family has such a model; the message says what does not fit.
    """
    family = _fitting(ours)
    rules, architecture = _rules(family, ours)
    tensors = dict(ours.tensors)
    pad = ours.tokenizer.pad
    needs_padding = ours.classifier is not None and pad == ours.tokenizer.cls and ours.keeps_head
    folds_bias = isinstance(family, Gpt2) and ours.classifier is not None and ours.keeps_head
    if folds_bias:
        tensors = _without_bias(tensors)
    if isinstance(family, Bert) and not ours.shape.segments:
        # Their embeddings always have one; a row of zeros changes nothing.
        rules = [*rules, Rule(_NO_SEGMENTS, (f"{_in(family)}{_SEGMENTS}",))]
        tensors[_NO_SEGMENTS] = torch.zeros(1, ours.shape.embedding_size)
    if needs_padding:
        table = tensors[TOKENS]
        tensors[TOKENS] = torch.cat([table, torch.zeros(1, table.shape[1], dtype=table.dtype)])
        pad = len(table)
    given: dict[str, Tensor] = {}
    for rule in rules:
        parts = rule.layout.give(tensors[rule.ours].detach().cpu())
        given |= dict(zip(rule.theirs, parts, strict=True))
    save_file(
        {name: tensor.contiguous() for name, tensor in given.items()},
        folder / files.WEIGHTS,
        metadata={"format": "pt"},
    )
    readable_like(folder / files.WEIGHTS, folder)
    config = {
        "architectures": [architecture],
        "model_type": family.model_type,
        "dtype": "float32",
        "vocab_size": len(tensors[TOKENS]),
        **family.config(ours.shape),
        **_tokens(ours, pad),
        **(_labels(ours.classifier) if ours.classifier and ours.keeps_head else {}),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    _write_tokenizer(ours, family, folder, pad if needs_padding else None)
    used = {rule.ours for rule in rules} | ({f"{CLASS}.bias"} if folds_bias else set())
    return Written(
        family,
        architecture,
        _kind(family, architecture),
        folds_bias,
        tuple(sorted(ours.tensors.keys() - used)),
    )


def _kind(family: Family, architecture: str) -> str:
    names = family.architectures
    if architecture == names.language_model:
        return "causal" if isinstance(family, Gpt2) else "masked"
    return "classifier" if architecture == names.classifier else "backbone"


_NO_SEGMENTS = "no segments"
_SEGMENTS = "embeddings.token_type_embeddings.weight"


def _in(family: Family) -> str:
    return f"{family.prefix}."


def _fitting(ours: Ours) -> Family:
    """Return the family that has such models.

    Raises:
        CheckpointError: There is none.
    """
    found = {family: _misfits(family, ours) for family in FAMILIES}
    best = min(FAMILIES, key=lambda family: len(found[family]))
    if found[best]:
        raise CheckpointError(
            f"run: no published family has such a model; {best.name} comes nearest, and what does "
            f"not fit is {'; '.join(found[best])}. format=onnx takes any model"
        )
    return best


def _misfits(family: Family, ours: Ours) -> list[str]:
    wrong = family.misfits(ours.shape, ours.tokenizer)
    if wrong:
        return wrong
    has_place = {rule.ours for rule in family.backbone(ours.shape)}
    lost = [n for n in ours.tensors if not n.startswith("heads.") and n not in has_place]
    wrong += sorted({ours.added.get(name, name) for name in lost})
    if not ours.keeps_head:
        return wrong
    if ours.classifier is not None:
        return wrong + _classifier_misfits(family, ours, ours.classifier)
    own = {name for name in ours.tensors if name.startswith("heads.lm.")}
    theirs = {rule.ours for rule in family.language_model(ours.shape)}
    if own and own != theirs:
        wrong.append(
            f"the language-model head ({', '.join(sorted(own ^ theirs))}; head=false leaves it out)"
        )
    return wrong


def _classifier_misfits(family: Family, ours: Ours, classifier: Classifier) -> list[str]:
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


def _rules(family: Family, ours: Ours) -> tuple[list[Rule], str]:
    """Return the rules, with whole names, and what the family calls such a model."""
    shape, names = ours.shape, family.architectures
    classifies = ours.classifier is not None and ours.keeps_head
    backbone = [
        Rule(rule.ours, tuple(f"{family.prefix}.{n}" for n in rule.theirs), rule.layout)
        for rule in family.backbone(shape)
    ]
    language_model = family.language_model(shape)
    head: list[Rule] = family.pooler(of_classifier=classifies)
    architecture = names.backbone
    if classifies:
        architecture = names.classifier
        head = [*head, *family.classifier()]
    elif ours.keeps_head and ours.classifier is None and _has_head(family, ours):
        architecture = names.language_model
    if ours.keeps_head and not classifies:
        head = [*head, *language_model]
    there = [rule for rule in head if rule.ours in ours.tensors]
    rules = [*backbone, *there]
    if architecture == names.backbone:
        # A bare backbone has no prefix, nor has what belongs to it.
        cut = f"{family.prefix}."
        rules = [
            Rule(r.ours, tuple(n.removeprefix(cut) for n in r.theirs), r.layout) for r in rules
        ]
    return rules, architecture


def _has_head(family: Family, ours: Ours) -> bool:
    rules = family.language_model(ours.shape)
    tied = isinstance(family, Gpt2) and ours.shape.tie_output
    return tied or (bool(rules) and all(rule.ours in ours.tensors for rule in rules))


def _without_bias(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fold the classifier's bias into the bias of the norm that it reads: GPT-2's has none.

    Of the shifts c of the norm with W c = b the shortest is taken; the logits are the same.

    Raises:
        CheckpointError: The rows of W depend on each other, so that there is none.
    """
    found = dict(tensors)
    weight, bias = found[f"{CLASS}.weight"].double(), found.pop(f"{CLASS}.bias").double()
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    if not torch.allclose(weight @ shift, bias, atol=1e-7):
        raise CheckpointError(
            "run: the classifier's bias has no place in GPT-2, whose classifier has none; "
            "format=onnx takes any model"
        )
    norm = found["backbone.final_norm.bias"]
    found["backbone.final_norm.bias"] = (norm.double() + shift).to(norm.dtype)
    return found


def _labels(classifier: Classifier) -> dict[str, Any]:
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
    names = dict(
        zip(
            ("pad", "unk", "cls", "sep", "mask"),
            tokenizer.pieces(
                [tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask]
            ),
            strict=True,
        )
    )
    if new_padding is not None:
        names["pad"] = PADDING
        data["added_tokens"].append(
            {
                "id": new_padding, "content": PADDING, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
        )  # fmt: skip
    if isinstance(family, Roberta):
        # As its own tokenizer has it: the space before a gap belongs to the gap.
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
    """Return what puts special tokens around texts (see `data.encoded_task`, `data.corpus`)."""
    tokenizer, causal = ours.tokenizer, ours.shape.direction == "causal"
    cls, sep = names["cls"], names["sep"]
    later = 1 if ours.shape.segments > 1 else 0
    numbers = {cls: tokenizer.cls, sep: tokenizer.sep}

    def special(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    first: dict[str, Any] = {"Sequence": {"id": "A", "type_id": 0}}
    second: dict[str, Any] = {"Sequence": {"id": "B", "type_id": later}}
    single: Sequence[dict[str, Any]]
    if ours.texts == "lines":
        single = [special(sep, 0), first, *([] if causal else [special(sep, 0)])]
        pair = [special(sep, 0), first, special(sep, 0), second]
        pair += [] if causal else [special(sep, later)]
    elif causal:
        single = [first, special(cls, 0)]
        pair = [first, special(sep, 0), second, special(cls, later)]
    else:
        single = [special(cls, 0), first, special(sep, 0)]
        pair = [*single, second, special(sep, later)]
    return {
        "type": "TemplateProcessing",
        "single": list(single),
        "pair": pair,
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in numbers.items()
        },
    }
