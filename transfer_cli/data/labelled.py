"""Labelled data: examples with what people said of them.

`tasks.sources` has the sources of most of them.
"""

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transfer_cli.data.split import Whole
from transfer_cli.errors import ConfigError, DataError, at_least, list_names

log = logging.getLogger(__name__)

INPUT = "input"
"""The split that all rows of a file are."""

_SUBMITTED_DECIMALS = 3


@dataclass(frozen=True, slots=True)  # there may be millions
class Example:
    """A text, or two, and the number of its label.

    `line` is that of its file, if it has one; `file` is that file where a split has several.
    """

    text: str
    label: int | None = None
    pair: str | None = None
    line: int | None = field(default=None, compare=False)
    file: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class LabelledData:
    """A task's examples.

    Args:
        name: The name of the data set.
        labels: The labels' names, in the order of their numbers.
        splits: `train`, `validation` and perhaps `test`, with examples of the task's own class;
            `Example` for classification.
        task: The config node of its task's class (`tasks.base.Task.node`), with values found in the
            data; None: classification.
        files: Where splits come from; one that is not named is drawn from the training examples.
        part_of: What splits are parts of, by name; the others are complete.
        rest: The training examples that few labels leave out, without their labels.
        cells: Returns what stands in a column of a table, by line, given its file and the column's
            name; None: examples are no rows of tables.
        words: Words for labels that are none themselves, for objectives that ask a language model.
        seen: The numbers of the examples of a split, given as such, that stand in training, too.
        called: Returns what a label is called among others, itself where nothing says otherwise;
            None: it is left out.
    """

    name: str
    labels: tuple[str, ...]
    splits: Mapping[str, Sequence[Any]]
    task: Mapping[str, Any] | None = None
    part_of: Mapping[str, Whole] = field(default_factory=dict)
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    rest: Sequence[Any] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cells: Callable[[Path, str], Mapping[int, str]] | None = field(default=None, compare=False)
    called: Callable[[str, Sequence[str]], str | None] | None = field(default=None, compare=False)

    def column(self, split: str, name: str) -> list[str]:
        """Return what stands in a column of the rows of a split."""
        files = self._files(split)
        if self.cells is None or not files:
            raise DataError(
                f"{self.name}: its examples are no rows of a table, so they have no column {name!r}"
            )
        cells = {str(path): self.cells(path, name) for path in files}
        only = str(files[0])
        return [cells[example.file or only][example.line] for example in self.splits[split]]

    def source(self, split: str) -> str:
        """Return what a split comes from, for messages."""
        return list_names(self._files(split), 1) or self.name

    def _files(self, split: str) -> Sequence[Path]:
        return self.files.get(split) or self.files.get("train") or ()

    def with_label_numbers(self, labels: tuple[str, ...]) -> "LabelledData":
        """Return the same data with the numbers that `labels` have."""
        if self.labels == labels:
            return self
        called = self.called or (lambda label, _: label)
        names = {label: called(label, labels) for label in self.labels}
        new = [label for label, name in names.items() if name not in (None, *labels)]
        if new:
            place = self._place_of(self.labels.index(new[0]))
            raise DataError(
                f"{place}: a new label, {list_names(map(repr, new))}. This run knows "
                f"{list_names(labels, 10)}, and keeps its labels: leave it out, or train a new run."
            )
        numbers = [None if name is None else labels.index(name) for name in names.values()]
        splits = {
            split: tuple(_renumbered(examples, numbers)) for split, examples in self.splits.items()
        }
        if not all(splits.values()):
            raise DataError(f"{self.source('train')}: this run left all of its labels out")
        if gone := [label for label, name in names.items() if name is None]:
            log.warning(
                "%s: examples of labels that this run left out are left out: %s",
                self.source("train"), list_names(map(repr, gone), 10),
            )  # fmt: skip
        return replace(self, labels=labels, splits=splits)

    def _place_of(self, number: int) -> str:
        """Return the file, and the line if its task says that, of the first example of a label."""
        examples = itertools.chain.from_iterable(self.splits.values())
        first = next(
            (example for example in examples if getattr(example, "label", None) == number), None
        )
        line = getattr(first, "line", None)
        file = getattr(first, "file", None) or self.source("train")
        return file if line is None else f"{file}, line {line}"


@dataclass(frozen=True)
class Rest:
    """What `data.labelled` leaves out of the main data, as the data of a further stream."""


def rest_data(main: LabelledData, key: str) -> LabelledData:
    """Return what `data.labelled` leaves out, without labels, as training examples."""
    if not main.rest:
        raise ConfigError(
            f"{key}.data: all examples of the main data keep their labels; say how many do by "
            "data.labelled=N"
        )
    return replace(main, splits={"train": main.rest}, part_of={}, rest=())


@dataclass(frozen=True)
class Submission:
    """How a benchmark wants the answers to a test file of a data set.

    Args:
        files: A word in the test file's name -> the name of the file of answers; the first that
            fits counts, and "" fits all.
        bounds: The least and the greatest number that an answer may be; None: answers are labels.
    """

    files: Mapping[str, str]
    texts: tuple[str, ...]
    bounds: tuple[float, float] | None = None

    def answers_file_name(self, test: str) -> str:
        """Return the name of the file of answers."""
        name = next((file for word, file in self.files.items() if word in Path(test).stem), None)
        if name is None:
            raise ConfigError(
                f"input: {test!r} is called neither {list_names(map(repr, self.files))}, so it "
                "does not tell what its answers are called; name the file in output=, with .tsv"
            )
        return name

    def format_answer(self, answer: str | float) -> str:
        """Return an answer as it is written: a label, or a number within the bounds."""
        if self.bounds is None:
            return str(answer)
        least, greatest = self.bounds
        return f"{min(greatest, max(least, float(answer))):.{_SUBMITTED_DECIMALS}f}"


@dataclass(kw_only=True)
class TaskData(ABC):
    """A labelled data set.

    Args:
        length: The longest input in tokens; None: as many as the model has positions.
        labelled: Number of training examples to use, a smaller subset being part of a larger one;
            None: all.
    """

    length: int | None = None
    labelled: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            at_least("length", self.length, 2)
        if self.labelled is not None:
            at_least("labelled", self.labelled, 1)

    @property
    def kind(self) -> Any:
        """The class of the task of its examples, where that is known before they are read."""
        return None

    def submission(self) -> Submission | None:
        """Return how answers to its test files are handed in; None: it is of no benchmark."""
        return None

    @abstractmethod
    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """Find the examples, or fetch them, and draw the splits that are not given.

        Args:
            seed: The run's seed, which the drawn splits depend on.

        Raises:
            DataError: A file is missing or broken, or nothing can be learnt from the labels.
        """


def _renumbered(examples: Sequence[Any], numbers: Sequence[int | None]) -> Iterator[Any]:
    """Yield examples with the new numbers of their labels, without those that have none."""
    joins = len({*numbers}) < len(numbers)
    for example in examples:
        label = getattr(example, "label", None)
        if label is None:
            raise DataError("data: its labels are not those of the run, in another order or number")
        several = isinstance(label, tuple)
        old = label if several else (label,)
        new = tuple(numbers[number] for number in old if numbers[number] is not None)
        if joins:  # else they may be one for each word, and are equal by right
            new = tuple(dict.fromkeys(new))
        if several or new:
            yield replace(example, label=new if several else new[0])
