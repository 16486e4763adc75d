"""The record of the task, and the loss of the right one of several choices.

Legend: B batch, C choices, S sequences that are there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, real_sequences
from transfer_cli.data.encoded_groups import EncodedGroups
from transfer_cli.data.encoded_task import Truncate, encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import one_of
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.sequence import SequenceObjective
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

    name, objective, head = "choice", "choice", "class"
    example: ClassVar[type] = ChoiceExample
    fields, expected = ("label", "answer", "probabilities"), "right choice"
    files = f"{__name__}.Choices"
    export_head: ClassVar[str | None] = "multiple_choice"
    combines = can_fail = True
    measure: ClassVar[str] = "accuracy"
    """What its objective calls the share of right answers."""

    def text_column(self, names: Sequence[str], name: str) -> str:
        return row_format(names, name).context

    def read(self, record: Record, text: str, pair: str | None, name: str) -> ChoiceExample:
        """See `Task`; the record is a row of any format that has one question a row."""
        return row_format(tuple(record.fields), name, record.line).read(record, name)

    def texts(self, example: ChoiceExample) -> tuple[str, ...]:
        question = (example.question,) if example.question else ()
        return (example.context, *question, *example.choices)

    def labels_of(self, example: ChoiceExample) -> Sequence[str]:
        return () if example.label is None else (example.choices[example.label],)

    def encode(
        self,
        examples: Sequence[ChoiceExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedGroups:
        """See `Task`; a context that is too long is cut, and a choice that is too long alone."""
        pairs = [
            Example(example.context, pair=end) for example in examples for end in example.endings()
        ]
        labels = [example.label for example in examples]
        return EncodedGroups(
            examples,
            encode_texts(pairs, tokenizer, length, direction, truncate=self.truncate, strict=False),
            [len(example.choices) for example in examples],
            tokenizer.pad,
            {} if None in labels else {"label": labels},
        )

    @property
    def truncate(self) -> Truncate:
        return "first"

    @classmethod
    def sample(cls) -> tuple["ChoiceTask", Sequence[ChoiceExample]]:
        return cls(), (
            ChoiceExample("Where is it ?", ["Rivers", "How many ?"], "Do", 1),
            ChoiceExample("How many rivers are there ?", ["Where ?", "Many", "There"], label=0),
            ChoiceExample("Where do the rivers go ?", ["Many", "Where do they go ?"], label=0),
            ChoiceExample("How many ?", ["Where ?", "It", "Go", "Do the rivers go ?"], label=3),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        (row,) = rows.values()
        choices = list(data.examples[example].choices)
        return {"choices": choices, "probabilities": row["probabilities"][: len(choices)]}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; of m choices that are all the likeliest, the right one counts 1/m."""
        (row,) = rows.values()
        (expected,) = self.labels_of(data.examples[example]) or ("",)
        predicted = data.examples[example].choices[row["label"]]
        return Result(expected, predicted, row["probability"], row["right"])

    def combine(self, answers: Sequence[tuple[Task, Answer]]) -> Answer:
        mean_C = np.mean([answer["probabilities"] for _, answer in answers], axis=0)
        return {**answers[0][1], "probabilities": mean_C.tolist()}

    def written(self, answer: Answer) -> dict[str, Any]:
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
        return read_examples(path, self.format)


CHANCE = Metric("chance", higher_is_better=True, unit="fraction")
"""The accuracy of a guess, which stands beside the run's."""

MEAN_RANK = Metric("mean_rank", higher_is_better=False)
"""Of the right choices, from 1."""


class MultipleChoice(SequenceObjective):
    """Cross-entropy of the right choice among those of its example; see `SequenceObjective`.

    The head gives each choice, read after its context, one number; a softmax over an example's
    choices makes probabilities of them (Radford et al. 2018, section 3.3; Zellers et al. 2018).
    """

    task = "choice"
    problem_type: ClassVar[str | None] = None
    num_outputs = 1

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True),
        CHANCE,
        MEAN_RANK,
        LOSS,
    )

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the number of each choice, `[B, C]` in float32; -inf where there is none."""
        # What stands in for a missing choice must not even reach the statistics of a batch norm.
        real_S = real_sequences(batch)
        vectors = encoded.pooled(self.head_pooling(model))
        predicted_S = self.read(model, vectors.index_select(0, real_S)).squeeze(1)
        shape = batch["mask"].shape[:-1]
        return (
            predicted_S.new_full((shape.numel(),), -torch.inf)
            .index_copy(0, real_S, predicted_S)
            .view(shape)
        )

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch["label"], reduction="none")

    def tallies(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return hits, those of a guess, the ranks of the right choices, and the summed loss."""
        hit_B, rank_B = hits_and_ranks(outputs, batch["label"])
        return {
            "accuracy": hit_B.sum(),
            "chance": (1 / outputs.isfinite().sum(1).clamp(min=1)).sum(),
            "mean_rank": rank_B.sum(),
            "loss": F.cross_entropy(outputs, batch["label"], reduction="sum"),
        }

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return each choice's probability, `probabilities` `[B, C]`; 0 where there is none."""
        return {"probabilities": outputs.softmax(1)}

    def results(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return each example's likeliest choice, and how right that is."""
        hit_B, _ = hits_and_ranks(outputs, batch["label"])
        share_B = outputs.softmax(1).amax(1)
        return {"label": outputs.argmax(1), "probability": share_B, "right": hit_B}

    def shown(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        """Return the number of the right choice and of the likeliest."""
        both = zip(batch["label"].tolist(), outputs.argmax(1).tolist(), strict=True)
        return [(str(wanted), str(predicted)) for wanted, predicted in both]


def hits_and_ranks(logits_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each right choice is the first, and its rank from 1, `[B]` each.

    Equal choices are counted as if their order were drawn: of m that are the first, each is so with
    probability 1/m, and they share the mean of their ranks.
    """
    own_B1 = logits_BC.gather(1, label_B[:, None])
    better_B = (logits_BC > own_B1).sum(1)
    equal_B = (logits_BC == own_B1).sum(1).clamp(min=1)  # none where it is not a number
    return (better_B == 0) / equal_B, 1 + better_B + (equal_B - 1) / 2
