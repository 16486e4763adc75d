"""The description of a family of published models.

It says how their config describes our `BackboneShape`, and which of their tensors are which of
ours. One table serves both directions.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import (
    CONCATENATED,
    SAME,
    Conversion,
    Rule,
    copy_rules,
    stacked,
    with_prefix,
)
from transfer_cli.model.shape import FORMS, BackboneShape, check_sizes

ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu", "swish": "silu",
}  # fmt: skip
"""What the activations are called there and here."""

COMMON = {
    "norm": "layer", "feedforward_kind": "mlp", "attention": "full", "biases": "all",
    "key_value_heads": None, "head_width": None, "query_key_norm": False, "embedding_scale": 1.0,
    "share": "none", "scaled_scores": True, "output_scale": 1.0,
}  # fmt: skip
"""What `fixed` holds in every family that does not say otherwise."""


class ConfigPart(Protocol):
    """Some keys of a config, and what they say of our shape."""

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return fields of the shape; `before` are those that other parts have read."""

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        """Return the keys that say them."""


@dataclass(frozen=True)
class Field(ConfigPart):
    """One key of the config that says one field of a `BackboneShape`.

    Args:
        ours: The field.
        theirs: The key.
        default: Its value where a config lacks it, or a function of the fields before that returns
            one. None: the key must be there, and is a whole number.
        to_ours: Makes our value of theirs and the fields before.
        to_theirs: Makes their value of a shape; None: it is the field.
    """

    ours: str
    theirs: str
    default: Any = None
    to_ours: Callable[[Any, Mapping[str, Any]], Any] = lambda value, before: value
    to_theirs: Callable[[BackboneShape], Any] | None = None

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        default = self.default(before) if callable(self.default) else self.default
        value = settings.value(self.theirs, default, int if default is None else type(default))
        return {self.ours: self.to_ours(value, before)}

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        value = self.to_theirs(shape) if self.to_theirs else getattr(shape, self.ours)
        return {self.theirs: value}


@dataclass(frozen=True)
class ActivationField(ConfigPart):
    """The key of the activation, its value where a config lacks it, and what the values mean."""

    theirs: str
    default: str
    names: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"activation": settings.one_of(self.theirs, self.names, self.default)}

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        names = (theirs for theirs, ours in self.names.items() if ours == shape.activation)
        return {self.theirs: next(names)}


@dataclass(frozen=True)
class WriteOnly(ConfigPart):
    """A key that is written and not read."""

    theirs: str
    to_theirs: Callable[[BackboneShape], Any]

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        return {self.theirs: self.to_theirs(shape)}


POSITIONS = Field("positions", "max_position_embeddings")
SIZES = (
    Field("width", "hidden_size"), Field("heads", "num_attention_heads"),
    Field("depth", "num_hidden_layers"), Field("feedforward", "intermediate_size"),
)  # fmt: skip
"""What most families call these."""

LANGUAGE_MODEL = "language_model"
PRETRAINING = "pretraining"
"""A language model with what was learnt beside it, for a model that has both heads."""
REPLACED_TOKENS = "replaced_tokens"
SEQUENCE_CLASSIFICATION = "sequence_classification"
MULTIPLE_CHOICE = "multiple_choice"
QUESTION_ANSWERING = "question_answering"
TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - no password


@dataclass(frozen=True)
class PublishedHead:
    """One kind of head that a family's models have.

    Args:
        architecture: What `config.json` calls a model with it.
        pipeline: What the hub and `transformers.pipeline` call its task.
        rules: Its tensors, with their full names, those of its pooler included. Empty where it has
            none of its own (an output layer that is the token embedding).
    """

    architecture: str
    pipeline: str
    rules: Sequence[Rule]


CLASSES = {
    PRETRAINING: ("ForPreTraining", "fill-mask"),
    REPLACED_TOKENS: ("ForPreTraining", "feature-extraction"),
    SEQUENCE_CLASSIFICATION: ("ForSequenceClassification", "text-classification"),
    MULTIPLE_CHOICE: ("ForMultipleChoice", "multiple-choice"),
    QUESTION_ANSWERING: ("ForQuestionAnswering", "question-answering"),
    TOKEN_CLASSIFICATION: ("ForTokenClassification", "token-classification"),
}
"""By kind of head, the end of the class that loads it, and its task on the hub."""
_LANGUAGE_MODELS = {
    "causal": ("ForCausalLM", "text-generation"), "bidirectional": ("ForMaskedLM", "fill-mask"),
    "encoder_decoder": ("ForConditionalGeneration", "text2text-generation"),
}  # fmt: skip
"""The same of language models, by direction."""
TOKEN_HEADS = {
    QUESTION_ANSWERING: copy_rules("heads.span", "qa_outputs"),
    TOKEN_CLASSIFICATION: copy_rules("heads.tags", "classifier"),
}
"""The rules of answers in a text, and of a label for each token, where a family has these heads."""

ModuleNames = Mapping[str, str | tuple[str, ...]]
"""Names of modules here and there; several there are one above the other here."""


class Family(ABC):
    """A family whose models are read and written; no other code asks which family it is.

    Attributes:
        model_type: What `config.json` calls it.
        base_model: What `config.json` calls a model without a head.
        prefix: The prefix of the backbone's tensors in a model with a head; "": there is none.
        blocks: The name of its blocks: the tensors of block 2 begin with `{blocks}.2.`.
        fields: What the config says of a `BackboneShape`, in the order in which it is read.
        fixed: Fields that have one value in all models of the family, such as `direction`,
            `position_kind` and `residual`.
        implied: Fields that reading sets and no key says, such as those of its language-model head.
        varies: Fields that are equal in most families, and not in this one.
        outside: The modules of the backbone outside of its blocks; theirs lack the prefix. Those
            that a shape does not ask for are left out.
        inside: The modules of a block; names here and there lack the block's own.
        block_prefix: What stands before these names there.
        language_model: The class that loads its language model; "": as usual.
        has_token_heads: Whether it has `TOKEN_HEADS`.
        required: Keys of the config, each with the one value that we can build.
        poolings: How its classifier makes one vector of a text, the usual way first, and what the
            config calls that (`classifier_pooling`); None: all do so.
        pooler_activation: That of the classifier's pooler; none: it has no pooler.
        bare_pooler: The pooler of a model without a classifier, by its name after the prefix;
            "": there is none.
        synonyms: Parts of names that some files have, and what others call the same.
        mask_lstrip: Whether the mask token of its tokenizer takes the space before it.
        text_end: The token that ends a text, which is added where its tokenizer has none; its row
            is the mean of the others. "": its tokenizers have what is needed.
    """

    name: ClassVar[str]
    model_type: ClassVar[str]
    base_model: ClassVar[str]
    prefix: ClassVar[str]
    blocks: ClassVar[str]
    fields: ClassVar[Sequence[ConfigPart]]
    fixed: ClassVar[Mapping[str, Any]]
    implied: ClassVar[Mapping[str, Any]] = {}
    varies: ClassVar[Sequence[str]] = ()
    outside: ClassVar[ModuleNames]
    inside: ClassVar[ModuleNames]
    block_prefix: ClassVar[str] = ""
    language_model: ClassVar[str] = ""
    has_token_heads: ClassVar[bool] = False
    required: ClassVar[Mapping[str, Any]] = {}
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_first": None}
    pooler_activation: ClassVar[str] = "none"
    bare_pooler: ClassVar[str] = ""
    synonyms: ClassVar[Mapping[str, str]] = {}
    mask_lstrip: ClassVar[bool] = False
    text_end: ClassVar[str] = ""

    def has_class(self, name: str) -> bool:
        """Return whether `architectures` of its models may hold such a name."""
        stem = re.escape(self.base_model.removesuffix("Model").removesuffix("Text"))
        return re.fullmatch(rf"{stem}(Text)?(Model|LMHeadModel|For\w+)", name) is not None

    @property
    def is_causal(self) -> bool:
        """Whether a token attends to earlier ones alone."""
        return bool(self.fixed["direction"] == "causal")

    def shape(self, settings: PublishedConfig) -> BackboneShape:
        """Return the shape that a config describes.

        Raises:
            ValueError: Its numbers do not fit each other.
        """
        for key, value in self.required.items():
            settings.require(key, value)
        return BackboneShape(**self.shape_fields(settings))

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of that shape."""
        fields = {**self.fixed, "pooler": self.pooler_activation}
        for part in self.fields:
            more = part.read(settings, fields)
            check_sizes(more)
            fields |= more
        return {**fields, **self.implied}

    def shape_from_weights(self, shape: BackboneShape, names: Collection[str]) -> BackboneShape:
        """Return the shape of a folder with tensors of these names, which say what no key says."""
        return shape

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape, without vocabulary, labels and names."""
        return {key: value for part in self.fields for key, value in part.write(shape).items()}

    def config_key(self, field: str) -> str:
        """Return what the config calls a field."""
        return next(p.theirs for p in self.fields if isinstance(p, Field) and p.ours == field)

    def classifier_pooling(self, settings: PublishedConfig) -> str:
        """Return how its classifier makes one vector of a text."""
        usual, *others = self.poolings
        known = {name: ours for ours, name in self.poolings.items() if name is not None}
        return settings.one_of("classifier_pooling", known, next(iter(known))) if others else usual

    def classifier_config(self, pooling: str) -> dict[str, Any]:
        """Return the keys of a config with a classifier."""
        name = self.poolings[pooling]
        return {} if name is None else {"classifier_pooling": name}

    def heads(self, shape: BackboneShape) -> dict[str, PublishedHead]:
        """Return the heads that such a model can have, by kind (`LANGUAGE_MODEL`, ...)."""
        stem = self.base_model.removesuffix("Model")
        classes = {**CLASSES, LANGUAGE_MODEL: _LANGUAGE_MODELS[self.fixed["direction"]]}
        names = {kind: stem + end for kind, (end, _) in classes.items()}
        names |= {LANGUAGE_MODEL: self.language_model} if self.language_model else {}
        heads = {**self.head_rules(shape), **(TOKEN_HEADS if self.has_token_heads else {})}
        return {
            kind: PublishedHead(names[kind], classes[kind][1], rules)
            for kind, rules in heads.items()
        }

    @abstractmethod
    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        """Return the rules of its heads but `TOKEN_HEADS`, by kind."""

    def conversions(self, shape: BackboneShape) -> Mapping[str, Conversion]:
        """Return how tensors are stored there that are not so as they are here, by our names.

        Those of blocks lack the block's own.
        """
        return {}

    def pooler_rules(self) -> list[Rule]:
        """Return the rules of the pooler that a model without a classifier may have."""
        theirs = f"{self.prefix}.{self.bare_pooler}"
        return copy_rules("heads.pooler.linear", theirs) if self.bare_pooler else []

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return tensors of their backbone, by name, that ours lacks and that change nothing."""
        return {}

    def backbone_rules(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone; their names there lack the prefix."""
        outside = {f"backbone.{ours}": theirs for ours, theirs in self.outside.items()}
        rules, block = self._module_rules(outside, shape), self._module_rules(self.inside, shape)
        for number in range(shape.distinct_blocks):
            theirs = f"{self.blocks}.{number}.{self.block_prefix}"
            rules += with_prefix(block, theirs, f"backbone.blocks.{number}.")
        if FORMS[shape.residual].plain_start:
            rules = [r for r in rules if not r.ours.startswith("backbone.blocks.0.attention_norm.")]
        return rules

    def _module_rules(self, names: ModuleNames, shape: BackboneShape) -> list[Rule]:
        """Return the rules of those of these modules that a shape has."""
        heads, shared = (count * shape.head_size for count in (shape.heads, shape.kv_heads))
        conversions, rules = self.conversions(shape), []
        for ours, theirs in names.items():
            parts = (theirs,) if isinstance(theirs, str) else theirs
            usual = SAME if len(parts) == 1 else CONCATENATED
            if len(parts) == 3:  # queries, keys and values
                usual = stacked([heads, shared, shared])
            for kind in _parameter_names(ours, shape):
                name = f"{ours}.{kind}"
                there = tuple(f"{part}.{kind}" for part in parts)
                rules.append(Rule(name, there, conversions.get(name, usual)))
        return rules

    def import_rules(self, settings: PublishedConfig, shape: BackboneShape) -> list[Rule]:
        """Return the rules by which a backbone with such a config is read."""
        return self.backbone_rules(shape)

    def is_beyond(self, name: str, shape: BackboneShape) -> bool:
        """Return whether a tensor of theirs belongs to a block that a shape does not have."""
        return self._block_number(name, self.blocks) >= shape.distinct_blocks

    def _block_number(self, name: str, blocks: str) -> int:
        """Return the number of the block that a tensor of theirs belongs to; -1: to none."""
        stem, _, rest = name.removeprefix(self.dotted_prefix).partition(f"{blocks}.")
        number = rest.partition(".")[0]
        return int(number) if not stem and number.isdecimal() and len(number) < 10 else -1

    @property
    def dotted_prefix(self) -> str:
        """The prefix as it stands before a name."""
        return f"{self.prefix}." if self.prefix else ""

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has, as `option=value, not its own value`."""
        values = {**vars(shape), "embedding_norm": shape.has_embedding_norm}
        fixed = {**COMMON, **self.fixed}
        wrong = [
            f"{name}={value}, not {fixed[name]}"
            for name, value in values.items()
            if name in fixed and name not in self.varies and value != fixed[name]
        ]
        if shape.pooler not in ("none", self.pooler_activation):
            wrong.append(f"pooler={shape.pooler}, not {self.pooler_activation}")
        return wrong


class CausalFamily(Family):
    """A family of causal models with positions but no segments, whose classifier has no bias.

    Attributes:
        output_layer: The output layer of its language model, where that is not the token embedding.
    """

    fixed: ClassVar[Mapping[str, Any]] = {
        "residual": "pre", "direction": "causal", "embedding_norm": False, "embedding_width": None,
        "segments": 0,
    }  # fmt: skip
    implied: ClassVar[Mapping[str, Any]] = {"output_bias": False}
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_last": None}
    output_layer: ClassVar[str] = "lm_head"

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        output = [] if shape.tie_output else copy_rules("heads.lm", self.output_layer, "weight")
        score = copy_rules("heads.class.linear", "score", "weight")
        return {LANGUAGE_MODEL: output, SEQUENCE_CLASSIFICATION: score}


class TwoStackFamily(Family):
    """A family with an encoder and a decoder, which share their token embeddings.

    Attributes:
        stack_modules: The modules of each stack outside of its blocks.
    """

    fixed: ClassVar[Mapping[str, Any]] = {
        "direction": "encoder_decoder", "embedding_width": None, "segments": 0,
        "output_transform": False,
    }  # fmt: skip
    outside: ClassVar[ModuleNames] = {"token_embedding": "shared"}
    inside: ClassVar[ModuleNames] = {}
    stack_modules: ClassVar[ModuleNames]

    @abstractmethod
    def block_modules(self, shape: BackboneShape, *, decodes: bool) -> ModuleNames:
        """Return the modules of a block of the encoder or the decoder."""

    def backbone_rules(self, shape: BackboneShape) -> list[Rule]:
        shared = {f"backbone.{ours}": theirs for ours, theirs in self.outside.items()}
        rules = self._module_rules(shared, shape)
        for stack, stack_shape in zip(_STACKS, shape.stacks, strict=True):
            there, here = f"{stack}.", f"backbone.{stack}."
            rules += with_prefix(self._module_rules(self.stack_modules, stack_shape), there, here)
            block = self._module_rules(
                self.block_modules(stack_shape, decodes=stack == "decoder"), stack_shape
            )
            for number in range(stack_shape.depth):
                theirs = f"{there}{self.blocks}.{number}."
                rules += with_prefix(block, theirs, f"{here}blocks.{number}.")
        return rules

    def is_beyond(self, name: str, shape: BackboneShape) -> bool:
        return any(
            self._block_number(name, f"{stack}.{self.blocks}") >= stack_shape.depth
            for stack, stack_shape in zip(_STACKS, shape.stacks, strict=True)
        )

    def head_rules(self, shape: BackboneShape) -> Mapping[str, Sequence[Rule]]:
        output = [] if shape.tie_output else copy_rules("heads.lm", "lm_head", "weight")
        return {LANGUAGE_MODEL: output}


_STACKS = ("encoder", "decoder")


def _parameter_names(module: str, shape: BackboneShape) -> tuple[str, ...]:
    """Return the tensors of a module of ours; none where the shape does not ask for it."""
    name = module.rpartition(".")[2]
    if (
        (name == "segment_embedding" and not shape.segments)
        or (name == "embedding_projection" and shape.embedding_size == shape.width)
        or (name in ("query_norm", "key_norm") and not shape.query_key_norm)
    ):
        return ()
    if name.endswith("norm"):
        has_bias = shape.norm == "layer"
    else:
        has_bias = shape.biases == "all" or (shape.biases == "qkv" and name == "packed")
    return ("weight", "bias") if has_bias and "_embedding" not in module else ("weight",)
