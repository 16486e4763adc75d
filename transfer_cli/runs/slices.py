"""Slices: named parts of what runs are scored on, whose measures stand beside those of all."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transfer_cli.errors import DataError, one_of, raised_as
from transfer_cli.runs.items import Item, read_items
from transfer_cli.safe_files import UnreadableError

WRONG = "wrong"


@dataclass(frozen=True)
class Slice:
    """The examples that fulfil all that is said.

    Args:
        length: The fewest and the most words of an example's texts; None for the most: any number.
            Marks that stand by themselves ("?") are no words.
        regex: What a text holds, a regular expression of Python.
        word: The first word of the first text, in small letters.
        column: With `value`: a column of the table that examples are rows of.
        file: A run's `items.jsonl`: examples by what that run made of them.
        where: With `file`: wrong, the examples that it had wrong.

    Raises:
        ValueError: Nothing is said, or it makes no sense.
    """

    length: tuple[int, int | None] | None = None
    regex: str | None = None
    word: str | None = None
    column: str | None = None
    value: str | int | float | bool | None = None
    file: str | None = None
    where: str = WRONG

    def __post_init__(self) -> None:
        if (self.length, self.regex, self.word, self.column, self.file) == (None,) * 5:
            raise ValueError(
                "give length=[LEAST,MOST], regex=, word=, column= and value=, or file="
            )
        if (self.column is None) != (self.value is None):
            raise ValueError("column and value go together: column=source value=web")
        one_of("where", self.where, (WRONG,), ValueError)
        if self.length is not None:
            least, most = self.length
            if least < 0 or (most is not None and most < least):
                raise ValueError(f"length is {list(self.length)}, expected [LEAST, MOST]")
        with raised_as(ValueError, f"regex: {self.regex!r} is no regular expression: ", re.error):
            re.compile(self.regex or "")

    def mask(
        self, split: str, texts: Sequence[Sequence[str]], column: Callable[[str], Sequence[str]]
    ) -> npt.NDArray[np.bool_]:
        """Return which examples of a split are in it, given the texts of each.

        Args:
            column: Returns what stands in a column of the table that the examples are rows of.

        Raises:
            DataError: Its file cannot be read or is of other examples, or there is no such column.
        """
        member_N = np.ones(len(texts), np.bool_)
        if self.length is not None:
            least, most = self.length
            words = np.array([sum(map(_num_words, example)) for example in texts], int)
            member_N &= (words >= least) & (words <= (most if most is not None else words))
        if self.regex is not None:
            pattern = re.compile(self.regex)
            member_N &= np.array([any(map(pattern.search, example)) for example in texts], np.bool_)
        if self.word is not None:
            firsts = (example[0].lower().split()[:1] for example in texts)
            member_N &= np.array([first == [self.word] for first in firsts], np.bool_)
        if self.column is not None:
            member_N &= np.array([*map(self._has_value, column(self.column))], np.bool_)
        if self.file is not None:
            member_N &= self._wrong(Path(self.file).expanduser(), split, len(texts))
        return member_N

    def _has_value(self, cell: str) -> bool:
        """Return whether a cell holds the value, which YAML may have made a number, or true."""
        if isinstance(self.value, bool):
            return cell.lower() == str(self.value).lower()
        if isinstance(self.value, (int, float)):
            with suppress(ValueError):
                return float(cell) == self.value
        return cell == str(self.value)

    def _wrong(self, path: Path, split: str, count: int) -> npt.NDArray[np.bool_]:
        try:
            items = list(read_items(path, split))
        except (OSError, UnreadableError) as error:
            why = getattr(error, "strerror", None) or error
            raise DataError(f"{path} cannot be read: {why}") from error
        if len(items) != count or any(item.index >= count for item in items):
            raise DataError(
                f"{path} is of {len(items):,} examples of {split}, and here are {count:,}; have "
                "it written by a run on the same data: evaluate run=RUN split=all each=FILE"
            )
        wrong_N = np.zeros(count, np.bool_)
        wrong_N[[item.index for item in items if item.wrong > 0]] = True
        return wrong_N


def _num_words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


def slice_masks(
    slices: Mapping[str, Slice],
    split: str,
    texts: Sequence[Sequence[str]],
    column: Callable[[str], Sequence[str]],
    key: str,
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which examples are in each slice, by name; for the arguments see `Slice.mask`."""
    members = {}
    for name, part in slices.items():
        with raised_as(DataError, f"{key}.{name}: ", DataError):
            members[name] = part.mask(split, texts, column)
    return members


def scores_by_slice(
    members: Mapping[str, npt.NDArray[np.bool_]], items: Sequence[Item]
) -> dict[str, float]:
    """Return how many examples of each slice there are, and the share that is right."""
    measures: dict[str, float] = {}
    for name, member_N in members.items():
        right = [1 - item.wrong for item in items if member_N[item.index]]
        measures[f"count/slice/{name}"] = len(right)
        if right:
            measures[f"accuracy/slice/{name}"] = sum(right) / len(right)
    return measures
