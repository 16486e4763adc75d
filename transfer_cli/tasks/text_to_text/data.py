"""Data sets of texts that are made from others: own tables, and an embedded sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from transfer_cli.data import sample
from transfer_cli.data.columns import Chosen, Wanted
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.labelled import Drawn, LabelledData
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tasks import Table, TableRow, TableRows
from transfer_cli.errors import DataError, at_least
from transfer_cli.tasks.text_to_text.task import TextToTextExample, TextToTextTask

_TOLD = {
    "animal": "a wild animal with furry paws .",
    "city": "a busy city with a market .",
    "disease": "a severe disease that begins with fever .",
    "mineral": "a shiny mineral that forms crystals .",
    "person": "a famous poet who wrote novels .",
    "river": "a broad river that flows through a valley .",
}


@dataclass(kw_only=True)
class _Paired(Drawn):
    """A data set of texts that are made from others.

    Args:
        prefix: See `TextToTextTask`; so is
        target_length: the most tokens of a target.
    """

    kind: ClassVar[str | None] = "text to text"

    prefix: bool = True
    target_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_length is not None:
            at_least("target_length", self.target_length, 2)

    def texts(self, example: TextToTextExample) -> Sequence[str]:
        """See `Drawn`."""
        return (example.source, example.target or "")

    def unlabelled(self, example: TextToTextExample) -> TextToTextExample:
        """See `Drawn`."""
        return replace(example, target=None)

    def strata(self, examples: Sequence[TextToTextExample]) -> Sequence[int]:
        """See `Drawn`."""
        return [0] * len(examples)

    def check(self, train: Sequence[TextToTextExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`: any texts can be learnt."""

    def node(self) -> dict[str, Any]:
        """Return the config node of the task."""
        return TextToTextTask.node(prefix=self.prefix, target_length=self.target_length)


@dataclass(kw_only=True)
class TextPairsTable(_Paired, Table):
    """Own tables of source and target texts; see `data.tasks.Table`.

    `text` is the column of the source, `label` that of the target.
    """

    truncate: Truncate = field(default="longest_first", init=False)  # there is one text

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(super().columns, written=True)

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """See `Table`."""
        source = text_of(record, columns.text, name)
        target = text_of(record, columns.label, name)
        for column, text in ((columns.text, source), (columns.label, target)):
            if not text.strip():
                raise DataError(f"{name}, line {record.line}: {column!r} is empty.")
        return TableRow(record.line, source, target)

    def of_rows(self, rows: Mapping[str, TableRows], paths: Mapping[str, Path]) -> LabelledData:
        """See `Table`."""
        splits = {
            name: [TextToTextExample(row.text, row.label) for row in found.rows]
            for name, found in rows.items()
        }
        return LabelledData(paths[next(iter(rows))].stem, (), splits, self.node(), files=paths)


@dataclass(kw_only=True)
class SampleTextPairs(_Paired):
    """The embedded questions about the made-up encyclopedia, answered by a few words.

    They say what kind of thing the one name in a question is, which only the encyclopedia tells;
    see `data.sample`.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        kinds, questions = sample.questions(self.world)
        splits = {
            name: [TextToTextExample(text, _TOLD[kinds[label]]) for text, label in rows]
            for name, rows in questions.items()
        }
        return self._drawn(LabelledData("sample_text_pairs", (), splits, self.node()), seed)
