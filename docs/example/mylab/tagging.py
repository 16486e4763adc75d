"""A task of our own: a tag for each word, with the F1 of whole names as its measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import Answering
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks.base import Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.sources import LabelledFiles
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import EncodedWords, encode_words, measures, of_words


@dataclass(frozen=True)
class Sentence:
    """Words, and the tag of each: `O`, or `B-KIND` and `I-KIND` for the words of a name."""

    words: Sequence[str]
    tags: Sequence[str] = ()


@dataclass(frozen=True)
class Tagging(Task):
    """A tag for each word; the labels are the tags."""

    name = objective = "tag_words"
    head, example = "tags", Sentence
    fields, expected = ("words", "tags"), "tags"
    makes_windows = scores_answers = True

    def read(self, record: Record, text: str, pair: str | None, name: str) -> Sentence:
        """Return the words: those of a list, or what stands between the spaces of a text."""
        words = record.fields.get(text)
        words = words.split() if isinstance(words, str) else words
        if not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
            raise DataError(f"{name}, line {record.line}: {text!r} holds no words.")
        return Sentence(words)

    def texts(self, example: Sentence) -> tuple[str, ...]:
        return (" ".join(example.words),)

    def labels_of(self, example: Sentence) -> Sequence[str]:
        return example.tags

    def encode(
        self, examples: Sequence[Sentence], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> EncodedWords:
        """See `Task`; the target of a word stands at its first token."""
        tagged = [
            TagExample.of_words(sentence.words, [*map(self.labels.index, sentence.tags)] or None)
            for sentence in examples
        ]
        rows = encode_words(tagged, tokenizer, length, direction, "first", stride=0)
        rows.examples = examples
        return rows

    @classmethod
    def sample(cls) -> tuple["Tagging", Sequence[Sentence]]:
        river = Sentence(("Where", "is", "Old", "Man", "?"), ("O", "O", "B-RIVER", "I-RIVER", "O"))
        others = (Sentence(("No", "name"), ("O", "O")), Sentence(("Rhine",), ("B-RIVER",)))
        return cls(("O", "B-RIVER", "I-RIVER")), (river, *others)

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        tags = [self.labels[number] for number in of_words(data, rows, "tags")]
        return {"words": list(data.examples[example].words), "tags": tags}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        tags = self.answer(data, example, rows)["tags"]
        return Result(" ".join(data.examples[example].tags), " ".join(tags))

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the F1 of names: right where kind, first and last word are."""
        expected = [data.examples[example].tags for example in rows]
        predicted = [self.answer(data, *windows)["tags"] for windows in rows.items()]
        return {"span_f1": measures(expected, predicted)["entity_f1"]}


@dataclass(kw_only=True)
class TaggedWords(LabelledFiles):
    """JSON lines such as `{"words": ["in", "Rome"], "tags": ["O", "B-CITY"]}`, a file a split."""

    task = Tagging

    def read(self, path: Path) -> list[Sentence]:
        sentences = []
        for record in json_rows(path):
            words = Tagging().read(record, "words", None, str(path)).words
            tags = record.fields.get("tags")
            if not isinstance(tags, list) or len(words) != len(tags):
                raise DataError(f"{path}, line {record.line}: give as many tags as words.")
            sentences.append(Sentence(words, tags))
        return sentences

    def labels(self, train: Sequence[Sentence]) -> tuple[str, ...]:
        return ("O", *sorted({tag for sentence in train for tag in sentence.tags} - {"O"}))


class TagWords(Answering):
    """Cross-entropy of each word's tag, from the state of its first token."""

    task, head = "tag_words", "tags"
    metrics = (LOSS,)
    task_metrics = (Metric("span_f1", higher_is_better=True, unit="fraction", headline=True),)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        return {self.head: nn.Linear(backbone.shape.width, len(self.info.labels))}

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the logits of C tags at T positions of B rows, `[B, T, C]`, in float32."""
        return model.heads[self.head](encoded.top).float()

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        logits_BCT, target_BT = outputs.transpose(1, 2), batch["target"]
        return F.cross_entropy(logits_BCT, target_BT, ignore_index=IGNORE, reduction="none").sum(1)

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the likeliest tag at each position, `[B, T]`."""
        return {"tags": outputs.argmax(-1)}
