"""What an analysis is given, and what it is.

`transfer analyze` opens a model, calls each analysis with it and writes what it finds beside the
run. An analysis changes nothing: not the run, and not the model that the next one is called with.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transfer_cli.assembly.finished_run import OpenedModel
from transfer_cli.assembly.model import apply_edits, build_model
from transfer_cli.batch import Batch, to_device, with_facts
from transfer_cli.data.cloze import PairsOfSentences
from transfer_cli.data.split import Split
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Loss, Objective
from transfer_cli.progress import progress
from transfer_cli.reports.finding import Finding
from transfer_cli.tasks.base import Task

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """The texts that a model is shown; a split is encoded when it is asked for.

    Args:
        name: What it is called in messages and on pages.
        task: What its examples are; None: text without labels.
    """

    name: str
    names: Sequence[str]
    task: Task | None
    encode: Callable[[str], Split]
    pairs: PairsOfSentences | None = None
    _encoded: dict[str, Split] = field(default_factory=dict)

    def split(self, *names: str) -> Split:
        """Return the first of these splits that there is."""
        if not self.names:
            return self.encode("")
        chosen = next((name for name in names if name in self.names), None)
        if chosen is None:
            raise DataError(
                f"split: {self.name} has no {' and no '.join(names)} split; it has "
                f"{', '.join(self.names)}"
            )
        if chosen not in self._encoded:
            self._encoded[chosen] = self.encode(chosen)
        return self._encoded[chosen]

    def texts(self, split: Split) -> list[str]:
        """Return the first text of each example of a split."""
        if self.task is None:
            raise DataError(
                f"data: {self.name} is running text, and single texts are looked at; name a "
                "file of them by input=FILE, or labelled data"
            )
        return [self.task.texts(example)[0] for example in split.encoded.examples]


@dataclass(frozen=True)
class Subject:
    """A model that is looked at, and what it is shown.

    Args:
        split_names: The splits that were asked for: the first of them that there is.
        precision: Of forward passes, with the device.
        batch: Sequences that pass through the model at once.
        other: A second model that it is compared with, which is shown the same.
    """

    opened: OpenedModel
    material: Material
    split_names: Sequence[str]
    precision: Precision
    batch: int
    seed: int
    other: "Subject | None" = None

    @property
    def model(self) -> TransferModel:
        """The model, on the device, in evaluation mode."""
        return self.opened.model

    @property
    def objective(self) -> Objective:
        """What the model was trained for."""
        if self.opened.objective is None:
            raise ConfigError(
                f"run: {self.opened.path} has no head, and this analysis looks at what a head "
                "says; give a run of finetune or pretrain, or a published model with its head"
            )
        return self.opened.objective

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self.opened.start.tokenizer

    @property
    def depth(self) -> int:
        """The number of its blocks, each counted as often as a pass goes through it."""
        return self.model.backbone.shape.depth

    @cached_property
    def split(self) -> Split:
        """The split that was asked for."""
        return self.material.split(*self.split_names)

    def fresh_model(self, seed: int) -> TransferModel:
        """Return a model of the same shape with fresh weights, in evaluation mode."""
        start = self.opened.start
        objective = self.opened.objective
        losses = [] if objective is None else [Loss("main", objective)]
        shape, vocabulary = start.description.shape, start.description.vocabulary
        model = build_model(shape, vocabulary, losses, seed)
        apply_edits(model, start.description.edits, start.tokenizer)
        return model.to(self.precision.device).eval()

    def read_batches(self, split: Split, rows: Numbers) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yield these rows of a split to pass them through the model, without gradients."""
        with (
            torch.inference_mode(),
            self.precision.context(),
            progress("reading", len(rows), "texts") as more,
        ):
            for numbers, batch in self.batches_of_rows(split, rows):
                yield numbers, batch
                more(len(numbers))

    def rows_for_tokens(self, split: Split, tokens: int) -> Numbers:
        """Return rows of a split, evenly spread, that hold about so many tokens, or all of it."""
        rows_measured = 64  # rows by which it is estimated how long they are
        measured = evenly_spread(len(split.data), rows_measured)
        length = int(split.data.batch(measured)["mask"].sum()) / max(1, len(measured))
        return evenly_spread(len(split.data), math.ceil(tokens / max(1.0, length)))

    def batches_of_rows(self, split: Split, rows: Numbers) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yield rows of a split, from short to long: their numbers, and them on the device."""
        lengths = getattr(split.data, "lengths", None)
        if lengths is not None:
            rows = rows[np.argsort(lengths[rows], kind="stable")]
        for begin in range(0, len(rows), self.batch):
            numbers = rows[begin : begin + self.batch]
            yield numbers, to_device(with_facts(split.data.batch(numbers)), self.precision.device)


def check_task(subject: Subject) -> None:
    """Refuse examples that the model's objective cannot read."""
    objective, material = subject.objective, subject.material
    if objective.task is None:
        return
    what = f"data: {subject.opened.path} was trained for {objective.task}, and"
    if material.task is None or material.task.name != objective.task:
        shown = "text without labels" if material.task is None else material.task.name
        raise ConfigError(f"{what} this is {shown}; name data of its task (data=)")
    if material.task.labels != objective.info.labels:
        raise ConfigError(f"{what} these data have other labels than it knows")


def evenly_spread(count: int, most: int | None) -> Numbers:
    """Return the numbers below `count`, or `most` of them, evenly spread."""
    if most is None or most >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.int64)


MOST_JSON = 600_000
"""Characters of records in the JSON of an analysis, which reports read whole."""


def records_that_fit(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first of these records, as many as the JSON of an analysis has room for."""
    sizes = accumulate(len(json.dumps(record, indent=2)) for record in records)
    return [record for record, size in zip(records, sizes, strict=True) if size <= MOST_JSON]


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the content of a file that has every record, one a line."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def batch_of_tokens(rows: Sequence[Tensor], pad: int) -> Batch:
    """Return rows of tokens as a batch, padded on the right to the longest."""
    lengths_S = torch.tensor([len(row) for row in rows])
    return {
        "tokens": pad_sequence(list(rows), batch_first=True, padding_value=pad),
        "mask": torch.arange(int(lengths_S.max())) < lengths_S[:, None],
        "index": torch.arange(len(rows)),
    }


class Analysis(ABC):
    """Something to find out about a model; its options are arguments of the constructor."""

    needs_other: ClassVar[bool] = False
    """Whether it compares with a second model."""

    @abstractmethod
    def __call__(self, subject: Subject) -> Finding:
        """Return what it finds.

        Raises:
            ConfigError, DataError: The model or what it is shown is of the wrong kind.
        """
