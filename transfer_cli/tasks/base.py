"""Everything special to a kind of labelled data, in one record.

A task reads, encodes and collates examples, turns the model's outputs into answers, and writes
them. Its loss, head and measures belong to an objective that names the task (`Objective.task`).
Data (`data.labelled.LabelledData`) and `model.json` name the class of a task, as a config does.

A *row* passes through the model; an *example* is labelled by people and gets an answer. A long
example may be several rows, its windows; any other is one row.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from transfer_cli.config.build import TARGET, build
from transfer_cli.data.encoded_task import EncodedRows, Truncate, encode_texts
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.split import Dataset
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError, list_names

Direction = Literal["causal", "bidirectional", "encoder_decoder"]

CLASSIFICATION = "transfer_cli.tasks.classification.ClassificationTask"
"""The task of models that name none and have labels."""

Answer = Mapping[str, Any]
"""A model's answer to an example, as plain numbers and texts."""

Rows = Mapping[int, Mapping[str, Any]]
"""Row number -> an objective's predictions for that row, by name, without the batch dimension."""

WARNING, EMPTY, UNKNOWN = "warning", "empty", "unknown"
"""The key of an answer to a text that is empty, or that has no token the model knows."""

DECIMALS = 6
"""Decimals of a probability that is written."""

MARGIN = 0.02
"""How far above what answers reach that look at no text a measure is still no better."""

CURE = "try another seed, another optimizer.lr or a longer run"
"""What to do where nothing was learnt."""


class Encoded(Dataset, Protocol):
    """Rows of tokens by number. `data.encoded_task.EncodedRows` is one, with one sequence in a row.

    Attributes:
        lengths: Every row's length in tokens.
        example_of: The number of the example that each row belongs to.
        num_cut: How many examples lost tokens.
    """

    examples: Sequence[Any]
    lengths: np.ndarray
    example_of: np.ndarray
    num_cut: int


@dataclass(frozen=True)
class Result:
    """The result of an example in `items.jsonl`.

    Args:
        probability: The model's probability of it; 0 if it gives none.
        score: How right the answer is, from 0 to 1; None: 1 if both are equal, else 0.
    """

    expected: str
    predicted: str
    probability: float = 0.0
    score: float | None = None


@dataclass(frozen=True)
class Task(ABC):
    """A kind of labelled data.

    Args:
        labels: Names of its classes or tags, in the order of their numbers; some tasks have none.
        fitted: What `fit` has chosen at the end of a run, such as thresholds; empty before.

    Other values that a trained model needs (a mean to add) are further fields; the data gives them
    by `node`. All are stored with the model.
    """

    name: ClassVar[str]
    """Its name in objectives."""
    objective: ClassVar[str]
    """The config of the objective to choose for it."""
    head: ClassVar[str]
    """The head that depends on the labels; for a further loss `HEAD_LOSS`."""
    example: ClassVar[type]
    """The dataclass of an example. Its values are plain; sequences may be lists."""
    files: ClassVar[str | None] = None
    """The class of own files with answers (`tasks.sources.LabelledFiles`), as a config names it."""
    fields: ClassVar[tuple[str, ...]]
    """The keys that `predict` writes for an example, beside its texts."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns that `predict` reads beside those of the texts."""
    reads_pairs: ClassVar[bool] = False
    """Whether `predict` reads two texts in any case."""
    expected: ClassVar[str] = "label"
    """The name of the right answer in a report."""
    export_head: ClassVar[str | None] = None
    """The kind of head of published models; None: there is none; "": it answers without one."""
    makes_windows: ClassVar[bool] = False
    """Whether a long example becomes several rows; else there are as many rows as examples."""
    scores_answers: ClassVar[bool] = False
    """Whether `scores` has measures that are no sums over rows."""
    combines: ClassVar[bool] = False
    """Whether answers of several runs make one, by `combine`."""
    can_fail: ClassVar[bool] = False
    """Whether `failure` can tell that a run learnt nothing."""

    labels: tuple[str, ...] = ()
    # Tasks that differ in this alone share their heads.
    fitted: Mapping[str, Any] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def temperature(self) -> float:
        """What scores are divided by, to make probabilities; 1 if none is fitted."""
        return float(self.fitted.get("temperature", 1.0))

    @property
    def abstain_below(self) -> float:
        """The probability below which no answer is given; 0 if none is fitted."""
        return float(self.fitted.get("abstain_below", 0.0))

    @classmethod
    def node(cls, **options: Any) -> dict[str, Any]:
        """Return the config node that names this task, with values found in its data."""
        return {TARGET: f"{cls.__module__}.{cls.__qualname__}", **options}

    def as_node(self) -> dict[str, Any]:
        """Return the config node that this task is built from, with its labels beside it."""
        left_out = ("labels",) if self.fitted else ("labels", "fitted")
        names = [field.name for field in dataclasses.fields(self) if field.name not in left_out]
        return self.node(**{name: getattr(self, name) for name in names})

    @property
    def chat_template(self) -> Any:
        """The `ChatTemplate` by which conversations become texts; None: its examples are none."""
        return None

    def written_by(self, chat: Callable[[], Any]) -> Self:
        """Return the task for a model, given what finds its chat template, where it needs one."""
        return self

    @property
    def laid_out_as(self) -> tuple[bool, int | None] | None:
        """Whether it lays texts out as lines, and the token before them, where as in pretraining.

        None: it has a layout of its own.
        """
        return None

    # --- examples ---------------------------------------------------------------------------

    def text_column(self, names: Sequence[str], name: str) -> str | None:
        """Return which column of `predict`'s input is read; None: those that are found in it.

        Args:
            names: All columns, in order.
            name: The input's name in messages.
        """
        return None

    def read(self, record: Record, text: str, pair: str | None, name: str) -> Any:
        """Return the example in a record of `predict`'s input, without a label: by default a text.

        Args:
            record: A row of a table; a line of plain text has the column `text` alone.
            text: The column of the text.
            pair: The column of the second text.
            name: The input's name in messages.
        """
        first = text_of(record, text, name)
        return self.example(first, pair=None if pair is None else text_of(record, pair, name))

    def texts(self, example: Any) -> tuple[str, ...]:
        """Return the texts of an example, the one to show first: by default one, or a pair."""
        return (example.text,) if example.pair is None else (example.text, example.pair)

    def inputs(self, example: Any) -> tuple[str, ...]:
        """Return, as texts, all of an example that decides its answer: by default its texts."""
        return self.texts(example)

    def equal_by(self, example: Any) -> tuple[str, ...]:
        """Return the texts that make it the same as another: by default all, answers left out."""
        return self.texts(example)

    def labels_of(self, example: Any) -> Sequence[str]:
        """Return what people answered: its labels, for statistics."""
        return ()

    def unlabelled(self, example: Any) -> Any:
        """Return an example without its answer: by default without its `label`."""
        return replace(example, label=None)

    # --- training examples ------------------------------------------------------------------

    def check(self, train: Sequence[Any], where: str) -> None:  # noqa: B027 - some learn anything
        """Raise `DataError` unless something can be learnt from the training examples.

        Args:
            train: All of them, before some are held out.
            where: The name of the data in messages.
        """

    def strata(self, examples: Sequence[Any]) -> Sequence[int]:
        """Return the number of the stratum of each example, which splits are drawn from alike."""
        return [0] * len(examples)

    def group(self, example: Any) -> Hashable:
        """Return what an example has in common with others, to be held out with them, or None."""
        return None

    def learnt_from(self, train: Sequence[Any], seed: int) -> Sequence[Any]:
        """Return the training examples as they are learnt from: by default as they are."""
        return train

    def facts(self, train: Sequence[Any]) -> Mapping[str, Any]:
        """Return values of fields that the training examples say, as JSON."""
        return {}

    # --- rows -------------------------------------------------------------------------------

    @abstractmethod
    def encode(
        self, examples: Sequence[Any], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> Encoded:
        """Return examples as tokens, with targets if they have labels.

        Args:
            length: The longest row in tokens, special tokens included.
        """

    @property
    def truncate(self) -> Truncate:
        """Which of two texts is cut where they are too long together."""
        return "longest_first"

    def kept(self, length: int) -> tuple[int, str]:
        """Return how many tokens of an example `encode` keeps, and the key that says so."""
        return length, "data.length"

    @classmethod
    @abstractmethod
    def sample(cls) -> tuple[Self, Sequence[Any]]:
        """Return a task and a few examples of different lengths, for tests."""

    # --- answers ----------------------------------------------------------------------------

    @abstractmethod
    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the answer to an example from all its rows: JSON that `combine` takes.

        Args:
            rows: `Objective.predictions` for its rows, in order.
        """

    @abstractmethod
    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """Return the result of an example; `rows` as above, from `Objective.example_results`."""

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return measures of complete answers, which are no sums over rows.

        Args:
            rows: The rows of each scored example, by its number; see `result`.
        """
        return {}

    def signatures(self) -> Mapping[str, str]:
        """Return how libraries made measures of `scores`, by name, in words for a paper."""
        return {}

    def fit(self, data: Encoded, rows: Mapping[int, Rows]) -> Mapping[str, Any]:
        """Return what to keep as `fitted`: JSON, chosen on validation by the weights that are kept.

        It is asked once, at the end of a run whose objective says `fits_answers`.

        Args:
            rows: The rows of each, by its number; see `result`.
        """
        return {}

    def check_combines(self, other: "Task", first: str, path: str) -> None:
        """Raise `CheckpointError` unless another run's answers can be combined with those of this.

        They can if it has the same task, and the same labels in any order.

        Args:
            first: The name of this run.
            path: The name of the other run.
        """
        if not self.combines:
            raise CheckpointError(f"run: answers of several runs on {self.name} cannot be combined")
        if other.name != self.name:
            raise CheckpointError(
                f"run: {path} is a run of {other.name}, and {first} one of {self.name}"
            )
        lacks = [label for label in self.labels if label not in other.labels]
        beyond = [label for label in other.labels if label not in self.labels]
        if lacks or beyond:
            parts = [
                f"{list_names((repr(label[:80]) for label in labels), 5)} only in {where}"
                for labels, where in ((lacks, first), (beyond, path))
                if labels
            ]
            raise CheckpointError(
                f"run: the labels differ, {' and '.join(parts)}; give runs with the same labels"
            )

    def combine(self, answers: Sequence[tuple["Task", Answer]]) -> Answer:
        """Return one answer from those of several runs, each with its task."""
        return answers[0][1]

    def learnt(self, answer: Answer) -> Sequence[Sequence[float]]:
        """Return the numbers that another run learns from an answer, for each thing it is about.

        That is one by default, with a probability for each label or choice, or with a value.
        """
        return [answer["probabilities"] if "probabilities" in answer else [answer["value"]]]

    def said(self, answer: Answer) -> tuple[str, float] | None:
        """Return an answer as a text, given or not, and its probability; None: it has none."""
        return None

    @property
    def counted(self) -> Sequence[str]:
        """What is counted in examples and answers: the labels, or what they mark."""
        return self.labels

    def counted_in(self, example: Any) -> Collection[str]:
        """Return those of `counted` that people gave an example."""
        return {*self.labels_of(example)}

    def said_labels(self, said: str) -> Collection[str]:
        """Return those of `counted` that a text of `said`, or of a `Result`, stands for."""
        return ()

    def said_value(self, said: str) -> float | None:
        """Return the number that such a text stands for; None: it is none."""
        return None

    def written(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as `predict` writes it in JSON: a value for each of `fields`."""
        return {name: value for name, value in answer.items() if name != WARNING}

    def line(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as a line of `predict` has it: what is written, and its warning."""
        warning = {WARNING: answer[WARNING]} if WARNING in answer else {}
        return {**self.written(answer), **warning}

    @property
    def cell_names(self) -> tuple[str, ...]:
        """The columns of an answer in a table."""
        return self.fields

    def cells(self, answer: Answer) -> list[Any]:
        """Return a value for each of `cell_names`."""
        values = (self.written(answer)[name] for name in self.fields)
        return [
            json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict)
            else "" if value is None
            else value
            for value in values
        ]  # fmt: skip

    # --- a run ------------------------------------------------------------------------------

    def right_by_words(self, train: Sequence[Any], scored: Sequence[Any]) -> int | None:
        """Return how many of `scored` a linear model on the words of `train` answers rightly.

        It is what a run is compared with at its end; None: there is no such model.
        """
        return None

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why a run learnt nothing, from its scores on training examples, or None."""
        return None


def mean_by_label(
    labels: Sequence[str], parts: Sequence[tuple[Sequence[str], Sequence[float]]]
) -> list[float]:
    """Return the mean of several runs' numbers for each label, in the order of `labels`.

    Args:
        parts: Each run's own order of the same names, and its numbers.
    """
    mean_C = np.zeros(len(labels))
    for theirs, numbers in parts:
        values_C = np.asarray(numbers, dtype=float)
        if theirs != labels:
            values_C = values_C[[theirs.index(label) for label in labels]]
        mean_C += values_C / len(parts)
    return list(mean_C.tolist())


def rarest_labels(examples: Sequence[Any]) -> list[int]:
    """Return the rarest label of each example, to draw shares with each of them; of none -1."""
    count = Counter(chain.from_iterable(example.label or () for example in examples))
    return [
        min(example.label or (), key=lambda number: (count[number], number), default=-1)
        for example in examples
    ]


def baseline_failure(
    measure: str, value: float, than: str, constant: float, cure: str = CURE
) -> str | None:
    """Return why nothing was learnt, where a measure is no better than a constant one, or None.

    Args:
        value: What a run reached on training examples.
        than: How the constant is reached, such as "always answering X".
        constant: What is reached so.
    """
    if value > constant + MARGIN:
        return None
    return (
        f"training {measure} {100 * value:.1f} % is no better than {than} "
        f"({100 * constant:.1f} %); {cure}"
    )


def build_task(node: Mapping[str, Any] | None, labels: tuple[str, ...], key: str) -> Task | None:
    """Return the task that data or a model names; None for text.

    Args:
        node: The config node of its class. Older models, and published ones, have labels alone.
    """
    if node is None and not labels:
        return None
    task: Task = build(node or {TARGET: CLASSIFICATION}, key, Task, labels=labels)
    return task


def rows_by_example(data: Encoded, rows: Rows) -> dict[int, dict[int, Mapping[str, Any]]]:
    """Return rows grouped by the example that they belong to."""
    by_number: dict[int, dict[int, Mapping[str, Any]]] = {}
    for row in sorted(rows):
        by_number.setdefault(int(data.example_of[row]), {})[row] = rows[row]
    return by_number


@dataclass(frozen=True)
class TextsTask(Task):
    """A task whose examples have a `text`, perhaps a `pair`, and the `line` that they stand on.

    Args:
        truncate: Which of two texts is cut where they are too long together.
    """

    truncate: Truncate = field(default="longest_first", kw_only=True)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> Any:
        return replace(super().read(record, text, pair, name), line=record.line)

    def targets(self, examples: Sequence[Any]) -> Mapping[str, Any] | None:
        """Return further keys of a batch, see `EncodedRows`; None: the examples' labels."""
        return None

    def encode(
        self, examples: Sequence[Any], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> EncodedRows:
        """See `Task`; a text that is too long is cut, of two the one that `truncate` says."""
        targets = self.targets(examples)
        return encode_texts(examples, tokenizer, length, direction, targets, self.truncate)
