"""A published model's folder, read as a model of ours."""

import json
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transfer_cli.data.records import MAX_LABELS
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError, list_names, raised_as
from transfer_cli.interop import files
from transfer_cli.interop.families import families
from transfer_cli.interop.family import (
    LANGUAGE_MODEL,
    MULTIPLE_CHOICE,
    PRETRAINING,
    QUESTION_ANSWERING,
    REPLACED_TOKENS,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Family,
    PublishedHead,
)
from transfer_cli.interop.published_config import CONFIG, PublishedConfig
from transfer_cli.interop.rules import Rule, with_prefix, without_prefix
from transfer_cli.interop.sentence_folder import sentence_modules
from transfer_cli.interop.vocabulary import longest_input, read_tokenizer
from transfer_cli.model.backbone import MAX_SIZE, BackboneShape
from transfer_cli.model.encoder_decoder import build_backbone
from transfer_cli.model.heads import LanguageModelHead, Pooler, SequenceHead, TokenDiscriminator
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import LazyTensors, ModelDescription

log = logging.getLogger(__name__)

TOKEN_TABLES = ("backbone.token_embedding.weight", "heads.lm.weight", "heads.lm.bias")
"""Our tensors with a row for each token."""

_PROBLEMS = (None, "single_label_classification", "multi_label_classification", "regression")
_PADDED_SHARE = 50
"""For speed, tables of tokens are padded by less than one of so many rows (Phi: 905 of 51,200)."""
_ADAPTER = "adapter_config.json"
PEFT_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering", "CAUSAL_LM": "ForCausalLM",
    "SEQ_2_SEQ_LM": "ForConditionalGeneration",
}  # fmt: skip
"""The end of the class of peft that loads an adapter, by its `task_type`."""
_UNMERGEABLE = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING",
            "ADAPTION_PROMPT", "CARTRIDGE")  # fmt: skip
"""Adapters that add something beside the weights, so that nothing can be merged."""


@dataclass(frozen=True)
class Published:
    """A model that others have published, as one of ours.

    Args:
        rules: How our tensors are made of those in the folder, by their full names.
        length: How many tokens of a text it reads, as its tokenizer says; None: it does not say.
    """

    folder: Path
    family: Family
    description: ModelDescription
    tokenizer: Tokenizer
    rules: tuple[Rule, ...]
    dropped: tuple[str, ...]
    length: int | None

    @property
    def reads_lines(self) -> bool:
        """Whether a separator is before a text, as in our pretraining on lines."""
        return self.tokenizer.before_text == self.tokenizer.sep

    def tensors(self, *, values: bool = True) -> Mapping[str, Tensor]:
        """Return its weights under our names, in float32; without values, on the meta device."""
        rules, vocabulary = {rule.ours: rule for rule in self.rules}, self.description.vocabulary

        def convert(there: Mapping[str, Tensor], name: str) -> Tensor:
            value = rules[name].conversion.to_ours([there[theirs] for theirs in rules[name].theirs])
            if name not in TOKEN_TABLES or len(value) == vocabulary:
                return value
            if len(value) < vocabulary:  # by `Family.text_end`
                return torch.cat([value, value.mean(0, keepdim=True)])
            return value[:vocabulary].clone()

        on_meta = files.read_tensors(self.folder, self.family.synonyms, values=False)
        shapes = {name: convert(on_meta, name) for name in rules}
        if not values:
            return shapes
        there = files.read_tensors(self.folder, self.family.synonyms)
        return LazyTensors(shapes, partial(convert, there))


def is_published(folder: Path) -> bool:
    """Return whether a folder looks like a published model, or an adapter, rather than a run."""
    is_one = (folder / CONFIG).is_file() or (folder / _ADAPTER).is_file()
    return is_one and not (folder / "model.json").exists()


def open_folder(folder: Path, key: str) -> Published:
    """Return the model in a folder, without its weights."""
    if (folder / _ADAPTER).is_file():
        raise _adapter_error(folder, key)
    settings = PublishedConfig.read(folder)
    family = _find_family(settings, key)
    with raised_as(CheckpointError, f"{settings.path}: "):
        shape = family.shape(settings)
    tensors = files.read_tensors(folder, family.synonyms, values=False)
    shape = family.shape_from_weights(shape, tensors.keys())
    there = _Folder(settings, family, shape, tensors)
    backbone = family.import_rules(settings, shape)
    if any(name.startswith(family.dotted_prefix) for name in tensors):
        backbone = with_prefix(backbone, family.dotted_prefix)
    there.check_blocks(backbone)
    if shape.tie_output and there.has_other_output(backbone):
        shape = replace(shape, tie_output=False)
        there = replace(there, shape=shape)
    trained = there.find_head()
    rules = (*backbone, *trained.rules)
    there.check_sizes(rules, len(trained.labels))
    tokenizer = there.tokenizer()
    description = ModelDescription(
        shape=shape,
        vocabulary=tokenizer.size,
        objective=trained.objective,
        labels=trained.labels,
        task=trained.task,
        tokenizer_hash=tokenizer.hash,
    )
    start = settings.values.get("decoder_start_token_id")
    if shape.has_encoder and start not in (None, tokenizer.target_start[0]):
        log.warning(
            "%s: its targets stand behind the token %s (decoder_start_token_id), and here behind "
            "%d: fine-tune it before it answers", settings.path, start, tokenizer.target_start[0],
        )  # fmt: skip
    dropped = tensors.keys() - {name for rule in rules for name in rule.theirs}
    return Published(
        folder, family, description, tokenizer, rules, tuple(sorted(dropped)),
        longest_input(folder),
    )  # fmt: skip


def _adapter_error(folder: Path, key: str) -> CheckpointError:
    """Return the error of a folder that holds changes of another model, with what merges them."""
    settings = PublishedConfig.read(folder, _ADAPTER).values
    base, kind = (settings.get(name) for name in ("base_model_name_or_path", "peft_type"))
    problem = f"{key}: {folder} holds an adapter of the model {str(base)[:100]!r} ({_ADAPTER})"
    if not isinstance(kind, str) or not isinstance(base, str) or kind in _UNMERGEABLE:
        return CheckpointError(
            f"{problem}, and nothing that can be merged into it; give that model"
        )
    auto = f"AutoPeftModel{PEFT_CLASSES.get(str(settings.get('task_type')), '')}"
    code = (
        f"from peft import {auto} as A; from transformers import AutoTokenizer as T; "
        f"A.from_pretrained({json.dumps(str(folder))}).merge_and_unload()"
        '.save_pretrained("merged"); '
        f'T.from_pretrained({json.dumps(base)}).save_pretrained("merged")'
    )
    return CheckpointError(
        f"{problem}, which has to be merged into it first: python -c {shlex.quote(code)}, then "
        f"{key}=merged"
    )


def _find_family(settings: PublishedConfig, key: str) -> Family:
    kind, known = settings.values.get("model_type"), families()
    if kind is None:
        architectures = settings.values.get("architectures")
        classes = architectures if isinstance(architectures, list) else []
        by_class = [f for f in known.values() if any(map(f.has_class, map(str, classes)))]
        if not by_class:
            raise CheckpointError(
                f"{settings.path} has no model_type, which names the family, and no architectures "
                f'that do; put it there, such as "model_type": "bert" ({", ".join(known)})'
            )
        return by_class[0]
    if isinstance(kind, str) and kind in known:
        return known[kind]
    names = ", ".join(f"{family.name} ({family.model_type})" for family in known.values())
    raise CheckpointError(
        f"{key}: {settings.path.parent} is of the family {str(kind)[:100]!r} (model_type in "
        f"{CONFIG}), which is not read; those that are: {names}"
    )


@dataclass(frozen=True)
class _FoundHead:
    """The rules of the heads there, the nodes of what trained the model, and its labels."""

    rules: Sequence[Rule]
    objective: Mapping[str, Any]
    labels: tuple[str, ...] = ()
    task: Mapping[str, Any] | None = None


def _node(path: str, **options: Any) -> dict[str, Any]:
    """Return the config node of a class of ours; tasks are on the floor of this folder."""
    return {"_target_": f"transfer_cli.{path}", **options}


@dataclass(frozen=True)
class _Folder:
    """The config of a folder and its tensors, by their names there, to be compared."""

    settings: PublishedConfig
    family: Family
    shape: BackboneShape
    found: Mapping[str, Tensor]

    def check_blocks(self, rules: Sequence[Rule]) -> None:
        """Refuse a backbone with fewer tensors than the config asks for, or with more blocks."""
        place, depth = self.settings.path, f"{self.family.config_key('depth')}={self.shape.depth}"
        lost = [name for rule in rules for name in rule.theirs if name not in self.found]
        if lost:
            raise CheckpointError(
                f"{place.parent}: the weights lack {list_names(lost)}, which {place.name} asks for "
                f"({depth}); without the whole backbone nothing is loaded"
            )
        surplus = [n for n in self.found if self.family.is_beyond(n, self.shape)]
        if surplus:
            raise CheckpointError(
                f"{place} says {depth}, and the weights hold {list_names(surplus)}; one of the two "
                "is of another model"
            )

    def has_other_output(self, rules: Sequence[Rule]) -> bool:
        """Return whether an output layer there is not the table of tokens, whatever a key says."""
        head = self.family.heads(replace(self.shape, tie_output=False)).get(LANGUAGE_MODEL)
        both = [*rules, *(head.rules if head else ())]
        names = [rule.theirs[0] for rule in both if rule.ours in TOKEN_TABLES[:2]]
        if len(names) < 2 or names[1] not in self.found:
            return False
        tensors = files.read_tensors(self.settings.path.parent, self.family.synonyms)
        return not torch.equal(*(tensors[name].float() for name in names))

    def check_sizes(self, rules: Sequence[Rule], labels: int) -> None:
        """Refuse tensors of other sizes than the config asks for, or without fractions."""
        shape, vocabulary = self.shape, self.settings.value("vocab_size", None, int)
        if not 0 < vocabulary <= MAX_SIZE:
            raise self.settings.error("vocab_size", f"a number from 1 to {MAX_SIZE:,}")
        with without_weights():
            heads: dict[str, nn.Module] = {
                "lm": LanguageModelHead(shape, vocabulary),
                "class": SequenceHead(shape.width, max(1, labels), "cls_first"),
                "discriminator": TokenDiscriminator(shape),
                "pair": SequenceHead(shape.width, 2, "cls_first"),
                "span": nn.Linear(shape.width, 2),
                "tags": nn.Linear(shape.width, max(1, labels)),
            }
            if self.family.pooler_activation != "none":
                heads["pooler"] = Pooler(shape, self.family.pooler_activation)
            tensors = TransferModel(build_backbone(shape, vocabulary), heads).state_dict()
            expected: dict[str, Tensor] = {}
            for rule in rules:
                parts = rule.conversion.to_theirs(tensors[rule.ours], len(rule.theirs))
                expected |= zip(rule.theirs, parts, strict=True)
        for name, tensor in expected.items():
            stored = self.found[name]
            if tensor.shape != stored.shape:
                raise self._contradiction(name, tensor)
            if not stored.is_floating_point():
                raise CheckpointError(
                    f"{self.settings.path.parent}: {name} holds numbers of type {stored.dtype}, "
                    "expected float"
                )

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, and say which rows of the model it has no token for."""
        folder, rows = self.settings.path.parent, self.settings.value("vocab_size", None, int)
        end = self.family.text_end
        tokenizer = read_tokenizer(folder, rows, end)
        has_added = tokenizer.size == rows + 1 and bool(end) and tokenizer.token(end) == rows
        if has_added:
            log.info("added: the token %s, which ends a text; its row is the mean of all", end)
        unused = 0 if has_added else rows - tokenizer.size
        if unused < 0:
            raise CheckpointError(
                f"{folder}: the tokenizer has {tokenizer.size:,} tokens and the model {rows:,} "
                "rows; put the tokenizer there that the model was trained with"
            )
        if unused >= max(rows / _PADDED_SHARE, 128):
            log.warning(
                "%s: dropped the last %d of %d rows, which no token has: so many that the "
                "tokenizer may be that of another model", folder, unused, rows,
            )  # fmt: skip
        elif unused:
            log.info("dropped: the last %d rows of the tokens, which no token has", unused)
        return tokenizer

    def find_head(self) -> _FoundHead:
        """Return what trained the model: the head that is there, the first of this order."""
        heads, masked = self.family.heads(self.shape), _node("objectives.masked_lm.MaskedLM")
        detection = _node("objectives.replaced_tokens.ReplacedTokens", width=None)
        tests: tuple[tuple[str, Callable[[PublishedHead], _FoundHead | None]], ...] = (
            (MULTIPLE_CHOICE, self._chooser),
            (SEQUENCE_CLASSIFICATION, self._classifier),
            (QUESTION_ANSWERING, self._reader),
            (TOKEN_CLASSIFICATION, self._tagger),
            (PRETRAINING, lambda head: _FoundHead(head.rules, masked)),
            (REPLACED_TOKENS, lambda head: _FoundHead(head.rules, detection)),
        )
        output = heads[LANGUAGE_MODEL].rules if LANGUAGE_MODEL in heads else ()
        output = output if self._has_tensors(output) else ()
        # Other heads of a causal one read the last token of a text, ours the classification token
        # behind it, and have learnt other inputs.
        for kind, trained_by in () if self.family.is_causal else tests:
            if kind in heads and self._has_tensors(heads[kind].rules):
                trained = trained_by(heads[kind])
                if trained is not None:
                    shared = () if kind == PRETRAINING else output
                    return replace(trained, rules=(*shared, *trained.rules))
        usual = heads.get(SEQUENCE_CLASSIFICATION)
        own_pooler = [r for r in usual.rules if r.ours.startswith("heads.pooler.")] if usual else []
        poolers = (
            rules
            for pooler in (self.family.pooler_rules(), own_pooler)
            for rules in (pooler, without_prefix(pooler, self.family.dotted_prefix))
        )
        pooler = next(filter(self._has_tensors, poolers), [])
        if self.shape.has_encoder:
            objective = _node("tasks.text_to_text.seq2seq.Seq2Seq")
            task = _node("tasks.text_to_text.task.TextToTextTask")
            return _FoundHead(output, objective, task=task)
        causal = _node("objectives.causal_lm.CausalLM")
        if (vectors := self._sentence_vectors()) is not None:
            return replace(vectors, rules=(*output, *pooler))
        return _FoundHead((*output, *pooler), causal if self.family.is_causal else masked)

    def _sentence_vectors(self) -> _FoundHead | None:
        """Return what trained vectors of texts, where the folder says how they are made."""
        try:
            modules = sentence_modules(self.settings.path.parent)
        except CheckpointError:
            return None  # modules that are not computed here: the model alone can be adapted
        if modules is None:
            return None
        options = {"pooling": modules.pooling, "normalize": modules.normalize}
        objective = _node("tasks.similarity.contrastive.Contrastive", **options)
        task = _node(
            "tasks.similarity.task.SimilarityTask", by_template=self.family.is_causal,
            prompt=modules.prompt, lowercase=modules.lowercase,
        )  # fmt: skip
        return _FoundHead((), objective, task=task)

    def _chooser(self, head: PublishedHead) -> _FoundHead | None:
        if not self._is_named(head):
            return None
        objective = _node("tasks.choice.task.MultipleChoice", **self._pooling())
        return _FoundHead(head.rules, objective, task=_node("tasks.choice.task.ChoiceTask"))

    def _reader(self, head: PublishedHead) -> _FoundHead:
        objective = _node("tasks.span.task.SpanExtraction")
        return _FoundHead(head.rules, objective, task=_node("tasks.span.task.SpanTask"))

    def _classifier(self, head: PublishedHead) -> _FoundHead | None:
        """Return what trained a head that gives each text labels, or a number."""
        problem, known = self.settings.values.get("problem_type"), self._is_named(head)
        # One that is not named may be of each token.
        is_bare = self.settings.values.get("architectures") is None
        if problem not in _PROBLEMS or not (known or is_bare):
            return None
        labels, pooling = self._labels(head), self._pooling()
        if problem == "multi_label_classification":
            objective = _node("tasks.multilabel.Multilabel", **pooling)
            task = _node("tasks.multilabel.MultilabelTask")
            return _FoundHead(head.rules, objective, labels, task)
        if len(labels) > 1 and problem != "regression":
            objective = _node("objectives.classification.Classification", **pooling)
            return _FoundHead(head.rules, objective, labels)
        if len(labels) > 1:
            log.warning("%s: dropped its classifier, since problem_type is regression and it gives "
                        "%d numbers, not one", self.settings.path, len(labels))  # fmt: skip
            return None
        if problem == "regression" or (problem is None and known):
            objective = _node("tasks.regression.Regression", standardise=False, **pooling)
            task = _node("tasks.regression.RegressionTask")
            return _FoundHead(head.rules, objective, task=task)
        return None

    def _pooling(self) -> dict[str, Any]:
        has_pooler = self.family.pooler_activation != "none"
        return {"pooling": self.family.classifier_pooling(self.settings), "pooler": has_pooler}

    def _tagger(self, head: PublishedHead) -> _FoundHead | None:
        # Its names are those of another head in some families.
        if not self._is_named(head):
            return None
        labels = self._labels(head)
        # If no tag begins an entity, each stands for itself.
        marks = any(label.startswith("B-") for label in labels)
        task = _node("tasks.tagging.task.TaggingTask", marks_entities=marks)
        objective = _node("tasks.tagging.objective.TokenTagging")
        return _FoundHead(head.rules, objective, labels, task)

    def _is_named(self, head: PublishedHead) -> bool:
        return bool(self.settings.values.get("architectures") == [head.architecture])

    def _has_tensors(self, rules: Sequence[Rule]) -> bool:
        return bool(rules) and all(name in self.found for rule in rules for name in rule.theirs)

    def _contradiction(self, name: str, expected: Tensor) -> CheckpointError:
        found = self.found[name]
        pairs = zip(found.shape, expected.shape, strict=False)
        sizes = {want for size, want in pairs if size != want} or set(expected.shape)
        keys = [
            f"{key}={value}"
            for key, value in self.settings.values.items()
            if type(value) is int and value in sizes and not key.endswith("_id")
        ]
        named = f" ({', '.join(keys)})" if keys else ""
        return CheckpointError(
            f"{self.settings.path} contradicts the weights: {name} is {list(found.shape)}, and the "
            f"config asks for {list(expected.shape)}{named}"
        )

    def _labels(self, head: PublishedHead) -> tuple[str, ...]:
        """Return the names of the classes, in the order of their numbers."""
        names = ("heads.class.linear.weight", "heads.tags.weight")
        linear = next(rule for rule in head.rules if rule.ours in names)
        size = self.found[linear.theirs[0]].shape
        if not size or not 0 < size[0] <= MAX_LABELS:
            raise CheckpointError(
                f"{self.settings.path.parent}: its classifier is {list(size)}, expected up to "
                f"{MAX_LABELS:,} rows"
            )
        named = self.settings.values.get("id2label")
        if named is None:
            return tuple(f"LABEL_{number}" for number in range(size[0]))
        labels = [named.get(str(n)) for n in range(len(named))] if isinstance(named, dict) else []
        # Half of a surrogate pair could not be written.
        texts = tuple(
            label
            for label in labels
            if isinstance(label, str) and label == label.encode("utf-8", "replace").decode()
        )
        if len(labels) != size[0] or len(set(texts)) < size[0]:
            expected = f"{size[0]} names, as many as the classifier has rows"
            raise self.settings.error("id2label", expected)
        return texts
