"""What is special to a kind of labelled data, in one record.

A task says how an example is read, encoded and collated, what becomes of the model's outputs, and
how an answer is written and shown. Its loss, head and measures are those of an objective that names
the task (`Objective.task`). Its data (`data.tasks.TaskData`) names the class of the task, as a
config names a class, and so does `model.json`.

A *row* is what passes through the model, an *example* what people label and what is answered. A
long example may be several rows, its windows; of every other example there is one.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from transfer_cli.batch import Batch
from transfer_cli.config.build import TARGET, build
from transfer_cli.data.readers import Record
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError

Direction = Literal["causal", "bidirectional"]

Answer = Mapping[str, Any]
"""What a model says of an example, before it is put into words."""

Rows = Mapping[int, Mapping[str, Any]]
"""Row number -> what an objective said of that row, by name, without the axis of the batch."""

CLASSIFICATION = "transfer_cli.tasks.classification.ClassificationTask"


class Encoded(Protocol):
    """Examples as tokens. `data.encoded_task.EncodedRows` does for a single sequence a row."""

    @property
    def examples(self) -> Sequence[Any]:
        """The examples."""

    @property
    def lengths(self) -> np.ndarray:
        """Every row's length in tokens."""

    @property
    def example_of(self) -> np.ndarray:
        """The example that each row belongs to."""

    @property
    def num_cut(self) -> int:
        """How many examples lost tokens."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, indices: np.ndarray) -> Batch:
        """Return rows, collated."""


@dataclass(frozen=True)
class Result:
    """What became of an example, as `items.jsonl` tells it.

    Args:
        expected: What would have been right.
        predicted: What the model said.
        probability: How sure it was of that, 0 where nothing says so.
        score: How right that is, from 0 to 1; None: 1 where both are equal, else 0.
    """

    expected: str
    predicted: str
    probability: float = 0.0
    score: float | None = None


@dataclass(frozen=True)
class Task(ABC):
    """A kind of labelled data.

    Args:
        labels: Names of its classes or tags, in the order of their numbers; of some tasks none.

    What else must be known again after training (a mean to add, a threshold) is a further field;
    its data gives the values by `node`, and they are stored with the model.
    """

    name: ClassVar[str]
    """What objectives call it."""
    objective: ClassVar[str]
    """The config of the objective to choose for it."""
    head: ClassVar[str]
    """The head that depends on the labels; of a further loss `HEAD_LOSS`."""
    example: ClassVar[type]
    """The dataclass of an example. Its values are plain; sequences may come as lists."""
    fields: ClassVar[tuple[str, ...]]
    """The keys of what `predict` writes for an example, beside its texts."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns that `predict` reads beside those of the texts."""
    expected: ClassVar[str] = "label"
    """What a report calls what would have been right."""
    export_head: ClassVar[str | None] = None
    """The kind of head of published models; None: there is none."""
    makes_windows: ClassVar[bool] = False
    """Whether a long example becomes several rows; else there are as many rows as examples."""
    scores_answers: ClassVar[bool] = False
    """Whether `scores` measures what is no sum over rows."""
    can_fail: ClassVar[bool] = False
    """Whether `failure` can tell that a run learnt nothing."""

    labels: tuple[str, ...] = ()

    @classmethod
    def node(cls, **options: Any) -> dict[str, Any]:
        """Return the config node that names this task, with what its data found out."""
        return {TARGET: f"{cls.__module__}.{cls.__qualname__}", **options}

    def as_node(self) -> dict[str, Any]:
        """Return the config node that this task is built from, with its labels beside it."""
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return self.node(**{name: value for name, value in own.items() if name != "labels"})

    @classmethod
    def shown(cls) -> dict[str, str]:
        """Return what a report must know of it."""
        return {"name": cls.name, "expected": cls.expected}

    # --- examples ---------------------------------------------------------------------------

    @abstractmethod
    def read(self, record: Record, text: str, pair: str | None, name: str) -> Any:
        """Return the example of a record that `predict` was given, without what is to be predicted.

        Args:
            record: A row of a table; a line of plain text has the column `text` alone.
            text: The column of the text.
            pair: The column of the second text.
            name: What messages call the input.

        Raises:
            DataError: It is no example.
        """

    @abstractmethod
    def texts(self, example: Any) -> tuple[str, ...]:
        """Return the texts of an example, the one to show first."""

    def labels_of(self, example: Any) -> Sequence[str]:
        """Return the labels that people gave it, for those who count them."""
        return ()

    @abstractmethod
    def encode(
        self, examples: Sequence[Any], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> Encoded:
        """Return examples as tokens, with their targets where they have any.

        Args:
            examples: The examples.
            tokenizer: Turns texts into tokens.
            length: The longest row in tokens, special tokens included.
            direction: The model's.
        """

    @classmethod
    @abstractmethod
    def sample(cls) -> tuple[Self, Sequence[Any]]:
        """Return a task and a few examples of different lengths, for tests."""

    # --- answers ----------------------------------------------------------------------------

    @abstractmethod
    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the answer to an example from all its rows: JSON that `combine` takes.

        Args:
            data: The examples, encoded.
            example: The number of the example.
            rows: What `Objective.predictions` said of its rows, in order.
        """

    @abstractmethod
    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """Return what became of an example; `rows` as above, of `Objective.example_results`."""

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return measures of whole answers: those that are no sums over rows.

        Args:
            data: The examples, encoded.
            rows: Of each example that was scored, by its number; see `result`.
        """
        return {}

    def check_combines(self, other: "Task", first: str, path: str) -> None:
        """Refuse a run whose answers cannot be combined with those of this one.

        Args:
            other: The task of that run.
            first: What this run is called.
            path: What that run is called.

        Raises:
            CheckpointError: Always, unless a task can combine answers.
        """
        raise CheckpointError(f"run: answers of several runs on {self.name} cannot be combined")

    def combine(self, answers: Sequence[tuple["Task", Answer]]) -> Answer:
        """Return one answer from those of several runs, each with its task; of one, its own."""
        return answers[0][1]

    @abstractmethod
    def written(self, answer: Answer) -> dict[str, Any]:
        """Return the JSON of an answer as `predict` writes it: a value for each of `fields`."""

    @property
    def cell_names(self) -> tuple[str, ...]:
        """The columns of an answer in a table."""
        return self.fields

    def cells(self, answer: Answer) -> list[Any]:
        """Return a value for each of `cell_names`."""
        found = (self.written(answer)[name] for name in self.fields)
        return [
            json.dumps(each, ensure_ascii=False) if isinstance(each, list | dict) else each
            for each in found
        ]

    # --- a run ------------------------------------------------------------------------------

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why a run learnt nothing, by its scores on training examples; None: it did."""
        return None


def task_of(node: Mapping[str, Any] | None, labels: tuple[str, ...], key: str) -> Task | None:
    """Return the task that data or a model names; None for text.

    Args:
        node: The config node of its class. Older models, and published ones, have labels alone.
        labels: Names of its classes.
        key: What to call the node in messages.

    Raises:
        ConfigError: The node names no task.
    """
    if node is None and not labels:
        return None
    found: Task = build(node or {TARGET: CLASSIFICATION}, key, Task, labels=labels)
    return found


def by_example(data: Encoded, rows: Rows) -> dict[int, dict[int, Mapping[str, Any]]]:
    """Return rows apart by the example that they belong to."""
    found: dict[int, dict[int, Mapping[str, Any]]] = {}
    for row in sorted(rows):
        found.setdefault(int(data.example_of[row]), {})[row] = rows[row]
    return found
