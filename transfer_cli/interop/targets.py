"""What a model of ours can be written as: a model of a published family.

Only names and shapes of tensors are looked at, so that a plan asks before there are weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from transfer_cli.data.chat_template import ChatTemplate
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError, one_of
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, PRETRAINING, Family, PublishedHead
from transfer_cli.interop.rules import Rule, with_prefix, without_prefix
from transfer_cli.model.added import Added
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.sequence import SequenceObjective

CLASS_BIAS = "heads.class.linear.bias"
NORM_BIAS = "backbone.final_norm.bias"
"""Where the bias of a causal family's classifier is put, which has none there."""

GRAPHS = ". format=onnx takes any model"
"""The cure where no family fits."""

Texts = Literal["lines", "labelled", "published"]


@dataclass(frozen=True)
class Ours:
    """A model to be written.

    Args:
        tensors: Its weights, by our names.
        head: The kind of head to write, as in `Family.heads`; None: none.
        classifier: What a head that gives labels was trained by; None for other heads.
        texts: Which layout of special tokens it was trained with last: that of lines to pretrain
            on, that of labelled texts, or (published) its tokenizer's.
        length: The longest text in tokens that it reads, special ones included.
        added: The module that each added tensor belongs to, by the tensor's name.
        truncate: Which of two texts is cut where they are too long together.
        chat: How it reads conversations; None: it was not trained on them.
    """

    shape: BackboneShape
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer
    head: str | None
    classifier: SequenceObjective | None
    texts: Texts
    length: int
    labels: tuple[str, ...] = ()
    added: Mapping[str, Added] = field(default_factory=dict)
    truncate: Truncate = "longest_first"
    chat: ChatTemplate | None = None

    @property
    def ends(self) -> list[int]:
        """The tokens that end what it writes: a turn, where it is talked to, and a text."""
        chat = self.chat
        name = "" if chat is None else chat.end or chat.tokens.get("eos_token") or ""
        turn = self.tokenizer.token(name)
        return [*dict.fromkeys(end for end in (turn, self.tokenizer.sep) if end is not None)]


@dataclass(frozen=True)
class Target:
    """What a model is written as.

    Args:
        architecture: The class that loads it, with its head.
        pipeline: What the hub calls its task.
        rules: Its tensors and ours, with whole names.
        config: Keys of `config.json` that say how it is built.
    """

    family: Family
    architecture: str
    pipeline: str
    rules: Sequence[Rule]
    config: Mapping[str, Any]
    constants: Mapping[str, Tensor]

    def describe(self) -> str:
        """Return in words what it is written as."""
        name = self.family.name
        return f"{'an' if name[0] in 'AEO' else 'a'} {name} (transformers.{self.architecture})"


def target_of(ours: Ours, model_type: str | None = None) -> Target:
    """Return what a model is written as.

    Args:
        ours: The model; its tensors may be on the meta device.
        model_type: The `model_type` of a family. None: the first family that fits.

    Raises:
        CheckpointError: It cannot be written so; the message says what does not fit.
    """
    known = families()
    if model_type is not None:
        one_of("family", model_type, known)
        known = {name: family for name, family in known.items() if name == model_type}
    misfits = {family: _misfits(family, ours) for family in known.values()}

    def distance(family: Family) -> tuple[bool, int, int]:
        turned = family.fixed["direction"] != ours.shape.direction
        return turned, len(family.misfits(ours.shape, ours.tokenizer)), len(misfits[family])

    best = min(misfits, key=distance)
    if not misfits[best]:
        return _family_target(best, ours)
    reasons = f"{best.name}: {'; '.join(misfits[best])}"
    if model_type is not None:
        raise CheckpointError(f"run: it is no {reasons}. family=null takes what fits")
    fits = not ours.shape.has_encoder and all(part.in_graphs for part in ours.added.values())
    raise CheckpointError(
        f"run: no published family fits, the nearest is {reasons}{GRAPHS if fits else ''}"
    )


def _family_target(family: Family, ours: Ours) -> Target:
    rules, head = _rules_and_head(family, ours)
    prefix = family.dotted_prefix if head else ""
    constants, config = family.constants(ours.shape), family.config(ours.shape)
    if head and ours.classifier:
        config |= family.classifier_config(ours.classifier.pooling)
    return Target(
        family=family,
        architecture=head.architecture if head else family.base_model,
        pipeline=head.pipeline if head else "feature-extraction",
        rules=rules,
        config=config,
        constants={f"{prefix}{name}": tensor for name, tensor in constants.items()},
    )


def _misfits(family: Family, ours: Ours) -> list[str]:
    wrong = family.misfits(ours.shape, ours.tokenizer)
    if wrong:
        return wrong
    has_place = {rule.ours for rule in family.backbone_rules(ours.shape)}
    lost = [n for n in ours.tensors if not n.startswith("heads.") and n not in has_place]
    wrong += sorted({ours.added[n].describe() if n in ours.added else n for n in lost})
    if ours.head is None:
        return wrong
    head = family.heads(ours.shape).get(ours.head)
    if ours.head == LANGUAGE_MODEL:
        ours_there = {name for name in ours.tensors if name.startswith("heads.lm.")}
        theirs = {rule.ours for rule in head.rules} if head else set()
        if ours_there and ours_there != theirs:
            names = ", ".join(sorted(ours_there ^ theirs))
            cure = "model.output_bias=false pretrains without; " if names == "heads.lm.bias" else ""
            wrong.append(f"the language-model head ({names}; {cure}head=false leaves it out)")
        return wrong
    if ours.classifier is not None:
        wrong += _classifier_misfits(family, ours, ours.classifier)
    if head is None:
        wrong.append(f"a head for {ours.head.replace('_', ' ')} (head=false leaves it out)")
    elif not wrong:
        wrong += [f"no {rule.ours}" for rule in head.rules if rule.ours not in ours.tensors]
    return wrong


def _classifier_misfits(family: Family, ours: Ours, classifier: SequenceObjective) -> list[str]:
    wrong, activation = [], family.pooler_activation
    if classifier.pooling not in family.poolings:
        usual = " or ".join(family.poolings)
        wrong.append(f"objective.pooling={classifier.pooling}, not {usual}")
    if classifier.hidden or classifier.batch_norm:
        wrong.append("a classifier of several layers (objective.hidden, objective.batch_norm)")
    if not classifier.pooler and activation != "none":
        wrong.append("a classifier without a pooler (objective.pooler=true trains one)")
    if classifier.pooler and activation == "none":
        wrong.append("a classifier with a pooler (objective.pooler=false)")
    if family.is_causal and len(ours.labels) > ours.shape.width:
        wrong.append("a classifier with a bias, which is folded in for at most `width` labels")
    if family.is_causal and CLASS_BIAS in ours.tensors and NORM_BIAS not in ours.tensors:
        wrong.append("a classifier with a bias, which has no place there")
    if classifier.pooler and ours.shape.pooler == "none" and activation != "tanh":
        wrong.append(f"a pooler with tanh, not {activation}")
    return wrong


def _rules_and_head(family: Family, ours: Ours) -> tuple[list[Rule], PublishedHead | None]:
    """Return the rules, with whole names, and the head that goes along."""
    heads = family.heads(ours.shape)
    kinds = (PRETRAINING, LANGUAGE_MODEL) if ours.head == LANGUAGE_MODEL else (ours.head or "",)
    known = (heads[kind] for kind in kinds if kind in heads)
    # A model may have come without the head of its pretraining.
    whole = (h for h in known if all(rule.ours in ours.tensors for rule in h.rules))
    head = next(whole, None)
    head_rules = list(head.rules) if head else []
    of_head = {rule.ours for rule in head_rules}
    pooler = [r for r in family.pooler_rules() if r.ours in ours.tensors and r.ours not in of_head]
    prefix = family.dotted_prefix
    rules = [*with_prefix(family.backbone_rules(ours.shape), prefix), *pooler, *head_rules]
    # A bare backbone has no prefix, nor has what belongs to it.
    return (rules, head) if head else (without_prefix(rules, prefix), None)
