"""What runs made of the single items of a split, laid side by side."""

import hashlib
import itertools
import json
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transfer_cli.report.model import Run, SharedError
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.items import MOST_ITEMS
from transfer_cli.safe_files import UnreadableError

MOST_SHARED = 100
"""Errors that runs share, of which a report knows."""

TEST, VALIDATION = "test", "validation"

_MOST_LINE = 2**20
_LARGEST = 2**32


class Row(NamedTuple):
    """What is read of an item."""

    place: int
    label: str
    predicted: str
    text: str
    loss: float
    targets: int
    wrong: float


@dataclass(frozen=True)
class Sheet:
    """The items of a split: equal for runs that were judged on the same.

    Args:
        fingerprint: A hash of numbers, labels, texts and targets.
        labels: What would have been right; "" for language models.
        texts: The texts, as far as they are kept.
    """

    fingerprint: str
    labels: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def has_labels(self) -> bool:
        """Whether each item is right or wrong."""
        return bool(self.labels) and all(self.labels)


@dataclass(frozen=True)
class Outcomes:
    """What a run made of the items.

    Args:
        sheet: The items.
        predicted: What it said of each.
        wrong: `[N]`, 1 where that is not the label; in between where it is partly right.
        loss: `[N]`, summed nats of each item's targets.
        targets: `[N]`.
    """

    sheet: Sheet
    predicted: tuple[str, ...]
    wrong: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    targets: npt.NDArray[np.float64]


class OutcomeReader:
    """Reads each run's items once, and keeps items that runs share once."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, str], Outcomes | str] = {}
        self._sheets: dict[str, Sheet] = {}

    def read(self, run: Run, split: str) -> Outcomes | str:
        """Return the outcomes of a run on a split, or why there are none, in a few words."""
        key = (run.path, split)
        if key not in self._read:
            self._read[key] = self._outcomes(run.path, split)
        return self._read[key]

    def _outcomes(self, path: Path, split: str) -> Outcomes | str:
        try:
            rows = list(_rows(RunDirectory(path).items, split))
        except FileNotFoundError:
            return "without items.jsonl"
        except (OSError, UnreadableError) as error:
            return f"items.jsonl: {getattr(error, 'strerror', None) or error}"
        if not rows:
            return f"items.jsonl holds nothing of {split}"
        sheet = self._sheet(rows)
        predicted = tuple(row.predicted for row in rows)
        return Outcomes(
            sheet,
            predicted,
            np.array([row.wrong for row in rows], float),
            np.array([row.loss for row in rows], float),
            np.array([row.targets for row in rows], float),
        )

    def _sheet(self, rows: Sequence[Row]) -> Sheet:
        told = [[row.place, row.label, row.text, row.targets] for row in rows]
        fingerprint = hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()
        if fingerprint not in self._sheets:
            labels, texts = (row.label for row in rows), (row.text for row in rows)
            self._sheets[fingerprint] = Sheet(fingerprint, tuple(labels), tuple(texts))
        return self._sheets[fingerprint]


def _rows(path: Path, split: str) -> Iterator[Row]:
    """Yield the items of a split; bounded and checked as by `runs.items.read_items`.

    That takes five times as long, since it looks at every value of both splits.
    """
    other = f'{{"split": "{TEST if split == VALIDATION else VALIDATION}"'
    found = 0
    if not stat.S_ISREG(path.stat().st_mode):
        raise UnreadableError("it is no plain file")  # to open a pipe could wait for ever
    with path.open(encoding="utf-8", errors="replace") as file:
        for number in itertools.count(1):
            line = file.readline(_MOST_LINE)
            if not line or found > MOST_ITEMS:
                break
            if line.startswith(other):
                continue
            try:
                row = _row(json.loads(line), split)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise UnreadableError(f"line {number} is not what a run writes") from error
            if row is not None:
                found += 1
                yield row


def _row(found: Any, split: str) -> Row | None:
    """Return an item; None where it is of another split."""
    if found["split"] != split:
        return None
    texts = found["label"], found["predicted"], found["text"]
    index, loss, targets = found["index"], found["loss"], found["targets"]
    if not all(isinstance(each, str) for each in texts):
        raise TypeError
    if type(index) is not int or type(targets) is not int or not 0 <= targets < _LARGEST:
        raise TypeError
    label, predicted, text = texts
    score = found.get("score")
    wrong = float(label != predicted) if score is None else 1 - float(score)
    if not 0 <= wrong <= 1:
        raise ValueError
    return Row(index, label, predicted, text, float(loss), targets, wrong)


def shared_errors(outcomes: Sequence[Outcomes]) -> tuple[SharedError, ...]:
    """Return the items that most of some runs get wrong, those that most get wrong first.

    Only runs that were judged on the same items count: those of the most frequent kind.
    """
    sheets = Counter(each.sheet.fingerprint for each in outcomes if each.sheet.has_labels)
    if not sheets:
        return ()
    most = sheets.most_common(1)[0][0]
    alike = [each for each in outcomes if each.sheet.fingerprint == most]
    wrong = np.sum([each.wrong > 0 for each in alike], axis=0)
    order = np.argsort(-wrong, kind="stable")[:MOST_SHARED]
    sheet = alike[0].sheet
    return tuple(
        SharedError(
            sheet.texts[place],
            sheet.labels[place],
            dict(Counter(each.predicted[place] for each in alike).most_common()),
            int(wrong[place]),
            len(alike),
        )
        for place in order
        if 2 * wrong[place] > len(alike)
    )
