"""Data sets with choices: own files, those of four public sets, and an embedded sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from transfer_cli.data import sample
from transfer_cli.data.columns import Wanted
from transfer_cli.data.labelled import INPUT, Drawn, LabelledData, LabelledFiles
from transfer_cli.errors import one_of
from transfer_cli.tasks.choice.readers import FORMATS, read_examples
from transfer_cli.tasks.choice.task import ChoiceExample, ChoiceTask


@dataclass(kw_only=True)
class _Judged(Drawn):
    """A data set with choices, drawn from as one stratum."""

    kind: ClassVar[str | None] = "choice"

    def texts(self, example: ChoiceExample) -> Sequence[str]:
        """See `Drawn`."""
        return ChoiceTask().texts(example)

    def strata(self, examples: Sequence[ChoiceExample]) -> Sequence[int]:
        """See `Drawn`."""
        return [0] * len(examples)

    def check(self, train: Sequence[ChoiceExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`: the readers have checked each example."""


@dataclass(kw_only=True)
class Choices(_Judged, LabelledFiles):
    """Own questions with choices, or those of a public data set; see `readers`.

    Each file may be a folder of RACE.

    Args:
        format: What is in the files; auto: told by their columns.
    """

    format: Literal["auto", "jsonl", "swag", "race", "copa", "storycloze"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, FORMATS, ValueError)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        splits = {name: read_examples(path, self.format) for name, path in self.paths.items()}
        name = self.paths["train"].stem
        data = LabelledData(name, (), splits, ChoiceTask.node(), files=self.paths)
        return self._drawn(data, seed, self.validation_share)

    def whole(self, own: Wanted) -> LabelledData:
        """See `LabelledFiles`; columns are those of the formats."""
        path = self.paths["train"]
        splits = {INPUT: read_examples(path, self.format)}
        return LabelledData(path.stem, (), splits, ChoiceTask.node(), files={"train": path})


@dataclass(kw_only=True)
class SampleChoices(_Judged):
    """The embedded choices about the made-up encyclopedia.

    Which of the sentences is about the one name in the context only the encyclopedia tells; see
    `data.sample`.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        splits = {
            name: [ChoiceExample(context, choices, label=right) for context, choices, right in rows]
            for name, rows in sample.choices(self.world).items()
        }
        data = LabelledData("sample_choices", (), splits, ChoiceTask.node())
        return self._drawn(data, seed)
