"""A task of our own: a tag for each word, with the F1 of whole names as its measure.

Legend: B rows, T positions, D width, N targets, C tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch, rows_with_target
from transfer_cli.data.encoded_task import EncodedRows, specials_around
from transfer_cli.data.labelled import LabelledData, TaskData
from transfer_cli.data.readers import read_table
from transfer_cli.data.records import Record
from transfer_cli.data.split import TextStats
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.metrics import Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective
from transfer_cli.tasks.base import Answer, Direction, Encoded, Result, Rows, Task


@dataclass(frozen=True)
class Sentence:
    """Words, and the tag of each: `O`, or `B-KIND` and `I-KIND` for the words of a name."""

    words: Sequence[str]
    tags: Sequence[str] = ()


class EncodedSentences(EncodedRows):
    """Sentences as tokens. A long one becomes several rows, none of which cuts a word in two.

    Attributes:
        first: For each row, where the first tokens of its words stand.
    """

    first: list[list[int]]


@dataclass(frozen=True)
class Tagging(Task):
    """A tag for each word; the labels are the tags."""

    name: ClassVar[str] = "tag_words"
    objective: ClassVar[str] = "tag_words"
    head: ClassVar[str] = "tags"
    example: ClassVar[type] = Sentence
    fields: ClassVar[tuple[str, ...]] = ("words", "tags")
    expected: ClassVar[str] = "tags"
    makes_windows: ClassVar[bool] = True
    scores_answers: ClassVar[bool] = True

    def read(self, record: Record, text: str, pair: str | None, name: str) -> Sentence:
        """Return the words: those of a list, or what stands between the spaces of a text."""
        found = record.fields.get(text)
        words = found.split() if isinstance(found, str) else found
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise DataError(f"{name}, line {record.line}: {text!r} holds no words.")
        return Sentence(words)

    def texts(self, example: Sentence) -> tuple[str, ...]:
        """See `Task`."""
        return (" ".join(example.words),)

    def labels_of(self, example: Sentence) -> Sequence[str]:
        """See `Task`."""
        return example.tags

    def encode(
        self, examples: Sequence[Sentence], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> EncodedSentences:
        """See `Task`; the target of a word stands at its first token."""
        before, after = specials_around(tokenizer, direction)
        room = length - len(before) - len(after)
        rows, targets, first, example_of = [], [], [], []
        numbers = {tag: number for number, tag in enumerate(self.labels)}
        for at, example in enumerate(examples):
            tags = [numbers[tag] for tag in example.tags] or [IGNORE] * len(example.words)
            for window in _windows(_pieces(example.words, tokenizer), room):
                tokens, target, places = [*before], [IGNORE] * len(before), []
                for word, pieces in window:
                    places.append(len(tokens))
                    tokens += pieces
                    target += [tags[word], *[IGNORE] * (len(pieces) - 1)]
                rows.append(tokens + after)
                targets.append(target + [IGNORE] * len(after))
                first.append(places)
                example_of.append(at)
        known = any(example.tags for example in examples)
        found = EncodedSentences(
            examples, rows, tokenizer.pad, example_of=example_of,
            targets={"target": targets} if known else {}, fill={"target": IGNORE},
        )  # fmt: skip
        found.first = first
        return found

    @classmethod
    def sample(cls) -> tuple["Tagging", Sequence[Sentence]]:
        """See `Task`."""
        return cls(("O", "B-RIVER", "I-RIVER")), (
            Sentence(("Where", "does", "the", "Old", "Man", "end", "?"),
                     ("O", "O", "O", "B-RIVER", "I-RIVER", "O", "O")),
            Sentence(("Nothing", "here"), ("O", "O")),
            Sentence(("Rhine", "and", "Main"), ("B-RIVER", "O", "B-RIVER")),
        )  # fmt: skip

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the words, and a tag for each."""
        return {"words": list(data.examples[example].words), "tags": self._tags(data, rows)}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; the score is the share of words with the right tag."""
        given, said = list(data.examples[example].tags), self._tags(data, rows)
        right = sum(one == other for one, other in zip(given, said, strict=True))
        return Result(" ".join(given), " ".join(said), score=right / len(given))

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the F1 of names: right where kind, first and last word are."""
        right = given = said = 0
        for example, own in rows.items():
            wanted = spans(data.examples[example].tags)
            found = spans(self._tags(data, own))
            right, given, said = right + len(wanted & found), given + len(wanted), said + len(found)
        return {"span_f1": 2 * right / (given + said) if given + said else 0.0}

    def written(self, answer: Answer) -> dict[str, Any]:
        """See `Task`."""
        return dict(answer)

    def _tags(self, data: Any, rows: Rows) -> list[str]:
        """Return the tags of all words; rows hold words one after the other, each once."""
        return [
            self.labels[found["tags"][place]]
            for row, found in rows.items()
            for place in data.first[row]
        ]


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the names that tags mark: kind, first word, the word after the last."""
    found, begin = set(), 0
    for at, tag in enumerate([*tags, "O"]):
        before = tags[at - 1] if at else "O"
        if tag != f"I-{before[2:]}" or before == "O":
            if before != "O":
                found.add((before[2:], begin, at))
            begin = at
    return found


def _pieces(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, list[int]]]:
    """Return the number of each word and its tokens, those it has in the whole sentence."""
    ((tokens, places),) = tokenizer.encode_with_offsets([" ".join(words)])
    word_at = [word for word, text in enumerate(words) for _ in range(len(text) + 1)]
    pieces: list[list[int]] = [[] for _ in words]
    for token, (start, _) in zip(tokens, places, strict=True):
        pieces[word_at[start]].append(token)
    return [(word, own or [tokenizer.unk]) for word, own in enumerate(pieces)]


def _windows(
    words: Sequence[tuple[int, list[int]]], room: int
) -> list[list[tuple[int, list[int]]]]:
    windows: list[list[tuple[int, list[int]]]] = []
    left = 0
    for word, pieces in words:
        if len(pieces) > left or not windows:
            windows.append([])
            left = room
        windows[-1].append((word, pieces[:left]))
        left -= len(pieces)
    return windows


@dataclass(kw_only=True)
class TaggedWords(TaskData):
    """JSON lines such as `{"words": ["in", "Rome"], "tags": ["O", "B-CITY"]}`, a file a split."""

    train: str
    validation: str
    test: str | None = None
    length: int | None = None

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; nothing is drawn."""
        paths = {"train": self.train, "validation": self.validation, "test": self.test}
        splits = {name: _sentences(Path(path)) for name, path in paths.items() if path}
        tags = sorted({tag for each in splits["train"] for tag in each.tags} - {"O"})
        unknown = {tag for split in splits.values() for each in split for tag in each.tags}
        if unknown - {"O", *tags}:
            raise DataError(f"{self.train}: no word has the tag {min(unknown - {'O', *tags})!r}.")
        return LabelledData(Path(self.train).parent.name, ("O", *tags), splits, Tagging.node())


def _sentences(path: Path) -> tuple[Sentence, ...]:
    found = []
    for record in read_table(path, "jsonl"):
        words, tags = (record.fields.get(key) for key in ("words", "tags"))
        if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
            raise DataError(f"{path}, line {record.line}: give as many tags as words.")
        found.append(Sentence(words, tags))
    return tuple(found)


class TagWords(Objective):
    """Cross-entropy of each word's tag, from the state of its first token."""

    task = "tag_words"

    @property
    def head(self) -> str:
        """The name of its head."""
        return "tags" if self.info.name == "main" else f"tags_{self.info.name}"

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return a linear layer."""
        return {self.head: nn.Linear(backbone.shape.width, len(self.info.labels))}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of words."""
        return {"loss": int((batch["target"] != IGNORE).sum())}

    def logits(self, model: TransferModel, encoded: Encoding) -> Tensor:
        """Return `[B, T, C]`, in float32."""
        logits_BTC: Tensor = model.heads[self.head](encoded.top)
        return logits_BTC.float()

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy."""
        rows_N = rows_with_target(batch)
        logits_NC = self.logits(model, encoded).flatten(0, 1)[rows_N]
        target_N = batch["target"].flatten()[rows_N]
        return {"loss": F.cross_entropy(logits_NC, target_N, reduction="sum")}

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the loss, and how many words have the right tag."""
        said_BT = self.logits(model, encoded).argmax(-1)
        sums = self.loss_sums(model, batch, encoded)
        return {**sums, "right": (said_BT == batch["target"]).sum()}

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return loss and accuracy by words; the F1 of names is the task's, of whole sentences."""
        words = counts["loss"]
        return {"loss": float(totals["loss"]) / words, "accuracy": float(totals["right"]) / words}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """See `Objective`."""
        return (
            Metric("accuracy", higher_is_better=True, unit="fraction"),
            Metric("loss", higher_is_better=False, unit="nats", per_example=True),
        )

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return the F1 of names."""
        return (Metric("span_f1", higher_is_better=True, unit="fraction", headline=True),)

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return the likeliest tag at each position, `[B, T]`."""
        return {"tags": self.logits(model, encoded).argmax(-1)}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        """Return each row's loss, its number of words, and the tags."""
        logits_BTC, target_BT = self.logits(model, encoded), batch["target"]
        loss_BT = F.cross_entropy(
            logits_BTC.transpose(1, 2), target_BT, ignore_index=IGNORE, reduction="none"
        )
        said = {"tags": logits_BTC.argmax(-1)}
        return ExampleResults(loss_BT.sum(1), (target_BT != IGNORE).sum(1), said)
