"""What probes look for: the labels of the data at hand, or those of a made task.

Tasks are made from texts alone: how long a text is, which word it holds, where a word stands. What
a state says of these it may say without having learnt any language (Conneau et al. 2018).
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

from transfer_cli.analysis.analysis import Subject
from transfer_cli.analysis.probes.states import PARTS, Parts, SoughtSplit
from transfer_cli.assembly.model import direction_of
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Encoded, Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import TaggingTask

SurfaceTask = Literal["length", "content", "position"]

BINS = 6
WORDS = 20
COMMON = 0.05
"""Words in more than this share of the texts are not asked for: most texts hold several."""

Texts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class MadeData:
    """Labelled examples that were made from texts, by split, with their task."""

    task: Task
    splits: Mapping[str, Sequence[Example] | Sequence[TagExample]]


def surface_task(kind: SurfaceTask, texts: Texts) -> MadeData:
    """Return the examples of a made task; what it asks follows from the training texts."""
    makers = {"length": _length, "content": _content, "position": _position}
    return makers[kind](texts)


def _length(texts: Texts) -> MadeData:
    """Texts by their number of words, in bins with equally many training texts."""
    bounds = _bounds([len(text.split()) for text in texts["train"]], "texts are equally long")
    return MadeData(ClassificationTask(_bin_names(bounds)), {
        split: [Example(text, bisect_right(bounds, len(text.split()))) for text in of_split]
        for split, of_split in texts.items()
    })  # fmt: skip


def _content(texts: Texts) -> MadeData:
    """Texts with exactly one of some words of medium frequency: which one it is."""
    texts_with = Counter(word for text in texts["train"] for word in set(_words(text)))
    most = COMMON * len(texts["train"])
    known = sorted((word for word, count in texts_with.items() if 2 <= count <= most),
                   key=lambda word: (-texts_with[word], word))[:WORDS]  # fmt: skip
    number = {word: at for at, word in enumerate(known)}
    splits = {}
    for split, of_split in texts.items():
        held = [(text, {word for word in _words(text) if word in number}) for text in of_split]
        splits[split] = [Example(text, number[min(words)]) for text, words in held
                         if len(words) == 1]  # fmt: skip
    _check_bins(len(number), f"no two words are in several, but in at most {COMMON:.0%}, of them")
    return MadeData(ClassificationTask(tuple(known)), splits)


def _position(texts: Texts) -> MadeData:
    """Words by where they stand in their text, in bins with equally many training words."""
    spans = {
        split: [tuple(match.span() for match in re.finditer(r"\S+", text)) for text in of_split]
        for split, of_split in texts.items()
    }
    bounds = _bounds([at for words in spans["train"] for at in range(len(words))],
                     "texts have a word or two")  # fmt: skip
    return MadeData(TaggingTask(_bin_names(bounds), marks_entities=False), {
        split: [
            TagExample(text, words, tuple(bisect_right(bounds, at) for at in range(len(words))))
            for text, words in zip(texts[split], of_split, strict=True) if words
        ]
        for split, of_split in spans.items()
    })  # fmt: skip


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _bounds(values: Sequence[int], otherwise: str) -> list[int]:
    """Return the least value of each bin but the first."""
    ordered = sorted(values)
    at = (len(ordered) * number // BINS for number in range(1, BINS))
    bounds = sorted({ordered[number] for number in at} - {ordered[0]}) if ordered else []
    _check_bins(len(bounds) + 1, otherwise)
    return bounds


def _check_bins(bins: int, otherwise: str) -> None:
    if bins < 2:
        raise DataError(f"analysis.probes.task: nothing can be asked of these texts: {otherwise}")


def _bin_names(bounds: Sequence[int]) -> tuple[str, ...]:
    lows = [0, *bounds]
    named = [f"{low} to {past - 1}" for low, past in zip(lows, bounds, strict=False)]
    return (*named, f"{lows[-1]} or more")


@dataclass(frozen=True)
class Sought:
    """What is looked for.

    Args:
        splits: What probes learn from (`train`), what chooses among them (`chosen_on`; a part of
            `train` where it is missing) and what they are scored on (`scored`).
    """

    labels: tuple[str, ...]
    splits: Mapping[str, SoughtSplit]

    @property
    def is_by_word(self) -> bool:
        """Whether words have labels, else texts."""
        return self.splits["train"].words is not None


def data_labels(subject: Subject) -> Sought:
    """Return the labels of the data that a subject is shown."""
    material, task = subject.material, subject.material.task
    is_labelled = task is not None and "train" in material.names
    if task is None or not is_labelled or task.name not in ("classification", "tagging"):
        what = "has no labels to learn from"
        if task is not None and is_labelled:
            what = f"is of {task.name}, and probes look for one label a text, or a tag a word"
        raise ConfigError(
            f"data: {material.name} {what}; give labelled data (data=trec6, data=conll ...), or "
            "let a task be made from texts: analysis.probes.task=length, with data= or input=FILE"
        )
    if subject.split.name == "train":
        raise ConfigError("split: train is what probes learn from; score test or validation")
    splits = {name: _labelled(split) for name, split in _splits(subject).items()}
    return _checked(Sought(task.labels, splits))


def _splits(subject: Subject) -> dict[str, Split]:
    material, scored = subject.material, subject.split
    splits = {"train": material.split("train"), "scored": scored}
    if "validation" in material.names and scored.name != "validation":
        splits["chosen_on"] = material.split("validation")
    return splits


def bag_of_words_accuracy(sought: Sought, parts: Parts, task: Task | None) -> float | None:
    """Return the share of scored texts that a linear model on words answers rightly.

    It learns from the texts that probes learn from. None: there is no such model of what was
    looked for.
    """
    if task is None or sought.is_by_word:
        return None
    train, scored = (
        [sought.splits[name].split.encoded.examples[at] for at in parts[name].number.tolist()]
        for name in ("train", "scored")
    )
    right = task.right_by_words(train, scored)
    return None if right is None else right / len(scored)


def surface_labels(subject: Subject, kind: SurfaceTask) -> Sought:
    """Return the labels of a task that is made from the texts a subject is shown.

    Texts without a training split are parted at random: eight tenths to learn from, one to choose
    by, one to be scored.
    """
    data = surface_task(kind, _texts(subject))
    start = subject.opened.start
    direction = direction_of(start.description.shape)
    splits = {}
    for name, examples in data.splits.items():
        if not examples:
            raise DataError(
                f"analysis.probes.task: too few texts can be asked their {kind}; show it more, by "
                "input=FILE or data="
            )
        encoded = data.task.encode(examples, start.tokenizer, subject.opened.length, direction)
        splits[name] = _labelled(Split(name, encoded))
    return _checked(Sought(data.task.labels, splits))


def _texts(subject: Subject) -> dict[str, Sequence[str]]:
    material, scored = subject.material, subject.split
    if "train" in material.names and scored.name != "train":
        return {name: material.texts(split) for name, split in _splits(subject).items()}
    texts = material.texts(scored)
    generator = np.random.default_rng(derive(subject.seed, "probes", "texts"))
    order = generator.permutation(len(texts))
    parts = np.split(order, [len(texts) * 8 // 10, len(texts) * 9 // 10])
    return {name: [texts[at] for at in part] for name, part in zip(PARTS, parts, strict=True)}


def _checked(sought: Sought) -> Sought:
    if len(set(sought.splits["train"].labels)) < 2:
        raise DataError("data: all training examples have the same label; there is nothing to find")
    return sought


def _labelled(split: Split) -> SoughtSplit:
    encoded: Encoded = split.encoded
    examples: Sequence[Any] = encoded.examples
    if any(example.label is None for example in examples):
        raise DataError(f"data: the {split.name} split has no labels")
    if hasattr(examples[0], "spans"):
        words = list(chain.from_iterable(example.words for example in examples))
        return SoughtSplit(split, list(chain.from_iterable(e.label for e in examples)), words)
    return SoughtSplit(split, [example.label for example in examples])
