"""What probes look for: the labels of the data at hand, or those of a made task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from transfer_cli.analysis.analysis import Subject
from transfer_cli.analysis.probes.states import SoughtSplit
from transfer_cli.analysis.probes.surface_tasks import SurfaceTask, made
from transfer_cli.assembly.datasets import encoded_of
from transfer_cli.assembly.model import direction_of
from transfer_cli.data.split import Split
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Encoded, Task


@dataclass(frozen=True)
class Sought:
    """What is looked for.

    Args:
        labels: Their names, by number.
        splits: What probes learn from (`train`), what chooses among them (`chosen_on`; a part of
            `train` where it is missing) and what they are scored on (`scored`).
    """

    labels: tuple[str, ...]
    splits: Mapping[str, SoughtSplit]

    @property
    def of_words(self) -> bool:
        """Whether words have labels, else texts."""
        return self.splits["train"].words is not None


def given_labels(subject: Subject) -> Sought:
    """Return the labels of the data that a subject is shown."""
    material, task = subject.material, subject.material.task
    kinds = {"classification": False, "tagging": True}
    if "train" not in material.names or task is None or task.name not in kinds:
        what = (
            "has no labels to learn from"
            if task is None or "train" not in material.names
            else (f"is of {task.name}, and probes look for one label a text, or a tag a word")
        )
        raise ConfigError(
            f"data: {material.called} {what}; give labelled data (data=trec6, data=conll ...), or "
            "let a task be made from texts: analysis.probes.task=length, with data= or input=FILE"
        )
    train, scored = subject.material.split("train"), subject.split
    if scored.name == "train":
        raise ConfigError("split: train is what probes learn from; score test or validation")
    found = {"train": train, "scored": scored}
    if "validation" in material.names and scored.name != "validation":
        found["chosen_on"] = material.split("validation")
    splits = {name: _labelled(split) for name, split in found.items()}
    return _checked(Sought(task.labels, splits))


def right_by_words(sought: Sought, task: Task | None) -> float | None:
    """Return the share of scored texts that a linear model on words answers rightly.

    None: there is no such model of what was looked for.
    """
    train, scored = (encoded_of(sought.splits[name].split) for name in ("train", "scored"))
    right = None if task is None else task.right_by_words(train.examples, scored.examples)
    return None if right is None else right / len(scored.examples)


def made_labels(subject: Subject, kind: SurfaceTask) -> Sought:
    """Return the labels of a task that is made from the texts a subject is shown.

    Texts without a training split are parted at random: eight tenths to learn from, one to choose
    by, one to be scored.
    """
    data = made(kind, _texts(subject))
    start = subject.opened.start
    direction = direction_of(start.description.shape)
    splits = {}
    for name, examples in data.splits.items():
        if not examples:
            raise DataError(f"analysis.probes.task: no text of {name} can be asked its {kind}")
        encoded = data.task.encode(examples, start.tokenizer, subject.opened.length, direction)
        splits[name] = Split(name, encoded)
    labelled = {name: _labelled(split) for name, split in splits.items()}
    return _checked(Sought(data.task.labels, labelled))


def _texts(subject: Subject) -> dict[str, Sequence[str]]:
    material, scored = subject.material, subject.split
    if "train" in material.names and scored.name != "train":
        found = {"train": material.split("train"), "scored": scored}
        if "validation" in material.names and scored.name != "validation":
            found["chosen_on"] = material.split("validation")
        return {name: material.texts(split) for name, split in found.items()}
    texts = material.texts(scored)
    generator = np.random.default_rng(derive(subject.seed, "probes", "texts"))
    order = generator.permutation(len(texts))
    parts = np.split(order, [len(texts) * 8 // 10, len(texts) * 9 // 10])
    names = ("train", "chosen_on", "scored")
    return {name: [texts[at] for at in part] for name, part in zip(names, parts, strict=True)}


def _checked(found: Sought) -> Sought:
    if len(set(found.splits["train"].labels)) < 2:
        raise DataError("data: all training examples have the same label; there is nothing to find")
    return found


def _labelled(split: Split) -> SoughtSplit:
    encoded: Encoded = encoded_of(split)
    examples: Sequence[Any] = encoded.examples
    if any(each.label is None for each in examples):
        raise DataError(f"data: the {split.name} split has no labels")
    if hasattr(examples[0], "spans"):
        words = list(chain.from_iterable(each.words for each in examples))
        return SoughtSplit(split, list(chain.from_iterable(e.label for e in examples)), words)
    return SoughtSplit(split, [each.label for each in examples])
