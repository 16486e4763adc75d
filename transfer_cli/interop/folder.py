"""A published model's folder, read as a model of ours."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError, listed
from transfer_cli.interop import files
from transfer_cli.interop.families import FAMILIES
from transfer_cli.interop.family import Family
from transfer_cli.interop.rules import Rule
from transfer_cli.interop.settings import CONFIG, Settings
from transfer_cli.interop.vocabulary import read_tokenizer
from transfer_cli.model.backbone import MAX_SIZE, Backbone, BackboneShape
from transfer_cli.model.heads import LanguageModelHead, Pooler, SequenceHead
from transfer_cli.model.meta import without_weights
from transfer_cli.model.weights import ModelDescription

log = logging.getLogger(__name__)

_OBJECTIVES = "transfer_cli.objectives"
_PADDED_TO = (8, 64, 128)
"""Tables of tokens are often made longer, to a multiple of one of these, for speed."""

MAX_LABELS = 10_000
"""Of a classifier, as of a labelled table."""


@dataclass(frozen=True)
class Published:
    """A model that others have published, as one of ours.

    Args:
        folder: Where it lies.
        family: What kind of model it is.
        description: What must be known to build ours.
        tokenizer: Its tokenizer.
        rules: How our tensors are made of those in the folder, whose names are whole.
        dropped: The tensors in the folder that none of ours is made of.
    """

    folder: Path
    family: Family
    description: ModelDescription
    tokenizer: Tokenizer
    rules: tuple[Rule, ...]
    dropped: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return its weights under our names, in float32.

        Raises:
            CheckpointError: A file is damaged.
        """
        return self._ours(files.read_tensors(self.folder))

    def shapes(self) -> dict[str, Tensor]:
        """Return the same without values, on the meta device."""
        return self._ours(files.read_shapes(self.folder))

    def _ours(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made = {rule.ours: rule.layout.take([found[n] for n in rule.theirs]) for rule in self.rules}
        vocabulary = self.description.vocabulary
        for name in ("backbone.token_embedding.weight", "heads.lm.weight", "heads.lm.bias"):
            if name in made:
                made[name] = made[name][:vocabulary].clone()
        return made


def is_published(folder: Path) -> bool:
    """Return whether a folder looks like a published model rather than a run."""
    return (folder / CONFIG).is_file() and not (folder / "model.json").exists()


def open_folder(folder: Path, key: str) -> Published:
    """Return the model in a folder, without its weights.

    Args:
        folder: With `config.json`, weights and a tokenizer.
        key: The config key that named it, for errors.

    Raises:
        CheckpointError: It is of another family, a file is missing or damaged, or its config and
            its tensors contradict each other.
        DataError: Its tokenizer cannot be used.
    """
    settings = Settings.read(folder)
    family = _family(settings, key)
    try:
        shape = family.shape(settings)
    except ValueError as error:
        raise CheckpointError(f"{settings.path}: {error}") from error
    found = files.read_shapes(folder)
    tokenizer = read_tokenizer(folder)
    backbone = _named(family.backbone(shape), found, family.prefix)
    _check(backbone, found, family, shape, settings)
    _check_vocabulary(tokenizer, found, backbone, settings)
    heads, objective, labels = _heads(family, shape, found, settings)
    _check_sizes(heads, _heads_of(shape, settings, len(labels)), found, settings)
    rules = [*backbone, *heads]
    used = {name for rule in rules for name in rule.theirs}
    description = ModelDescription(
        shape=shape,
        vocabulary=tokenizer.size,
        objective=objective,
        labels=labels,
        tokenizer_hash=tokenizer.hash,
    )
    dropped = tuple(sorted(found.keys() - used))
    return Published(folder, family, description, tokenizer, tuple(rules), dropped)


def _family(settings: Settings, key: str) -> Family:
    kind = settings.values.get("model_type")
    if kind is None:
        raise CheckpointError(
            f"{key}: {settings.path} has no model_type, which says what family the model is of"
        )
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    known = ", ".join(f"{family.name} ({family.model_type})" for family in FAMILIES)
    raise CheckpointError(
        f"{key}: {settings.path.parent} is of the family {str(kind)[:100]!r} (model_type in "
        f"{CONFIG}), which is not read; those that are: {known}"
    )


def _named(rules: Sequence[Rule], found: Mapping[str, Tensor], prefix: str) -> list[Rule]:
    """Return the rules of a backbone with the names that its tensors have in the files."""
    has_prefix = any(name.startswith(f"{prefix}.") for name in found)
    if not has_prefix:
        return list(rules)
    return [
        Rule(rule.ours, tuple(f"{prefix}.{name}" for name in rule.theirs), rule.layout)
        for rule in rules
    ]


def _check(
    rules: Sequence[Rule],
    found: Mapping[str, Tensor],
    family: Family,
    shape: BackboneShape,
    settings: Settings,
) -> None:
    """Compare the tensors of the backbone with what the config says.

    Raises:
        CheckpointError: One is missing, of another shape, or of a block that there should not be.
    """
    place = settings.path
    names = [name for rule in rules for name in rule.theirs]
    lost = [name for name in names if name not in found]
    if lost:
        raise CheckpointError(
            f"{place.parent}: the weights lack {listed(lost)}, which {place.name} asks for "
            f"({family.keys['depth']}={shape.depth}); without the whole backbone nothing is loaded"
        )
    with without_weights():
        backbone = Backbone(shape, _vocabulary(settings)).state_dict(prefix="backbone.")
    _check_sizes(rules, backbone, found, settings)
    blocks = {_block_pattern(name) for name in names} - {None}
    extra = [n for n in found if n not in names and _block_pattern(n) in blocks]
    beyond = [n for n in extra if _number(n) >= shape.depth]
    if beyond:
        raise CheckpointError(
            f"{place} says {family.keys['depth']}={shape.depth}, and the weights hold "
            f"{listed(beyond)}; one of the two is of another model"
        )


def _vocabulary(settings: Settings) -> int:
    size = settings.number("vocab_size")
    if not 0 < size <= MAX_SIZE:
        raise settings.wrong("vocab_size", f"a number from 1 to {MAX_SIZE:,}")
    return size


def _heads_of(shape: BackboneShape, settings: Settings, labels: int) -> dict[str, Tensor]:
    """Return the tensors that heads of such a model have, without values."""
    with without_weights():
        heads = {
            "lm": LanguageModelHead(shape, _vocabulary(settings)),
            "pooler": Pooler(shape.width, "tanh"),
            "class": SequenceHead(shape.width, max(1, labels), "cls_first"),
        }
        return {
            f"heads.{name}.{each}": tensor
            for name, head in heads.items()
            for each, tensor in head.state_dict().items()
        }


def _check_sizes(
    rules: Sequence[Rule],
    own: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    settings: Settings,
) -> None:
    """Compare tensors in the files with what ours would be there.

    Raises:
        CheckpointError: One is of another shape, or holds whole numbers.
    """
    for rule in rules:
        with without_weights():
            expected = rule.layout.give(own[rule.ours])
        for name, tensor in zip(rule.theirs, expected, strict=True):
            if tensor.shape != found[name].shape:
                raise _contradiction(name, found[name], tensor, settings)
            if not found[name].is_floating_point():
                raise CheckpointError(
                    f"{settings.path.parent}: {name} holds numbers of type {found[name].dtype}, "
                    "expected float"
                )


def _contradiction(
    name: str, found: Tensor, expected: Tensor, settings: Settings
) -> CheckpointError:
    pairs = zip(found.shape, expected.shape, strict=False)
    sizes = {asked for there, asked in pairs if there != asked} or set(expected.shape)
    keys = [
        f"{key}={value}"
        for key, value in settings.values.items()
        if type(value) is int and value in sizes and not key.endswith("_id")
    ]
    said = f" ({', '.join(keys)})" if keys else ""
    return CheckpointError(
        f"{settings.path} contradicts the weights: {name} is {list(found.shape)}, and the config "
        f"asks for {list(expected.shape)}{said}"
    )


def _check_vocabulary(
    tokenizer: Tokenizer,
    found: Mapping[str, Tensor],
    rules: Sequence[Rule],
    settings: Settings,
) -> None:
    """Refuse a tokenizer that is not the model's.

    Raises:
        CheckpointError: It has another number of tokens than the model has rows for.
    """
    table = next(r.theirs[0] for r in rules if r.ours == "backbone.token_embedding.weight")
    rows = found[table].shape[0]
    unused = rows - tokenizer.size
    is_padding = any(rows % size == 0 and 0 < unused < size for size in _PADDED_TO)
    if unused and not is_padding:
        raise CheckpointError(
            f"{settings.path.parent}: the tokenizer has {tokenizer.size:,} tokens and the model "
            f"{rows:,} rows ({table}); put the tokenizer there that the model was trained with"
        )
    if unused:
        log.info("dropped: the last %d rows of %s, which no token has", unused, table)


def _heads(
    family: Family, shape: BackboneShape, found: Mapping[str, Tensor], settings: Settings
) -> tuple[list[Rule], dict[str, Any], tuple[str, ...]]:
    """Return the rules of the heads that are there, what the model was trained for, its labels."""

    def there(rules: Sequence[Rule]) -> bool:
        return bool(rules) and all(name in found for rule in rules for name in rule.theirs)

    causal = shape.direction == "causal"
    objective: dict[str, Any] = {
        "_target_": f"{_OBJECTIVES}.{'causal_lm.CausalLM' if causal else _MASKED}"
    }
    rules: list[Rule] = []
    language_model = family.language_model(shape)
    if there(language_model):
        rules += language_model
    classifier, own_pooler = family.classifier(), family.pooler(of_classifier=True)
    # GPT-2 reads the last token of a text, ours the classification token behind it.
    classifies = not causal and there(own_pooler) and _is_classifier(family, settings)
    classifies = classifies and there(classifier)
    labels = _labels(settings, found[classifier[0].theirs[0]]) if classifies else ()
    if len(labels) > 1:
        objective = {
            "_target_": f"{_OBJECTIVES}.classification.Classification",
            "pooling": family.pooling,
            "pooler": True,
        }
        return [*rules, *own_pooler, *classifier], objective, labels
    for pooler in (family.pooler(of_classifier=False), own_pooler):
        plain = [Rule(r.ours, tuple(_bare(n, family) for n in r.theirs), r.layout) for r in pooler]
        for kind in (pooler, plain):
            if there(kind):
                return [*rules, *kind], objective, ()
    return rules, objective, ()


def _is_classifier(family: Family, settings: Settings) -> bool:
    """Return whether the head gives each text one label, not each token, nor several."""
    architectures = settings.values.get("architectures")
    if architectures is not None and architectures != [family.architectures.classifier]:
        return False
    return settings.values.get("problem_type") in (None, "single_label_classification")


_MASKED = "masked_lm.MaskedLM"


def _bare(name: str, family: Family) -> str:
    return name.removeprefix(f"{family.prefix}.")


def _labels(settings: Settings, classifier: Tensor) -> tuple[str, ...]:
    """Return the names of the classes, in the order of their numbers.

    Raises:
        CheckpointError: There are more or fewer than the classifier has rows, or they are no texts.
    """
    count = len(classifier) if classifier.dim() else 0
    if not 0 < count <= MAX_LABELS:
        raise CheckpointError(
            f"{settings.path.parent}: its classifier is {list(classifier.shape)}, expected up to "
            f"{MAX_LABELS:,} rows"
        )
    named = settings.values.get("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(count))
    labels = [named.get(str(n)) for n in range(len(named))] if isinstance(named, dict) else []
    texts = tuple(label for label in labels if isinstance(label, str) and _is_text(label))
    if len(labels) != count or len(set(texts)) < count:
        raise settings.wrong("id2label", f"{count} names, as many as the classifier has rows")
    return texts


def _is_text(label: str) -> bool:
    """Return whether a label can be written: not half of a surrogate pair."""
    return label == label.encode("utf-8", "replace").decode()


def _block_pattern(name: str) -> str | None:
    """Return a name with the number of its block left out; None where it has none."""
    match = re.fullmatch(r"((?:\w+\.)*?(?:layer|h))\.(\d+)\.(.+)", name)
    return f"{match[1]}.*.{match[3]}" if match else None


def _number(name: str) -> int:
    match = re.search(r"\.?(?:layer|h)\.(\d+)\.", name)
    return int(match[1]) if match else 0
