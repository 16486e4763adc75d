"""A model of ours as a folder that Hugging Face's libraries load."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from transfer_cli.data.tokenizer_file import save_tokenizer
from transfer_cli.errors import CheckpointError
from transfer_cli.interop import files, vocabulary
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, Family
from transfer_cli.interop.inputs import Inputs
from transfer_cli.interop.published_config import CONFIG
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.targets import CLASS_BIAS, GRAPHS, NORM_BIAS, Ours, Target, target_of
from transfer_cli.model.weights import copy_permissions

TOKENS = "backbone.token_embedding.weight"
PADDING = "[PAD]"
"""For a classifier without a padding token, which needs one to find the end of a text."""


@dataclass(frozen=True)
class WrittenFolder:
    """What was written, and the tensors that have no place there and the outputs do not need."""

    target: Target
    labels: tuple[str, ...]
    left_out: tuple[str, ...]


def write_folder(ours: Ours, folder: Path, family: str | None = None) -> WrittenFolder:
    """Write `config.json`, `model.safetensors` and the tokenizer's files, and read them again."""
    target = target_of(ours, family)
    tensors, tokenizer, classifier = dict(ours.tensors), ours.tokenizer, ours.classifier
    pad = tokenizer.pad
    folds_bias = classifier is not None and not any(r.ours == CLASS_BIAS for r in target.rules)
    if folds_bias:
        _fold_bias(tensors, target.family.name)
    if classifier is not None and pad == tokenizer.cls:
        pad = len(tensors[TOKENS])
        tensors[TOKENS] = torch.nn.functional.pad(tensors[TOKENS], (0, 0, 0, 1))
    save_file(published_tensors(tensors, target), folder / files.WEIGHTS, metadata={"format": "pt"})
    copy_permissions(folder / files.WEIGHTS, folder)
    config = {"architectures": [target.architecture], **target.config}
    _write_config(ours, folder, target.family, config, len(tensors[TOKENS]), pad)
    write_tokenizer(ours, folder, pad, mask_lstrip=target.family.mask_lstrip)
    used = {rule.ours for rule in target.rules}
    again = open_folder(folder, "to").tensors()
    same = {n for n in again if n in tensors and torch.equal(again[n], tensors[n].float())}
    if damaged := (used & again.keys() & tensors.keys()) - same:
        raise CheckpointError(
            f"to: {min(damaged)} was not written as it is; the disk may be damaged"
        )
    left_out = ours.tensors.keys() - used - same - ({CLASS_BIAS} if folds_bias else set())
    return WrittenFolder(target, ours.labels, tuple(sorted(left_out)))


def published_tensors(tensors: Mapping[str, Tensor], target: Target) -> dict[str, Tensor]:
    """Return tensors of ours by their names in a published model."""
    published = dict(target.constants)
    for rule in target.rules:
        parts = rule.conversion.to_theirs(tensors[rule.ours].detach().cpu(), len(rule.theirs))
        published |= zip(rule.theirs, (part.contiguous() for part in parts), strict=True)
    return published


def write_beside_graph(ours: Ours, folder: Path, preferred: Family | None) -> str:
    """Write `config.json` and the tokenizer's files beside a graph, as optimum looks for them.

    Returns what the hub calls its task.

    The config is that of the family which the model has, `preferred` first; where none has its
    shape, it names one that reads in its direction, with the sizes. The graph alone is computed.
    """
    known, shape = families(), ours.shape
    fitting = (kind for kind in known.values() if not kind.misfits(shape, ours.tokenizer))
    if family := preferred or next(fitting, None):
        config = family.config(shape)
    else:
        family = known["gpt2" if shape.direction == "causal" else "bert"]
        sizes = ("width", "heads", "depth", "positions")
        config = {family.config_key(name): getattr(shape, name) for name in sizes}
    head = family.heads(shape).get(ours.head or "")
    architecture = head.architecture if head else family.base_model
    rows, pad = ours.tokenizer.size, ours.tokenizer.pad
    _write_config(ours, folder, family, {"architectures": [architecture], **config}, rows, pad)
    write_tokenizer(ours, folder, pad, mask_lstrip=False)
    return head.pipeline if head else "feature-extraction"


def _write_config(
    ours: Ours, folder: Path, family: Family, config: Mapping[str, Any], rows: int, pad: int
) -> None:
    tokenizer, classifier = ours.tokenizer, ours.classifier
    content = {
        **config,
        "model_type": family.model_type,
        "dtype": "float32",
        "vocab_size": rows,
        "pad_token_id": pad,
        "bos_token_id": tokenizer.cls,
        "eos_token_id": ours.ends if len(ours.ends) > 1 else tokenizer.sep,
    }
    if ours.shape.has_encoder:
        start, *forced = tokenizer.target_start
        content["decoder_start_token_id"] = start
        if forced:
            content["forced_bos_token_id"] = forced[0]
    if ours.labels:
        content["id2label"] = {str(number): label for number, label in enumerate(ours.labels)}
        content["label2id"] = {label: number for number, label in enumerate(ours.labels)}
    if classifier is not None and classifier.problem_type is not None:
        content["problem_type"] = classifier.problem_type
    files.dump_json(folder / CONFIG, content)


def _fold_bias(tensors: dict[str, Tensor], family: str) -> None:
    """Move the classifier's bias into the bias of the norm that it reads.

    Of the shifts c of the norm with W c = b, this takes the shortest; the logits are the same.
    """
    weight, bias = tensors["heads.class.linear.weight"].double(), tensors.pop(CLASS_BIAS).double()
    norm = tensors.get(NORM_BIAS)
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    if norm is None or not torch.allclose(weight @ shift, bias, atol=1e-7):
        raise CheckpointError(
            f"run: the classifier's bias has no place in {family}, which has none{GRAPHS}"
        )
    tensors[NORM_BIAS] = (norm.double() + shift).to(norm.dtype)


def write_tokenizer(ours: Ours, folder: Path, pad: int, *, mask_lstrip: bool) -> None:
    """Write the tokenizer, with the layout of special tokens that the model was trained with."""
    tokenizer, path = ours.tokenizer, folder / vocabulary.TOKENIZER_FILE
    save_tokenizer(tokenizer, path)
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    numbers = vocabulary.special_numbers(tokenizer)
    names = dict(zip(numbers, tokenizer.pieces(list(numbers.values())), strict=True))
    if pad != tokenizer.pad:
        names["pad"] = PADDING
        data["added_tokens"].append(
            {
                "id": pad, "content": PADDING, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
        )  # fmt: skip
    if mask_lstrip:
        for token in data["added_tokens"]:
            if token["content"] in (names["mask"], names["unk"]):
                token["lstrip"] = token["content"] == names["mask"]
    direction = ours.shape.direction
    causal = direction == "causal"
    is_bare = data.get("post_processor") is None and not causal
    inputs = None
    if ours.texts != "published" or is_bare:
        inputs = _inputs(ours)
        data |= inputs.settings(names, numbers)
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
        **{f"{key}_token": names[key] for key in vocabulary.SPECIAL_TOKENS},
    }
    if causal or ours.shape.has_encoder:
        begin = names.get(vocabulary.BEGIN, names["cls"])
        options |= {"bos_token": begin, "eos_token": names["sep"]}
    if ours.chat is not None:
        written = {key: ours.chat.tokens.get(key) for key in ("bos_token", "eos_token")}
        options |= {key: name for key, name in written.items() if name}
        (folder / vocabulary.CHAT_TEMPLATE).write_text(ours.chat.source, encoding="utf-8")
    if ours.head not in (None, LANGUAGE_MODEL):
        # Here a text is never taken for a special token; one that fills gaps holds masks.
        options["split_special_tokens"] = True
    files.dump_json(folder / vocabulary.OPTIONS, options)
    if inputs is not None:
        inputs.check(path, tokenizer, direction)


def _inputs(ours: Ours) -> Inputs:
    """Return how texts become inputs; a language model is given all of a text."""
    texts: Literal["lines", "labelled"] = "lines" if ours.texts == "lines" else "labelled"
    layouts = vocabulary.layouts_of(texts, ours.shape.direction, ours.tokenizer)
    length = None if texts == "lines" else ours.length
    return Inputs(length, *layouts, segments=ours.shape.segments > 1, truncate=ours.truncate)
