"""The record of the task: its examples, its answers, its entities."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from transfer_cli.data.readers import Record, text_of
from transfer_cli.data.tasks import LabelledFiles
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.tasks.base import Answer, Direction, Result, Rows, Task
from transfer_cli.tasks.probabilities import check_same_labels
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.decoding import decode
from transfer_cli.tasks.tagging.encoding import EncodedTags, Piece, encode_tags

MARGIN = 0.02
"""How far above the commonest tag's share an accuracy, or above 0 an F1, still counts as that."""


@dataclass(frozen=True, slots=True)  # there may be millions
class TaggedSentence:
    """The words of a sentence, and the number of each one's tag.

    Args:
        words: The words.
        label: Their tags; None: they are not known.
        given: The text that they come from; None: the words, parted by blanks.
        starts: The character of that text at which each word begins; None where it is not given.
    """

    words: Sequence[str]
    label: Sequence[int] | None = None
    given: str | None = None
    starts: Sequence[int] | None = None

    @property
    def text(self) -> str:
        """The text that the words come from."""
        return " ".join(self.words) if self.given is None else self.given

    @property
    def pair(self) -> None:
        """There is no second text."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters of the text from which to which each word goes."""
        sizes = [len(word) for word in self.words]
        starts = self.starts
        if starts is None:
            starts = [sum(sizes[:place]) + place for place in range(len(sizes))]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    @classmethod
    def of_text(cls, text: str) -> "TaggedSentence":
        """Return the words of a text between its blanks."""
        found = list(re.finditer(r"\S+", text))
        return cls([each[0] for each in found], None, text, [each.start() for each in found])


@dataclass(frozen=True)
class TaggingTask(Task):
    """A tag for each word of a sentence.

    Args:
        commonest: The share of the training words that have the commonest tag.
        piece: See `encoding.encode_tags`; so `overlap`.
        label_all: Whether all pieces of a word learn its tag; of B-X the further ones learn I-X.
        overlap: How many words two windows of a long sentence share.
    """

    name: ClassVar[str] = "tagging"
    objective: ClassVar[str] = "tagging"
    head: ClassVar[str] = "tags"
    example: ClassVar[type] = TaggedSentence
    fields: ClassVar[tuple[str, ...]] = ("tags", "entities")
    expected: ClassVar[str] = "tags"
    export_head: ClassVar[str | None] = "token_classification"
    makes_windows: ClassVar[bool] = True
    scores_answers: ClassVar[bool] = True
    can_fail: ClassVar[bool] = True

    commonest: float = 1.0
    piece: Piece = "auto"
    label_all: bool = False
    overlap: int | None = None

    @classmethod
    def table(cls) -> type[LabelledFiles]:
        """See `Task`."""
        # Only here: it imports this module.
        from transfer_cli.tasks.tagging.data import Conll

        return Conll

    def read(self, record: Record, text: str, pair: str | None, name: str) -> TaggedSentence:
        """Return the words of a text between its blanks."""
        return TaggedSentence.of_text(text_of(record, text, name))

    def texts(self, example: TaggedSentence) -> tuple[str, ...]:
        """See `Task`."""
        return (example.text,)

    def labels_of(self, example: TaggedSentence) -> Sequence[str]:
        """Return the tags of the words."""
        return [self.labels[number] for number in example.label or ()]

    def encode(
        self,
        examples: Sequence[TaggedSentence],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedTags:
        """See `Task` and `encode_tags`."""
        further = None
        if self.label_all:
            inside = [re.sub("^B-", "I-", label) for label in self.labels]
            # A type without I- has no tag for what follows.
            further = [
                self.labels.index(name) if name in self.labels else number
                for number, name in enumerate(inside)
            ]
        return encode_tags(
            examples, tokenizer, length, direction,
            piece=self.piece, label_all=further, overlap=self.overlap,
        )  # fmt: skip

    @classmethod
    def sample(cls) -> tuple["TaggingTask", Sequence[TaggedSentence]]:
        """See `Task`."""
        return cls(("O", "B-THING", "I-THING"), commonest=0.5, overlap=1), (
            TaggedSentence(["Where", "do", "the", "rivers", "go", "?"], (0, 0, 1, 2, 0, 0)),
            TaggedSentence(["How", "many", "?"], (0, 0, 0)),
            TaggedSentence(["Where", "is", "it", "?"], (0, 0, 1, 0)),
        )

    def answer(self, data: Any, example: int, rows: Rows) -> Answer:
        """Return the tag of each word, and the probabilities of all tags."""
        sentence = data.examples[example]
        return {
            "tags": [self.labels[number] for number in self._tags(data, rows)],
            "probabilities": self._of_words(data, rows, "probabilities"),
            "spans": [list(span) for span in sentence.spans],
        }

    def _of_words(self, data: Any, rows: Rows, name: str) -> list[Any]:
        """Return what rows predict of each word, each from the row that it belongs to."""
        found = []
        for row, own in rows.items():
            first, _, start, end = data.words[row]
            found += [own[name][data.places[row][word - first]] for word in range(start, end)]
        return found

    def _tags(self, data: Any, rows: Rows) -> list[int]:
        """Return the number of each word's tag; where windows meet, an I- may have become a B-."""
        found = self._of_words(data, rows, "tags")
        if len(rows) == 1:
            return found
        return [self.labels.index(tag) for tag in self._valid([self.labels[at] for at in found])]

    def _valid(self, tags: Sequence[str]) -> list[str]:
        if not schemes.has_entities(self.labels):
            return list(tags)
        return [
            tag if schemes.follows(tag, before) else f"B-{schemes.split_tag(tag)[1]}"
            for tag, before in zip(tags, [None, *tags], strict=False)
        ]

    def result(self, data: Any, example: int, rows: Rows) -> Result:
        """See `Task`; the score is the share of right words, or the F1 of entities."""
        given = self.labels_of(data.examples[example])
        said = [self.labels[number] for number in self._tags(data, rows)]
        score = float(np.mean([one == other for one, other in zip(given, said, strict=True)] or 1))
        if not schemes.has_entities(self.labels):
            return Result(" ".join(given), " ".join(said), score=score)
        words, both = (
            data.examples[example].words,
            [schemes.entities(each) for each in (given, said)],
        )
        counts = schemes.EntityCounts()
        counts.add(*both)
        score = counts.scores()[2] if any(both) else 1.0
        expected, predicted = (_shown(words, each) for each in both)
        return Result(expected, predicted, score=score)

    def scores(self, data: Any, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the share of right words, and precision, recall and F1 of entities.

        `entity_f1` follows CoNLL's script, `entity_f1_strict` wants entities to begin with B-; both
        are micro averages. `entity_f1/TYPE` is that of a type.
        """
        right = total = 0
        lenient, strict = schemes.EntityCounts(), schemes.EntityCounts()
        for example, own in rows.items():
            given = self.labels_of(data.examples[example])
            said = [self.labels[number] for number in self._tags(data, own)]
            right += sum(one == other for one, other in zip(given, said, strict=True))
            total += len(given)
            for counts, is_strict in ((lenient, False), (strict, True)):
                counts.add(*(schemes.entities(each, strict=is_strict) for each in (given, said)))
        measures = {"accuracy": right / total} if total else {}
        if not schemes.has_entities(self.labels):
            return measures
        names = ("entity_precision", "entity_recall", "entity_f1")
        measures |= zip(names, lenient.scores(), strict=True)
        measures["entity_f1_strict"] = strict.scores()[2]
        kinds = sorted({*lenient.given, *lenient.said})
        return measures | {f"entity_f1/{kind}": lenient.scores(kind)[2] for kind in kinds}

    def check_combines(self, other: Task, first: str, path: str) -> None:
        """Refuse a run of another task, or with other tags; their order may differ."""
        check_same_labels(self, other, first, path)

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        """Return the best tags by the mean of the probabilities."""
        mean_WC = np.zeros((len(answers[0][1]["tags"]), len(self.labels)))
        for task, answer in answers:
            shares_WC = np.reshape(answer["probabilities"], mean_WC.shape)
            mean_WC += shares_WC[:, [task.labels.index(tag) for tag in self.labels]] / len(answers)
        scores_1WC = torch.from_numpy(mean_WC).log()[None]
        is_word = torch.ones(scores_1WC.shape[:2], dtype=torch.bool)
        found = decode(scores_1WC, is_word, self.labels)[0].tolist() if len(mean_WC) else []
        tags = [self.labels[number] for number in found]
        return {**answers[0][1], "tags": tags, "probabilities": mean_WC.tolist()}

    def written(self, answer: Answer) -> dict[str, Any]:
        """Return the tags, and the entities with the characters from which to which they go."""
        found = schemes.entities(answer["tags"]) if schemes.has_entities(self.labels) else []
        spans = answer["spans"]
        return {
            "tags": list(answer["tags"]),
            "entities": [
                {"label": each.type, "start": spans[each.start][0], "end": spans[each.end - 1][1]}
                for each in found
            ],
        }

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why nothing was learnt: no entity is found, or each word has the commonest tag."""
        cure = "try another seed, another optimizer.lr or a longer run"
        if measures.get("entity_f1", 1.0) <= MARGIN:
            return f"the F1 of training entities is {100 * measures['entity_f1']:.1f} %; {cure}"
        found = measures.get("accuracy", 1.0)
        if schemes.has_entities(self.labels) or found > self.commonest + MARGIN:
            return None
        return (
            f"training accuracy {100 * found:.1f} % is no better than the commonest tag for each "
            f"word ({100 * self.commonest:.1f} %); {cure}"
        )


def _shown(words: Sequence[str], found: Sequence[schemes.Entity]) -> str:
    """Return entities as people look at them."""
    said = (f"{' '.join(words[each.start : each.end])} ({each.type})" for each in found)
    return ", ".join(said) or "(none)"
