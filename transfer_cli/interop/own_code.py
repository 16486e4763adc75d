"""A model of ours as a folder with the code to load it, `modeling_transfer.py`.

transformers runs that file where it is asked to (`trust_remote_code=True`). It has our shapes,
adapters, a mix of layers, every pooling and classifiers of several layers; LoRA and (IA)3 are
folded in.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REPLACED_TOKENS,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
)
from transfer_cli.interop.rules import Rule
from transfer_cli.model.adapters import Adapter, Bottleneck, ParallelAdapter
from transfer_cli.model.added import Added
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.block import ACTIVATIONS
from transfer_cli.model.positions import rotary_frequencies
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.sequence import SequenceObjective

MODEL_TYPE = "transfer"
FILE = Path(__file__).with_name("modeling_transfer.py")

_OPTIONS = (
    "width", "heads", "depth", "feedforward", "positions", "activation", "residual",
    "position_kind", "direction", "output_bias", "tie_output", "segments", "output_transform",
    "embedding_width", "epsilon", "norm", "feedforward_kind", "biases", "query_key_norm",
    "embedding_scale", "window", "output_activation", "visits",
)  # fmt: skip
"""What the code reads of a `BackboneShape`."""

_BUILT = {
    "norm": ("layer", "layer_no_bias", "rms", "rms_unit"),
    "feedforward_kind": ("mlp", "gated"),
    "attention": ("full", "window"),
    "position_kind": ("learned", "sinusoidal", "rotary", "relative_bias"),
    "biases": ("all", "none", "qkv"),
    "residual": (
        "pre", "post", "tutorial", "pre_first_plain", "sandwich", "reordered", "parallel",
    ),
}  # fmt: skip
"""Fields that name a class, and what the code has of them."""


class Kind(NamedTuple):
    """A class of the code.

    Args:
        architecture: Its name.
        auto: The class of transformers that finds it.
        pipeline: What the hub calls its task.
        heads: How its heads are called, by the beginning of our names.
    """

    architecture: str
    auto: str
    pipeline: str
    heads: Mapping[str, str]


_BARE = Kind("TransferModel", "AutoModel", "feature-extraction", {})
_LM = {"heads.lm.": "lm_head."}
_CAUSAL = Kind("TransferForCausalLM", "AutoModelForCausalLM", "text-generation", _LM)
_MASKED = Kind("TransferForMaskedLM", "AutoModelForMaskedLM", "fill-mask", _LM)
_OF_CLASSIFIER = {
    "heads.class.": "classifier.", "heads.pooler.linear.": "classifier.pooler.",
    "heads.pooler.norm.": "classifier.pooler_norm.",
}  # fmt: skip
_KINDS = {
    SEQUENCE_CLASSIFICATION: Kind(
        "TransferForSequenceClassification", "AutoModelForSequenceClassification",
        "text-classification", _OF_CLASSIFIER,
    ),
    MULTIPLE_CHOICE: Kind(
        "TransferForMultipleChoice", "AutoModelForMultipleChoice", "multiple-choice",
        _OF_CLASSIFIER,
    ),
    QUESTION_ANSWERING: Kind(
        "TransferForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering",
        {"heads.span.": "qa_outputs."},
    ),
    TOKEN_CLASSIFICATION: Kind(
        "TransferForTokenClassification", "AutoModelForTokenClassification",
        "token-classification", {"heads.tags.": "classifier."},
    ),
}  # fmt: skip


def misfits(shape: BackboneShape, added: Mapping[str, Added], head: str | None) -> list[str]:
    """Return what the code does not have: parts of your own, mostly."""
    wrong = [
        f"{name}={getattr(shape, name)}"
        for name, known in _BUILT.items()
        if getattr(shape, name) not in known
    ]
    known = (Adapter, ParallelAdapter, ScalarMix)
    wrong += sorted({part.describe() for part in added.values() if type(part) not in known})
    # Of a model that finds replaced tokens the backbone is written.
    if head is not None and head not in (LANGUAGE_MODEL, REPLACED_TOKENS, *_KINDS):
        wrong.append(f"a head for {head.replace('_', ' ')} (head=false leaves it out)")
    return wrong


def kind_of(head: str | None, shape: BackboneShape, names: Iterable[str]) -> Kind:
    """Return the class for a kind of head; a language model may have come without its own."""
    if head in _KINDS:
        return _KINDS[head]
    is_bare = shape.tie_output and not shape.output_bias and not shape.output_transform
    if head is None or not (is_bare or any(name.startswith("heads.lm.") for name in names)):
        return _BARE
    return _CAUSAL if shape.direction == "causal" else _MASKED


def rules(names: Iterable[str], kind: Kind) -> list[Rule]:
    """Return the names of the tensors there."""
    prefix = "" if kind is _BARE else "backbone."
    theirs = {"backbone.": prefix, "readout.": f"{prefix}mix.", **kind.heads}
    return [
        Rule(name, (there + name.removeprefix(ours),))
        for name in names
        for ours, there in theirs.items()
        if name.startswith(ours)
    ]


def config(shape: BackboneShape, added: Mapping[str, Added], kind: Kind) -> dict[str, Any]:
    """Return the keys of `config.json` that the code reads, and where it is."""
    adapters, mix = dict[str, list[Any]](), None
    for name, part in added.items():
        if isinstance(part, Bottleneck):  # the same in every block
            activation = next(a for a, each in ACTIVATIONS.items() if each is part.activation)
            site = name.partition(".sites.")[2].partition(".")[0]
            scale = [part.scale] if isinstance(part, ParallelAdapter) else []
            adapters[site] = [part.down.out_features, activation, *scale]
        if isinstance(part, ScalarMix):
            mix = "normed" if part.norm else "plain"
    module = FILE.stem
    return {
        "auto_map": {
            "AutoConfig": f"{module}.TransferConfig",
            "AutoModel": f"{module}.{_BARE.architecture}",
            kind.auto: f"{module}.{kind.architecture}",
        },
        **{name: getattr(shape, name) for name in _OPTIONS},
        "embedding_norm": shape.has_embedding_norm,
        "final_norm": shape.has_final_norm,
        "head_size": shape.head_size,
        "shared_heads": shape.shared_heads,
        "has_window": shape.has_window,
        **_angles(shape),
        "adapters": adapters,
        "mix": mix,
        "tie_word_embeddings": False,  # the code itself reads the one table twice
    }


def _angles(shape: BackboneShape) -> dict[str, list[float]]:
    """Return the angle of each pair of a head's numbers, in blocks of both kinds."""
    if shape.position_kind != "rotary":
        return {}
    found = {"angles": shape.rotary, "local_angles": shape.rotary.local}
    with torch.device("cpu"):  # a plan has its tensors on the meta device
        return {n: rotary_frequencies(each, shape.head_size).tolist() for n, each in found.items()}


def of_classifier(classifier: SequenceObjective, shape: BackboneShape) -> dict[str, Any]:
    """Return the keys of `config.json` that say how the classifier is built."""
    activation = "tanh" if shape.pooler == "none" else shape.pooler
    return {
        "pooling": classifier.pooling,
        "pooler": activation if classifier.pooler else None,
        "hidden": list(classifier.hidden),
        "batch_norm": classifier.batch_norm,
    }
