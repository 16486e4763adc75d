"""What there is to know about a family of published models.

A family is a description, not a model: how its config says what our `BackboneShape` says, and which
of its tensors are which of ours. One table serves both directions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.interop.rules import Rule
from transfer_cli.interop.settings import Settings
from transfer_cli.model.backbone import BackboneShape

ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
"""What the activations are called there and here."""

COMMON = {"norm": "layer", "feedforward_kind": "mlp", "attention_pattern": "full"}
"""What `fixed` holds in every family that does not say otherwise."""

ALL_SIZES = ("width", "heads", "depth", "feedforward", "positions")


@dataclass(frozen=True)
class Architectures:
    """What the family calls its models.

    Args:
        backbone: Without a head.
        language_model: With the head of its pretraining.
        classifier: With a head for one label a text.
    """

    backbone: str
    language_model: str
    classifier: str


class Family(ABC):
    """One of the families whose models are read and written.

    Attributes:
        name: What people call it.
        model_type: What `config.json` calls it.
        prefix: What stands before the names of the backbone's tensors in a model with a head.
        architectures: The names of its models.
        keys: What the config calls the fields of a `BackboneShape` that are numbers.
        fixed: Fields that have one value in all models of the family.
        pooling: Which state of a text its classifier reads.
        pooler_activation: What its classifier has between that state and the last layer.
    """

    name: ClassVar[str]
    model_type: ClassVar[str]
    prefix: ClassVar[str]
    architectures: ClassVar[Architectures]
    keys: ClassVar[Mapping[str, str]]
    fixed: ClassVar[Mapping[str, Any]]
    pooling: ClassVar[str] = "cls_first"
    pooler_activation: ClassVar[str] = "none"

    @abstractmethod
    def shape(self, settings: Settings) -> BackboneShape:
        """Return the shape that a config describes.

        Raises:
            CheckpointError: We cannot build that, or the config is damaged.
            ValueError: Its numbers do not fit each other.
        """

    @abstractmethod
    def config(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the config that describes a shape, without vocabulary, labels and names."""

    @abstractmethod
    def backbone(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the backbone; their names there lack the prefix."""

    @abstractmethod
    def language_model(self, shape: BackboneShape) -> list[Rule]:
        """Return the rules of the language-model head."""

    @abstractmethod
    def pooler(self, *, of_classifier: bool) -> list[Rule]:
        """Return the rules of the pooler, of which a classifier may have one of its own."""

    @abstractmethod
    def classifier(self) -> list[Rule]:
        """Return the rules of the classification head after the pooler."""

    def misfits(self, shape: BackboneShape, tokenizer: Tokenizer) -> list[str]:
        """Return what no model of this family has, as `option=value, not its own value`."""
        found = {field.name: getattr(shape, field.name) for field in fields(shape)}
        found["embedding_norm"] = shape.has_embedding_norm
        fixed = {**COMMON, **self.fixed}
        wrong = [
            f"{name}={value}, not {fixed[name]}"
            for name, value in found.items()
            if name in fixed and value != fixed[name]
        ]
        if shape.pooler not in ("none", self.pooler_activation):
            wrong.append(f"pooler={shape.pooler}, not {self.pooler_activation}")
        return wrong

    def sizes(self, settings: Settings) -> dict[str, Any]:
        """Return the fields of the shape that the config gives as whole numbers."""
        return {ours: settings.number(self.keys[ours]) for ours in ALL_SIZES if ours in self.keys}

    def sizes_there(self, shape: BackboneShape) -> dict[str, Any]:
        """Return the same, as the config has them."""
        return {self.keys[ours]: getattr(shape, ours) for ours in ALL_SIZES if ours in self.keys}


def activation_there(shape: BackboneShape) -> str:
    """Return what the other side calls a shape's activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == shape.activation)
