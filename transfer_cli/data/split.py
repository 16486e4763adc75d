"""A split: a data set to score, its order, and the size of its text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from transfer_cli.errors import DataError

if TYPE_CHECKING:
    from transfer_cli.batch import Batch

LineRule = Literal["keep", "end", "join"]
"""What becomes of a line break: it is kept, it is the token that ends a line, it is a space.

With `end` each line ends with the separator; else each document does, and lines do not.
"""


@dataclass(frozen=True)
class TextStats:
    """The words and UTF-8 bytes of the text whose tokens are scored, 0 if undefined."""

    words: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class TextContext:
    """What a causal language model sees of running text before the tokens that are scored.

    Args:
        by: blocks: each is read for itself; windows: each sees the tokens before it again; memory:
            the states of the tokens before it, which were computed once.
        tokens: Before each scored token, at least, where the text has them.
        stride: Tokens that are scored at once.
    """

    by: Literal["blocks", "windows", "memory"]
    tokens: int
    stride: int

    def __str__(self) -> str:
        if self.by == "blocks":
            return f"in blocks of {self.stride:,}, without context"
        means = "a memory of" if self.by == "memory" else "windows with"
        return f"{self.stride:,} tokens at once, by {means} {self.tokens:,} before them"


@dataclass(frozen=True)
class Whole:
    """What a split is a part of.

    Args:
        size: Its examples; None: they are not counted.
        left_out: What became of those that the split lacks, such as "12 are held out for test".
    """

    source: str
    size: int | None
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class WeightedSource:
    """A part of a text whose examples are drawn more or less often than those of others.

    Args:
        name: What it is called in messages.
        size: How many files, tokens or examples it has; those of the next one follow.
        weight: In proportion to those of the others.
    """

    name: str
    size: int
    weight: float


class Dataset(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def batch(self, indices: np.ndarray) -> "Batch":
        """Return the examples with these numbers, padded to the longest."""


def _no_column(name: str) -> Sequence[str]:
    raise DataError(f"there is no column {name!r}: these are no rows of a table")


@dataclass(frozen=True)
class Split:
    """A data set to score.

    Args:
        name: train, validation or test.
        text: Words and bytes of the text; none for labelled data.
        order: The order of evaluation, for example by length; None: by number.
        example_of: The number of the example that each row is a window of; None: rows are examples.
        scorer: Returns measures that are no sums over rows, from each row's predictions by number.
        unit: What people call its examples.
        part_of: What it is a part of; None: it is complete.
        num_cut: Number of examples that lost tokens.
        shown: Returns the text of an example by its number, for errors.
        column: Returns what stands in a column of the table that its examples are rows of.
        context: Of running text, what is seen before the scored tokens; None: its examples are
            others, or it is read from both sides.
        without_states: The same examples, where `data` brings hidden states along.
        answered: How many examples are answered where answers take long; None: all.
        seen: The numbers of those that stand in training, too.
    """

    name: str
    data: Dataset
    text: TextStats = TextStats()
    order: np.ndarray | None = None
    example_of: np.ndarray | None = None
    scorer: Callable[[Mapping[int, Mapping[str, Any]]], dict[str, float]] | None = None
    unit: str = "blocks"
    part_of: Whole | None = None
    num_cut: int = 0
    shown: Callable[[int], str] | None = None
    column: Callable[[str], Sequence[str]] = _no_column
    context: TextContext | None = None
    without_states: Dataset | None = None
    answered: int | None = None
    seen: Sequence[int] = ()

    @property
    def encoded(self) -> Any:
        """Its labelled examples as tokens (`tasks.base.Encoded`); `data` may be their states."""
        return self.data if self.without_states is None else self.without_states

    @property
    def rows(self) -> np.ndarray:
        """The numbers of its rows, in the order of evaluation."""
        return np.arange(len(self.data)) if self.order is None else self.order

    def counts(self) -> dict[str, Any]:
        """Return how many examples are scored, of how many, and why not all of them: JSON."""
        rows = self.rows
        scored = len(rows if self.example_of is None else np.unique(self.example_of[rows]))
        counts: dict[str, Any] = {"scored": scored, "unit": self.unit}
        if self.part_of is None:
            counts["of"] = scored
        else:
            counts |= {"of": self.part_of.size, "source": self.part_of.source}
            counts["left_out"] = list(self.part_of.left_out)
        if self.text.words:
            counts |= {"words": self.text.words, "bytes": self.text.size_bytes}
        counts |= {} if self.context is None else {"context": asdict(self.context)}
        if self.answered is not None and self.answered < scored:
            counts["answered"] = self.answered
        return counts | ({"cut": self.num_cut} if self.num_cut else {})

    def answered_part(self) -> "Split":
        """Return the rows that are answered, evenly spread in the order; itself where all are."""
        rows = self.rows
        if self.answered is None or self.answered >= len(rows):
            return self
        places = np.linspace(0, len(rows) - 1, self.answered).astype(np.int64)
        return replace(self, order=rows[places])

    def extent(self, verb: str = "scored") -> str:
        """Return `counts` in words."""
        counts = self.counts()
        of = "" if counts["of"] is None else f" of {counts['of']:,}"
        text = f"{verb} {counts['scored']:,}{of} {self.unit}"
        if self.part_of is not None:
            why = ", ".join(self.part_of.left_out)
            text += f" of {self.part_of.source}" + (f" ({why})" if why else "")
        if self.text.words:
            text += f": {counts['words']:,} words, {counts['bytes']:,} bytes"
        text += "" if self.context is None else f"; {self.context}"
        text += f"; {counts['answered']:,} are answered" if "answered" in counts else ""
        return text + (f"; {self.num_cut:,} were cut" if self.num_cut else "")


def subsample(split: Split, count: int) -> Split:
    """Return a split that scores `count` examples, evenly spread, or all if there are fewer.

    Words and bytes are known for complete texts only, so measures by word or byte are left out.
    """
    of = split.example_of
    total = len(split.data) if of is None else len(np.unique(of))
    if count >= total:
        return split
    spread = np.linspace(0, total - 1, count).astype(np.int64)
    rows = spread if of is None else np.flatnonzero(np.isin(of, spread))
    before = split.part_of or Whole(split.name, total, ())
    left_out = (*before.left_out, f"{total - count:,} are not scored")
    context = split.context
    if context is not None and context.by == "memory":  # what is before a block may be left out
        context = TextContext("blocks", 0, context.stride)
    part_of = replace(before, left_out=left_out)
    return replace(split, context=context, text=TextStats(), order=rows, part_of=part_of, num_cut=0)
