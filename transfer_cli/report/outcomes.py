"""What runs made of the single items of a split, laid side by side."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transfer_cli.report.contents import Run, SharedError
from transfer_cli.report.untrusted import reason
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.items import Item, read_items
from transfer_cli.safe_files import UnreadableError

MOST_SHARED = 100
"""Errors that runs share, of which a report knows."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sheet:
    """The items of a split: one and the same object for runs that were judged on the same.

    For language models labels are "", and so are texts that are not kept. `targets` is `[N]`.
    """

    labels: tuple[str, ...]
    texts: tuple[str, ...]
    targets: Floats

    @property
    def has_labels(self) -> bool:
        """Whether each item is right or wrong."""
        return bool(self.labels) and all(self.labels)


@dataclass(frozen=True)
class RunOutcomes:
    """What a run made of the items.

    `wrong` is `[N]`: 1 for a wrong prediction, less for a partly right one. `loss` is `[N]`: the
    summed nats of each item's targets.
    """

    sheet: Sheet
    predicted: tuple[str, ...]
    wrong: Floats
    loss: Floats


class OutcomeReader:
    """Reads each run's items once, and keeps items that runs share once."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, str], RunOutcomes | str] = {}
        self._sheets: dict[bytes, Sheet] = {}

    def read(self, run: Run, split: str) -> RunOutcomes | str:
        """Return the outcomes of a run on a split, or why there are none, in a few words."""
        key = (run.path, split)
        if key not in self._read:
            try:
                items = list(read_items(RunDirectory(run.path).items, split))
                none = f"items.jsonl holds nothing of {split}"
                self._read[key] = self._outcomes(items) if items else none
            except FileNotFoundError:
                self._read[key] = "without items.jsonl"
            except (OSError, UnreadableError) as error:
                self._read[key] = f"items.jsonl: {reason(error)}"
        return self._read[key]

    def _outcomes(self, items: Sequence[Item]) -> RunOutcomes:
        asked = [(item.index, item.label, item.text, item.targets) for item in items]
        key = hashlib.blake2b(repr(asked).encode(), digest_size=16).digest()
        if key not in self._sheets:
            _, labels, texts, targets = zip(*asked, strict=True)
            self._sheets[key] = Sheet(labels, texts, np.array(targets, float))
        return RunOutcomes(
            self._sheets[key],
            tuple(item.predicted for item in items),
            np.array([item.wrong for item in items], float),
            np.array([item.loss for item in items], float),
        )


def shared_errors(outcomes: Sequence[RunOutcomes]) -> tuple[SharedError, ...]:
    """Return what most runs get wrong, the worst first; those on the commonest items count."""
    sheets = Counter(each.sheet for each in outcomes if each.sheet.has_labels)
    if not sheets:
        return ()
    sheet = sheets.most_common(1)[0][0]
    alike = [each for each in outcomes if each.sheet is sheet]
    wrong = np.sum([each.wrong > 0 for each in alike], axis=0)
    return tuple(
        SharedError(
            sheet.texts[place],
            sheet.labels[place],
            dict(Counter(each.predicted[place] for each in alike).most_common()),
            int(wrong[place]),
            len(alike),
        )
        for place in np.argsort(-wrong, kind="stable")[:MOST_SHARED]
        if 2 * wrong[place] > len(alike)
    )
