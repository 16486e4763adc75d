"""Data sets with a number for each text: own tables, and an embedded sample."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from transfer_cli.data import sample
from transfer_cli.data.columns import Chosen
from transfer_cli.data.labelled import Drawn, LabelledData
from transfer_cli.data.records import Record, plain_number
from transfer_cli.data.tasks import Table, TableRow, TableRows
from transfer_cli.errors import DataError
from transfer_cli.tasks.regression.task import NumberExample, RegressionTask

_MOST = 3e38
"""The largest number that can be learnt; the largest of 32 bits is 3.4e38."""

_SIZES = {"disease": 0.0, "mineral": 1.0, "animal": 2.0, "person": 3.0, "city": 4.0, "river": 5.0}


@dataclass(kw_only=True)
class Numbered(Drawn):
    """A data set with a number for each text."""

    kind: ClassVar[str | None] = "regression"

    def unlabelled(self, example: NumberExample) -> NumberExample:
        """See `Drawn`."""
        return replace(example, value=None)

    def strata(self, examples: Sequence[NumberExample]) -> Sequence[int]:
        """Return the fifth of all numbers that each one is in."""
        values = _values(examples)
        bounds = np.quantile(values, [0.2, 0.4, 0.6, 0.8])
        return [int(each) for each in np.searchsorted(bounds, values, side="right")]

    def check(self, train: Sequence[NumberExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`."""
        values = _values(train)
        if np.ptp(values) == 0:
            raise DataError(
                f"{where}: all examples have the number {values[0]:g}; there is nothing to learn. "
                "Name another label column."
            )


@dataclass(kw_only=True)
class NumberTable(Numbered, Table):
    """Own tables whose column of the label holds a number for each text; see `data.tasks.Table`."""

    numbers: ClassVar[bool] = True
    most_labels: ClassVar[float] = math.inf

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`."""
        return with_scale(super().load(data_dir, seed))

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """See `Table`."""
        row = super().row_of(record, columns, name, labels)
        row = replace(row, label=plain_number(row.label))
        problem = problem_of(row.label)
        if problem is not None:
            raise DataError(
                f"{name}, line {row.line}: {row.label!r:.80} in {columns.label!r} {problem}; "
                "data=table takes names of classes."
            )
        return row

    def of_rows(self, rows: Mapping[str, TableRows], paths: Mapping[str, Path]) -> LabelledData:
        """See `Table`."""
        splits = {
            name: [
                NumberExample(row.text, float(row.label), row.pair, row.line) for row in found.rows
            ]
            for name, found in rows.items()
        }
        first = next(iter(rows))
        return LabelledData(paths[first].stem, (), splits, self.node(), files=paths)

    def node(self) -> dict[str, Any]:
        """See `Table`."""
        return RegressionTask.node(truncate=self.truncate)


@dataclass(kw_only=True)
class SampleNumbers(Numbered):
    """The embedded questions about the made-up encyclopedia, answered by how large a thing is.

    The number is that of the kind of thing that the one name in a question belongs to, which only
    the encyclopedia tells; see `data.sample`.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        kinds, questions = sample.questions(self.world)
        splits = {
            name: [NumberExample(text, _SIZES[kinds[label]]) for text, label in rows]
            for name, rows in questions.items()
        }
        data = LabelledData("sample_numbers", (), splits, RegressionTask.node())
        return with_scale(self._drawn(data, seed))


def with_scale(data: LabelledData) -> LabelledData:
    """Return data with the mean and the deviation of its training examples."""
    values = _values(data.splits["train"])
    scale = {"mean": float(values.mean()), "scale": float(values.std())}
    return replace(data, task={**(data.task or {}), **scale})


def _values(examples: Sequence[NumberExample]) -> npt.NDArray[np.float64]:
    """Return the numbers of examples that have one."""
    return np.array([each.value for each in examples], dtype=np.float64)


def problem_of(text: str) -> str | None:
    """Return why a text is no number that can be learnt, or None."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return "is no number"
    return None if abs(value) <= _MOST else "is more than 32 bits hold, 3e38"
