"""The embedded examples about the made-up encyclopedia, for each task; see `data.sample`.

What is right only the encyclopedia tells. So a model that has read it learns these in no time.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from transfer_cli.config.build import build
from transfer_cli.data import sample
from transfer_cli.data.chat_template import ASSISTANT
from transfer_cli.data.labelled import Example, LabelledData
from transfer_cli.errors import one_of
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.chat.conversations import ChatExample
from transfer_cli.tasks.chat.task import ChatTask
from transfer_cli.tasks.choice.task import ChoiceExample, ChoiceTask
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.dialog.task import DialogExample, DialogTask
from transfer_cli.tasks.multilabel import LabelsExample, MultilabelTask
from transfer_cli.tasks.regression import NumberExample, RegressionTask
from transfer_cli.tasks.sources import Conflicts, Duplicates, LabelledSource
from transfer_cli.tasks.span.readers import SpanExample
from transfer_cli.tasks.span.task import SpanTask
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.tasks.text_to_text.task import TextToTextExample, TextToTextTask

_SIZES = {"disease": 0.0, "mineral": 1.0, "animal": 2.0, "person": 3.0, "city": 4.0, "river": 5.0}

_TRAITS: Mapping[str, tuple[str, ...]] = {
    "animal": ("alive",),
    "city": ("human", "place"),
    "disease": (),
    "mineral": ("natural",),
    "person": ("alive", "human"),
    "river": ("natural", "place"),
}

_ANSWERS = {
    "animal": "a wild animal with furry paws .",
    "city": "a busy city with a market .",
    "disease": "a severe disease that begins with fever .",
    "mineral": "a shiny mineral that forms crystals .",
    "person": "a famous poet who wrote novels .",
    "river": "a broad river that flows through a valley .",
}

Splits = Mapping[str, Sequence[Any]]
LabelledSplits = tuple[tuple[str, ...], Splits]


def _examples(rows: Mapping[str, Sequence[tuple[Any, ...]]], example: Callable[..., Any]) -> Splits:
    """Return an example of each row of each split."""
    return {split: [example(*row) for row in part] for split, part in rows.items()}


def _questions(world: int) -> LabelledSplits:
    """Questions about one name each: what kind of thing is it?"""
    kinds, questions = sample.questions(world)
    return kinds, _examples(questions, Example)


def _pairs(world: int) -> LabelledSplits:
    """Pairs of questions: do both ask about things of one kind?"""
    pairs = sample.pairs(world)
    labels = ("different", "same")
    return labels, _examples(pairs, lambda text, pair, is_same: Example(text, int(is_same), pair))


def _numbers(world: int) -> LabelledSplits:
    """Questions about one name each: how large is it?"""
    kinds, questions = sample.questions(world)
    return (), _examples(questions, lambda text, kind: NumberExample(text, _SIZES[kinds[kind]]))


def _labels(world: int) -> LabelledSplits:
    """Questions about one name each: what is it like? One kind of thing has no label."""
    kinds, questions = sample.questions(world)
    labels = tuple(sorted(set(chain.from_iterable(_TRAITS.values()))))
    numbers = [tuple(labels.index(trait) for trait in _TRAITS[kind]) for kind in kinds]
    return labels, _examples(questions, lambda text, kind: LabelsExample(text, numbers[kind]))


def _text_pairs(world: int) -> LabelledSplits:
    """Questions about one name each, answered by a few words."""
    kinds, questions = sample.questions(world)
    return (), _examples(
        questions, lambda text, kind: TextToTextExample(text, _ANSWERS[kinds[kind]])
    )


def _spans(world: int) -> LabelledSplits:
    """Questions answered by a name in a text: which of the names is it?"""

    def span(question: str, text: str, answer: str) -> SpanExample:
        if not answer:
            return SpanExample(question, text, ())
        return SpanExample(question, text, (answer,), text.index(answer))

    return (), _examples(sample.spans(world), span)


def _tags(world: int) -> LabelledSplits:
    """Questions whose names are to be tagged: a name is an entity of the type that it has."""
    sentences = sample.tags(world)
    labels = schemes.labels_of(chain.from_iterable(tags for _, tags in sentences["train"]), "bio")
    return labels, _examples(
        sentences, lambda words, tags: TagExample.of_words(words, [*map(labels.index, tags)])
    )


def _choices(world: int) -> LabelledSplits:
    """Choices: which of the sentences is about the one name in the context?"""
    choices = sample.choices(world)
    return (), _examples(choices, lambda text, among, right: ChoiceExample(text, among, "", right))


def _dialog(world: int) -> LabelledSplits:
    """Dialogs: what is said of the name that is asked about?"""

    def turn(persona: list[str], history: list[str], replies: list[str]) -> DialogExample:
        return DialogExample(persona, history, replies, len(replies) - 1)

    return (), _examples(sample.dialogs(world), turn)


def _chat(world: int) -> LabelledSplits:
    """Conversations that tell one made-up fact each."""

    def conversation(question: str, answer: str) -> ChatExample:
        turns = {"user": question, ASSISTANT: answer}
        return ChatExample([{"role": role, "content": text} for role, text in turns.items()])

    return (), _examples(sample.facts(world), conversation)


SAMPLES: Mapping[str, tuple[type[Task], Callable[[int], LabelledSplits]]] = {
    "questions": (ClassificationTask, _questions),
    "pairs": (ClassificationTask, _pairs),
    "numbers": (RegressionTask, _numbers),
    "labels": (MultilabelTask, _labels),
    "text_pairs": (TextToTextTask, _text_pairs),
    "spans": (SpanTask, _spans),
    "tags": (TaggingTask, _tags),
    "choices": (ChoiceTask, _choices),
    "dialog": (DialogTask, _dialog),
    "chat": (ChatTask, _chat),
}  # fmt: skip
"""Name -> the task of its examples, and the function from a world to labels and splits."""


class EmbeddedSample(LabelledSource):
    """Embedded examples about the made-up encyclopedia.

    Args:
        sample: One of `SAMPLES`.
        world: Which made-up world they ask about: the one of the encyclopedia read before.
        labelled: See `TaskData`; so is
        length: the longest input.
        duplicates: See `LabelledSource`; so is
        conflicts: which wins.
        options: Those of the task.
    """

    def __init__(
        self,
        sample: str,
        *,
        world: int = 0,
        labelled: int | None = None,
        length: int | None = None,
        duplicates: Duplicates = "together",
        conflicts: Conflicts = "refuse",
        **options: Any,
    ) -> None:
        super().__init__(
            length=length, labelled=labelled, duplicates=duplicates, conflicts=conflicts
        )
        one_of("sample", sample, SAMPLES, ValueError)
        task, self._build_splits = SAMPLES[sample]
        self.sample, self.world = sample, world
        self._task = build(task.node(**options), "data", task)

    @property
    def kind(self) -> type[Task]:
        return type(self._task)

    def given_splits(self, data_dir: Path) -> LabelledData:
        labels, splits = self._build_splits(self.world)
        return LabelledData(f"sample_{self.sample}", labels, splits, self._task.as_node())
