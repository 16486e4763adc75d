"""Choices: the record, the loss of the right one of several, and the formats of files.

These are own JSON lines, SWAG, RACE, COPA and StoryCloze. In all but RACE a row, or a line, is a
question; a line of RACE is a passage with several.

Legend: B batch, C choices, S sequences that are there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, real_sequences
from transfer_cli.data import readers
from transfer_cli.data.columns import other_data_hint
from transfer_cli.data.encoded_groups import EncodedGroups
from transfer_cli.data.encoded_task import Truncate, encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.layout import Layout
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.table import open_table
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import ANY
from transfer_cli.errors import DataError, did_you_mean
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.class_weights import ClassWeight
from transfer_cli.objectives.confidence import Calibrate
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.progress import progress
from transfer_cli.tasks.base import (
    DECIMALS,
    Answer,
    Direction,
    Encoded,
    Result,
    Rows,
    Task,
    baseline_failure,
)
from transfer_cli.tasks.sources import LabelledFiles

_CONNECTIVES = {"cause": "because", "effect": "so"}
_BLANK = "_"
"""Stands in a question of RACE where the answer goes."""


@dataclass(frozen=True, slots=True)  # there may be millions
class ChoiceExample:
    """A context, what stands before each choice ("" for nothing), the choices, and the right one.

    Choices and the number of the right one count from 0.
    """

    context: str
    choices: Sequence[str]
    question: str = ""
    label: int | None = None

    def endings(self) -> Iterator[str]:
        """Yield what follows the context, choice by choice."""
        for choice in self.choices:
            yield f"{self.question} {choice}" if self.question else choice


@dataclass(frozen=True)
class RowFormat:
    """A format with one question a row.

    Args:
        columns: Those that tell it from the others.
        context: The one that is shown.
        read: Returns the question, without its answer; raises `DataError`.
        label: Returns the number of the right choice, as it stands there.
        first: What the first choice is called there.
    """

    columns: tuple[str, ...]
    context: str
    read: Callable[[Record, str], ChoiceExample]
    label: str = "label"
    first: int = 0


def _read_own(record: Record, name: str) -> ChoiceExample:
    question = "" if record.fields.get("question") is None else text_of(record, "question", name)
    choices = _texts(record, "choices", name)
    return ChoiceExample(text_of(record, "context", name), choices, question.strip())


def _read_swag(record: Record, name: str) -> ChoiceExample:
    context, opening = (text_of(record, column, name) for column in ("sent1", "sent2"))
    endings = [text_of(record, f"ending{number}", name) for number in range(4)]
    return ChoiceExample(context, endings, opening.strip())


def _read_copa(record: Record, name: str) -> ChoiceExample:
    choices = [text_of(record, f"choice{number}", name) for number in (1, 2)]
    relation = text_of(record, "question", name).strip()
    return ChoiceExample(
        text_of(record, "premise", name), choices, _CONNECTIVES.get(relation, relation)
    )


def _read_story_cloze(record: Record, name: str) -> ChoiceExample:
    context = [text_of(record, f"InputSentence{number}", name) for number in range(1, 5)]
    endings = [text_of(record, f"RandomFifthSentenceQuiz{number}", name) for number in (1, 2)]
    return ChoiceExample(" ".join(context), endings)


ROWS: Mapping[str, RowFormat] = {
    "jsonl": RowFormat(("context", "choices"), "context", _read_own),
    "swag": RowFormat(("sent1", "sent2", "ending0"), "sent1", _read_swag),
    "copa": RowFormat(("premise", "choice1", "choice2", "question"), "premise", _read_copa),
    "storycloze": RowFormat(
        ("InputSentence1", "RandomFifthSentenceQuiz1"), "InputSentence1", _read_story_cloze,
        "AnswerRightEnding", 1,
    ),
}  # fmt: skip

_COLUMNS = {
    **{kind: form.columns for kind, form in ROWS.items()},
    "race": ("article", "questions", "options", "answers"),
}
"""Of each format those that tell it from the others."""


def row_format(names: Sequence[str], name: str, line: int | None = None) -> RowFormat:
    """Return the format of a table with one question a row, by its columns."""
    return ROWS[_find_format(names, name, line, ROWS)]


def read_examples(path: Path, chosen: str) -> list[ChoiceExample]:
    """Return the questions of a file, with their answers; of a folder, those of its files.

    Args:
        path: A table or JSON lines; RACE's split is a folder of files with a passage each.
    """
    files = [path]
    if path.is_dir() and not readers.is_parquet(path):
        files = sorted(file for file in path.rglob("*.[tj][xs][to]*") if file.is_file())
    examples: list[ChoiceExample] = []
    lines = partial(readers.count_lines, path)
    with progress(f"reading {path}", lines, "lines") as more:
        for file in files:
            for record in _records(file):
                examples += _questions(record, str(file), chosen)
                more(1)
    return examples


def _records(path: Path) -> Iterator[Record]:
    table_format = readers.format_of(path) or "jsonl"
    with open_table(path, table_format, Layout(header=True), ANY) as table:
        yield from table.records(readers.refuse)


def _questions(record: Record, name: str, chosen: str) -> Iterator[ChoiceExample]:
    kind = chosen
    if chosen == "auto":
        kind = _find_format(tuple(record.fields), name, record.line, _COLUMNS)
    if kind == "race":
        yield from _race_questions(record, name)
        return
    form = ROWS[kind]
    example, number = form.read(record, name), record.fields.get(form.label)
    if isinstance(number, str) and number.strip().isdecimal():
        number = int(number)  # of CSV
    first, count = form.first, len(example.choices)
    if type(number) is not int or not first <= number < first + count:
        fault = "is missing" if number is None else f"is {number!r:.40}"
        raise DataError(
            f"{name}, line {record.line}: {form.label!r} {fault}, expected a number from {first} "
            f"to {first + count - 1}, since there are {count} choices."
        )
    yield replace(example, label=number - first)


def _race_questions(record: Record, name: str) -> Iterator[ChoiceExample]:
    where = f"{name}, line {record.line}"
    article, questions = text_of(record, "article", name), _texts(record, "questions", name, 1)
    options, answers = record.fields.get("options"), _texts(record, "answers", name, 1)
    if not isinstance(options, list) or not len(options) == len(questions) == len(answers):
        raise DataError(f"{where}: there are not as many options and answers as questions.")
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1):
        of_question = Record(record.line, {"options": options[number - 1]})
        choices = _texts(of_question, "options", name)
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(choices)]
        if len(answer) != 1 or answer not in letters:
            raise DataError(
                f"{where}: the answer to question {number} is {answer!r:.40}, expected one of "
                f"{', '.join(letters)}."
            )
        right = letters.index(answer)
        if _BLANK in question:
            sentences = [question.replace(_BLANK, choice) for choice in choices]
            yield ChoiceExample(article, sentences, label=right)
        else:
            yield ChoiceExample(article, choices, question.strip(), right)


def _texts(record: Record, column: str, name: str, least: int = 2) -> list[str]:
    cells = record.fields.get(column)
    where = f"{name}, line {record.line}: {column!r}"
    if not isinstance(cells, list) or len(cells) < least:
        few = f"has {len(cells)}" if isinstance(cells, list) else "is no list of texts"
        raise DataError(f"{where} {few}, expected at least {least}.")
    return [text_of(Record(record.line, {column: cell}), column, name) for cell in cells]


def _find_format(names: Sequence[str], name: str, line: int | None, among: Iterable[str]) -> str:
    for kind in among:
        if set(_COLUMNS[kind]) <= set(names):
            return kind
    where = name if line is None else f"{name}, line {line}"
    if not names:
        raise DataError(
            f"{where}: no columns for a context and its choices; give a table, or JSON "
            'lines such as {"context": "It rains.", "choices": ["I get wet.", "I sing."]}.'
        )
    expected = "; ".join(f"{kind}: {', '.join(_COLUMNS[kind])}" for kind in among)
    known = sum(_COLUMNS.values(), ())
    close = next(filter(None, (did_you_mean(column, known) for column in names)), "")
    columns_there = ", ".join(repr(column[:40]) for column in names[:10])
    raise DataError(
        f"{where}: the columns {columns_there} are those of no format ({expected})."
        f"{other_data_hint(names) or close}"
    )


@dataclass(frozen=True)
class ChoiceTask(Task):
    """One of several texts for a context."""

    name, objective, head = "choice", "choice", "class"
    example: ClassVar[type] = ChoiceExample
    fields, expected = ("label", "answer", "probability", "probabilities"), "right choice"
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
        return (*self.equal_by(example), *example.choices)

    def equal_by(self, example: ChoiceExample) -> tuple[str, ...]:
        return (example.context, example.question) if example.question else (example.context,)

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

    def said(self, answer: Answer) -> tuple[str, float]:
        shares_C = np.asarray(answer["probabilities"])
        return answer["choices"][int(shares_C.argmax())], float(shares_C.max())

    def written(self, answer: Answer) -> dict[str, Any]:
        shares_C = np.asarray(answer["probabilities"])
        reply, probability = self.said(answer)
        is_given = probability >= self.abstain_below
        return {
            "label": int(shares_C.argmax()) if is_given else None,
            "answer": reply if is_given else None,
            "probability": round(probability, DECIMALS),
            "probabilities": shares_C.round(DECIMALS).tolist(),
        }

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        accuracy, chance = measures.get(self.measure, 1.0), measures.get("chance", 0.0)
        return baseline_failure(self.measure, accuracy, "a guess among the choices", chance)


@dataclass(kw_only=True)
class Choices(LabelledFiles):
    """Own questions with choices, or those of a public data set; see `ROWS`.

    Each may be a folder of RACE.

    Args:
        format: What is in the files; auto: told by their columns.
    """

    task: ClassVar[type[Task]] = ChoiceTask

    format: Literal["auto", "jsonl", "swag", "race", "copa", "storycloze"] = "auto"

    def is_one_file(self, folder: Path) -> bool:
        """See `LabelledFiles`; so is a folder of RACE, with those below it, which has no tables."""
        has_tables = any(map(readers.format_of, folder.rglob("*")))
        return super().is_one_file(folder) or (any(folder.rglob("*.txt*")) and not has_tables)

    def read(self, path: Path) -> list[ChoiceExample]:
        return read_examples(path, self.format)


CHANCE = Metric("chance", higher_is_better=True, unit="fraction")
"""The accuracy of a guess, which stands beside the run's."""

MEAN_RANK = Metric("mean_rank", higher_is_better=False)
"""Of the right choices, from 1."""


@dataclass(eq=False, repr=False)
class MultipleChoice(SequenceObjective):
    """Cross-entropy of the right choice among those of its example; see `SequenceObjective`.

    The head gives each choice, read after its context, one number; a softmax over an example's
    choices makes probabilities of them (Radford et al. 2018, section 3.3; Zellers et al. 2018).

    Args:
        class_weight: How much examples count in training by the text of their right choice, such as
            yes or no, see `ClassWeight`: where a choice stands makes it no class.
        calibrate, abstain: See `UnitObjective`.
        options: Those of `SequenceObjective`.
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

    class_weight: ClassWeight = field(default=None, kw_only=True)
    calibrate: Calibrate = field(default=False, kw_only=True)
    abstain: float | None = field(default=None, kw_only=True)

    def classes(self, batch: Batch) -> Tensor:
        """Return the examples, whose right choices have the weights."""
        return batch["index"]

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the summed cross-entropy, each example's times its weight."""
        loss_B = self.losses(self.outputs(model, batch, encoded), batch)
        weight_N = self.class_weights_on(loss_B.device)
        if weight_N is None:
            return {"loss": loss_B.sum()}
        return {"loss": (weight_N.index_select(0, batch["index"]) * loss_B).sum()}

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the number of each choice, `[B, C]` in float32; -inf where there is none."""
        # What stands in for a missing choice must not even reach the statistics of a batch norm.
        real_S = real_sequences(batch)
        vectors = encoded.pooled(self.head_pooling(model))
        predicted_S = self.head_outputs(model, vectors.index_select(0, real_S)).squeeze(1)
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
        return {"probabilities": self.calibrated(outputs).softmax(1)}

    def results(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return each example's likeliest choice, and how right that is."""
        hit_B, _ = hits_and_ranks(outputs, batch["label"])
        share_B = self.calibrated(outputs).softmax(1).amax(1)
        return {"label": outputs.argmax(1), "probability": share_B, "right": hit_B}

    def display_pairs(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[str, str]]:
        both = zip(batch["label"].tolist(), outputs.argmax(1).tolist(), strict=True)
        return [(str(expected), str(predicted)) for expected, predicted in both]


def hits_and_ranks(logits_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each right choice is the first, and its rank from 1, `[B]` each.

    Equal choices are counted as if their order were drawn: of m that are the first, each is so with
    probability 1/m, and they share the mean of their ranks.
    """
    own_B1 = logits_BC.gather(1, label_B[:, None])
    better_B = (logits_BC > own_B1).sum(1)
    equal_B = (logits_BC == own_B1).sum(1).clamp(min=1)  # none where it is not a number
    return (better_B == 0) / equal_B, 1 + better_B + (equal_B - 1) / 2
