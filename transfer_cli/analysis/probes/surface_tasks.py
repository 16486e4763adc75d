"""Tasks made from texts alone: how long a text is, which word it holds, where a word stands.

What a state says of these it may say without having learnt any language (Conneau et al. 2018).
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from transfer_cli.data.labelled import Example
from transfer_cli.errors import DataError
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import TaggingTask

SurfaceTask = Literal["length", "content", "position"]
SURFACE_TASKS = get_args(SurfaceTask)

BINS = 6
WORDS = 20
COMMON = 0.05
"""Words in more than this share of the texts are not asked for: most texts hold several."""

_WORD = re.compile(r"\S+")

Texts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class MadeData:
    """Labelled examples that were made from texts, by split, with their task."""

    task: Task
    splits: Mapping[str, Sequence[Example] | Sequence[TagExample]]


def made(kind: SurfaceTask, texts: Texts) -> MadeData:
    """Return the examples of a made task; what it asks follows from the training texts."""
    return _MAKERS[kind](texts)


def _length(texts: Texts) -> MadeData:
    """Texts by their number of words, in bins with equally many training texts."""
    bounds = _bounds([len(text.split()) for text in texts["train"]], "texts are equally long")
    return MadeData(ClassificationTask(_bin_names(bounds)), {
        split: [Example(text, bisect_right(bounds, len(text.split()))) for text in own]
        for split, own in texts.items()
    })  # fmt: skip


def _content(texts: Texts) -> MadeData:
    """Texts with exactly one of some words of medium frequency: which one it is."""
    texts_with = Counter(word for text in texts["train"] for word in set(_words(text)))
    most = COMMON * len(texts["train"])
    known = sorted((word for word, count in texts_with.items() if 2 <= count <= most),
                   key=lambda word: (-texts_with[word], word))[:WORDS]  # fmt: skip
    number = {word: at for at, word in enumerate(known)}
    splits = {}
    for split, own in texts.items():
        held = [(text, {word for word in _words(text) if word in number}) for text in own]
        splits[split] = [Example(text, number[min(words)]) for text, words in held
                         if len(words) == 1]  # fmt: skip
    _check_bins(len(number), "no two words occur in several, but not in most, of the texts")
    return MadeData(ClassificationTask(tuple(known)), splits)


def _position(texts: Texts) -> MadeData:
    """Words by where they stand in their text, in bins with equally many training words."""
    spans = {
        split: [tuple(match.span() for match in _WORD.finditer(text)) for text in own]
        for split, own in texts.items()
    }
    bounds = _bounds([at for own in spans["train"] for at in range(len(own))],
                     "texts have a word or two")  # fmt: skip
    return MadeData(TaggingTask(_bin_names(bounds), marks_entities=False), {
        split: [
            TagExample(text, own, tuple(bisect_right(bounds, at) for at in range(len(own))))
            for text, own in zip(texts[split], found, strict=True) if own
        ]
        for split, found in spans.items()
    })  # fmt: skip


_MAKERS: Mapping[SurfaceTask, Callable[[Texts], MadeData]] = {
    "length": _length, "content": _content, "position": _position,
}  # fmt: skip


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _bounds(values: Sequence[int], otherwise: str) -> list[int]:
    """Return the least value of each bin but the first."""
    ordered = sorted(values)
    at = (len(ordered) * each // BINS for each in range(1, BINS))
    bounds = sorted({ordered[each] for each in at} - {ordered[0]}) if ordered else []
    _check_bins(len(bounds) + 1, otherwise)
    return bounds


def _check_bins(found: int, otherwise: str) -> None:
    if found < 2:
        raise DataError(f"analysis.probes.task: nothing can be asked of these texts: {otherwise}")


def _bin_names(bounds: Sequence[int]) -> tuple[str, ...]:
    lows = [0, *bounds]
    named = [f"{low} to {past - 1}" for low, past in zip(lows, bounds, strict=False)]
    return (*named, f"{lows[-1]} or more")
