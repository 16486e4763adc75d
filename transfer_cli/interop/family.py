"""The description of a family of published models.

It says how their config describes our `BackboneShape`, and which of their tensors are which of
ours. One table serves both directions.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.rules import Rule, same, with_prefix
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.shape import check_sizes

ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu", "swish": "silu",
}  # fmt: skip
"""What the activations are called there and here."""

COMMON = {
    "norm": "layer", "feedforward_kind": "mlp", "attention": "full", "biases": "all",
    "key_value_heads": None, "head_width": None, "query_key_norm": False, "embedding_scale": 1.0,
    "share": "none",
}  # fmt: skip
"""What `fixed` holds in every family that does not say otherwise."""

USUAL_KEYS = {
    "width": "hidden_size", "heads": "num_attention_heads", "depth": "num_hidden_layers",
    "feedforward": "intermediate_size", "positions": "max_position_embeddings",
}  # fmt: skip
"""`Family.keys` of most families."""

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


def question_answering(model: str) -> PublishedHead:
    """Return the head of answers in a text, which all families call the same.

    Args:
        model: The beginning of the class that loads it.
    """
    rules = same("heads.span", "qa_outputs")
    return PublishedHead(f"{model}ForQuestionAnswering", "question-answering", rules)


def token_classification(model: str) -> PublishedHead:
    """Return the head of a label for each token, which all families call the same.

    Args:
        model: The beginning of the class that loads it.
    """
    rules = same("heads.tags", "classifier")
    return PublishedHead(f"{model}ForTokenClassification", "token-classification", rules)


def causal_heads(
    model: str, language_model: str, output: Sequence[Rule]
) -> dict[str, PublishedHead]:
    """Return the heads of a causal family, whose classifier has no bias.

    Args:
        model: The beginning of the classes that load them.
        language_model: The class that loads its language model.
        output: The rules of the layer of that, where it is not the token embedding.
    """
    score = same("heads.class.linear", "score", "weight")
    return {
        LANGUAGE_MODEL: PublishedHead(language_model, "text-generation", output),
        SEQUENCE_CLASSIFICATION: PublishedHead(
            f"{model}ForSequenceClassification", "text-classification", score
        ),
        QUESTION_ANSWERING: question_answering(model),
        TOKEN_CLASSIFICATION: token_classification(model),
    }


class Family(ABC):
    """A family whose models are read and written; no other code asks which family it is.

    Attributes:
        name: What people call it.
        model_type: What `config.json` calls it.
        base_model: What `config.json` calls a model without a head.
        prefix: The prefix of the backbone's tensors in a model with a head.
        blocks: The name of its blocks: the tensors of block 2 begin with `{blocks}.2.`.
        keys: What the config calls the fields of a `BackboneShape` that are numbers.
        fixed: Fields that have one value in all models of the family, such as `direction`,
            `position_kind` and `residual`.
        options: What the config calls the other fields, and their defaults.
        varies: Fields that are equal in most families, and not in this one.
        output: Fields of its language-model head.
        only: Keys of the config, each with the one value that we can build.
        poolings: How its classifier makes one vector of a text, the usual way first, and what the
            config calls that (`classifier_pooling`); None: all do so.
        pooler_activation: That of the classifier's pooler; none: it has no pooler.
        bare_pooler: The pooler of a model without a classifier, by its name after the prefix;
            "": there is none.
        synonyms: Parts of names that some files have, and what others call the same.
        mask_lstrip: Whether the mask token of its tokenizer takes the space before it.
    """

    name: ClassVar[str]
    model_type: ClassVar[str]
    base_model: ClassVar[str]
    prefix: ClassVar[str]
    blocks: ClassVar[str]
    keys: ClassVar[Mapping[str, str]]
    fixed: ClassVar[Mapping[str, Any]]
    varies: ClassVar[Sequence[str]] = ()
    options: ClassVar[Mapping[str, tuple[str, Any]]]
    output: ClassVar[Mapping[str, bool]] = {}
    only: ClassVar[Mapping[str, Any]] = {}
    poolings: ClassVar[Mapping[str, str | None]] = {"cls_first": None}
    pooler_activation: ClassVar[str] = "none"
    bare_pooler: ClassVar[str] = ""
    synonyms: ClassVar[Mapping[str, str]] = {}
    mask_lstrip: ClassVar[bool] = False

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
        for key, value in self.only.items():
            settings.only(key, value)
        return BackboneShape(**self.shape_fields(settings))

    def shape_fields(self, settings: PublishedConfig) -> dict[str, Any]:
        """Return the fields of that shape."""
        sizes = {ours: settings.value(key, None, int) for ours, key in self.keys.items()}
        check_sizes(sizes)
        options = {
            ours: settings.one_of(key, ACTIVATIONS, default)
            if ours == "activation"
            else settings.value(key, default, type(default))
            for ours, (key, default) in self.options.items()
        }
        return {**self.fixed, **self.output, **sizes, **options, "pooler": self.pooler_activation}

    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape, without vocabulary, labels and names."""
        names = {**self.keys, **{ours: key for ours, (key, _) in self.options.items()}}
        found = {key: getattr(shape, ours) for ours, key in names.items()}
        theirs = {ours: there for there, ours in reversed(ACTIVATIONS.items())}
        return {**found, names["activation"]: theirs[shape.activation]}

    def pooling_of(self, settings: PublishedConfig) -> str:
        """Return how its classifier makes one vector of a text."""
        usual, *others = self.poolings
        known = {name: ours for ours, name in self.poolings.items() if name is not None}
        return settings.one_of("classifier_pooling", known, next(iter(known))) if others else usual

    def of_classifier(self, pooling: str) -> dict[str, Any]:
        """Return the keys of a config with a classifier."""
        name = self.poolings[pooling]
        return {} if name is None else {"classifier_pooling": name}

    @abstractmethod
    def heads(self, shape: BackboneShape) -> Mapping[str, PublishedHead]:
        """Return the heads that such a model can have, by kind (`LANGUAGE_MODEL`, ...)."""

    @abstractmethod
    def outside_blocks(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone's embeddings and norms; theirs lack the prefix."""

    @abstractmethod
    def block(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of a block; names here and there lack the block's own."""

    def pooler(self) -> list[Rule]:
        """Return the rules of the pooler that a model without a classifier may have."""
        theirs = f"{self.prefix}.{self.bare_pooler}"
        return same("heads.pooler.linear", theirs) if self.bare_pooler else []

    def constants(self, shape: BackboneShape) -> dict[str, Tensor]:
        """Return tensors of their backbone, by name, that ours lacks and that change nothing."""
        return {}

    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone; their names there lack the prefix."""
        rules, block = self.outside_blocks(shape), self.block(shape)
        for number in range(shape.distinct_blocks):
            rules += with_prefix(block, f"{self.blocks}.{number}.", f"backbone.blocks.{number}.")
        return rules

    def rules_of(self, settings: PublishedConfig, shape: BackboneShape) -> list[Rule]:
        """Return the rules by which a backbone with such a config is read."""
        return self.backbone(shape)

    def block_number(self, name: str) -> int | None:
        """Return the number of the block that a tensor of theirs belongs to; None: to none."""
        stem, _, rest = name.removeprefix(f"{self.prefix}.").partition(f"{self.blocks}.")
        number = rest.partition(".")[0]
        return int(number) if not stem and number.isdecimal() and len(number) < 10 else None

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has, as `option=value, not its own value`."""
        found = {**vars(shape), "embedding_norm": shape.has_embedding_norm}
        fixed = {**COMMON, **self.fixed}
        wrong = [
            f"{name}={value}, not {fixed[name]}"
            for name, value in found.items()
            if name in fixed and name not in self.varies and value != fixed[name]
        ]
        if shape.pooler not in ("none", self.pooler_activation):
            wrong.append(f"pooler={shape.pooler}, not {self.pooler_activation}")
        return wrong
