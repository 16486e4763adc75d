"""TREC question classification (Li and Roth 2002)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transfer_cli.data import catalog, readers
from transfer_cli.data.labelled import Example, LabelledData
from transfer_cli.errors import DataError, check_share, did_you_mean
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.sources import LabelledSource

_FINE_NAMES = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": (
        "animal body color cremat currency dismed event food instru lang letter other plant "
        "product religion sport substance symbol techmeth termeq veh word"
    ),
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}

COARSE_LABELS = tuple(_FINE_NAMES)

_LABEL_WORDS = {
    "ABBR": "expression", "DESC": "description", "ENTY": "thing", "HUM": "person",
    "LOC": "place", "NUM": "number",
}  # fmt: skip

FINE_LABELS = tuple(
    f"{coarse}:{fine}" for coarse, names in _FINE_NAMES.items() for fine in names.split()
)
"""The 50 labels of TREC; the coarse label is part of each, since fine names repeat."""


@dataclass(kw_only=True)
class Trec(LabelledSource):
    """TREC question classification (Li and Roth 2002).

    Args:
        fine: Use the 50 fine labels instead of the 6 coarse ones.
        validation: The share of the training questions held out, in (0, 1).
    """

    fine: bool = False
    validation: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("validation", self.validation)

    @property
    def kind(self) -> type[Task]:
        return ClassificationTask

    @property
    def share(self) -> float:
        return self.validation

    def given_splits(self, data_dir: Path) -> LabelledData:
        labels = FINE_LABELS if self.fine else COARSE_LABELS
        paths = {split: catalog.find_trec(split, data_dir) for split in catalog.TREC}
        splits = {
            split: [
                Example(text, labels.index(label if self.fine else label.split(":")[0]))
                for text, label in _read(path)
            ]
            for split, path in paths.items()
        }
        name = "trec50" if self.fine else "trec6"
        words = {} if self.fine else _LABEL_WORDS
        node = ClassificationTask.node()
        files = {split: [path] for split, path in paths.items()}
        return LabelledData(name, labels, splits, node, files=files, words=words)


def _read(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each question with its fine label."""
    for number, line in readers.numbered_lines(path, encoding="latin-1"):
        label, space, text = line.partition(" ")
        if not space or label not in FINE_LABELS:
            raise DataError(
                f"{path}, line {number}: begins with {label[:40]!r}, expected a label such as "
                f"NUM:date and a space.{did_you_mean(label, FINE_LABELS)}"
            )
        yield text.strip(" "), label
