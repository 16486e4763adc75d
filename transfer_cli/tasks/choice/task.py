"""The record of the task: its examples, its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from transfer_cli.data.encoded_groups import EncodedGroups
from transfer_cli.data.encoded_task import Truncate, encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import one_of
from transfer_cli.tasks.base import (
    DECIMALS,
    Answer,
    Direction,
    Encoded,
    Result,
    Rows,
    Task,
    no_better,
)
from transfer_cli.tasks.choice.readers import FORMATS, ChoiceExample, read_examples, row_format
from transfer_cli.tasks.sources import LabelledFiles


@dataclass(frozen=True)
class ChoiceTask(Task):
    """One of several texts for a context."""

    name: ClassVar[str] = "choice"
    objective: ClassVar[str] = "choice"
    head: ClassVar[str] = "class"
    example: ClassVar[type] = ChoiceExample
    files: ClassVar[str | None] = f"{__name__}.Choices"
    fields: ClassVar[tuple[str, ...]] = ("label", "answer", "probabilities")
    expected: ClassVar[str] = "right choice"
    export_head: ClassVar[str | None] = "multiple_choice"
    combines: ClassVar[bool] = True
    can_fail: ClassVar[bool] = True
    measure: ClassVar[str] = "accuracy"
    """What its objective calls the share of right answers."""

    def text_column(self, names: Sequence[str], name: str) -> str:
        """See `Task`."""
        return row_format(names, name).context

    def read(self, record: Record, text: str, pair: str | None, name: str) -> ChoiceExample:
        """See `Task`; the record is a row of any format that has one question a row."""
        return row_format(tuple(record.fields), name, record.line).read(record, name)

    def texts(self, example: ChoiceExample) -> tuple[str, ...]:
        """See `Task`."""
        question = (example.question,) if example.question else ()
        return (example.context, *question, *example.choices)

    def labels_of(self, example: ChoiceExample) -> Sequence[str]:
        """See `Task`."""
        return () if example.label is None else (example.choices[example.label],)

    def encode(
        self,
        examples: Sequence[ChoiceExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedGroups:
        """See `Task`; a context that is too long is cut, and a choice that is too long alone."""
        pairs = [Example(each.context, pair=end) for each in examples for end in each.endings()]
        labels = [each.label for each in examples]
        return EncodedGroups(
            examples,
            encode_texts(pairs, tokenizer, length, direction, truncate=self.truncate, strict=False),
            [len(each.choices) for each in examples],
            tokenizer.pad,
            {} if None in labels else {"label": labels},
        )

    @property
    def truncate(self) -> Truncate:
        """See `Task`."""
        return "first"

    @classmethod
    def sample(cls) -> tuple["ChoiceTask", Sequence[ChoiceExample]]:
        """See `Task`."""
        return cls(), (
            ChoiceExample("Where is it ?", ["Rivers", "How many ?"], "Do", 1),
            ChoiceExample("How many rivers are there ?", ["Where ?", "Many", "There"], label=0),
            ChoiceExample("Where do the rivers go ?", ["Many", "Where do they go ?"], label=0),
            ChoiceExample("How many ?", ["Where ?", "It", "Go", "Do the rivers go ?"], label=3),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the choices, and the probability of each."""
        (found,) = rows.values()
        choices = list(data.examples[example].choices)
        return {"choices": choices, "probabilities": found["probabilities"][: len(choices)]}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; of m choices that are all the likeliest, the right one counts 1/m."""
        (found,) = rows.values()
        (expected,) = self.labels_of(data.examples[example]) or ("",)
        said = data.examples[example].choices[found["label"]]
        return Result(expected, said, found["probability"], found["right"])

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        """Return the mean of the probabilities."""
        mean_C = np.mean([answer["probabilities"] for _, answer in answers], axis=0)
        return {**answers[0][1], "probabilities": mean_C.tolist()}

    def written(self, answer: Answer) -> dict[str, Any]:
        """See `Task`."""
        shares_C = np.asarray(answer["probabilities"])
        label = int(shares_C.argmax())
        return {
            "label": label,
            "answer": answer["choices"][label],
            "probabilities": shares_C.round(DECIMALS).tolist(),
        }

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why nothing was learnt: a guess is right as often."""
        accuracy, chance = measures.get(self.measure, 1.0), measures.get("chance", 0.0)
        return no_better(self.measure, accuracy, "a guess among the choices", chance)


@dataclass(kw_only=True)
class Choices(LabelledFiles):
    """Own questions with choices, or those of a public data set; see `readers`.

    Each file may be a folder of RACE.

    Args:
        format: What is in the files; auto: told by their columns.
    """

    task: ClassVar[type[Task]] = ChoiceTask

    format: Literal["auto", "jsonl", "swag", "race", "copa", "storycloze"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, FORMATS, ValueError)

    def read(self, path: Path) -> list[ChoiceExample]:
        """See `LabelledFiles`."""
        return read_examples(path, self.format)
