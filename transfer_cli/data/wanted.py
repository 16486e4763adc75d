"""The columns of a table, as they were typed and as they were chosen; `columns` chooses."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

TEXT, LABEL = "text", "label"


@dataclass(frozen=True)
class Chosen:
    """The columns to read.

    Args:
        said: Those that were found under other names than the usual.
        labels: Columns that each say of one label whether a text has it, in place of `label`.
    """

    text: str
    pair: str | None
    label: str
    said: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def read(self) -> set[str]:
        """The names of all."""
        labels = self.labels or (self.label,)
        return {self.text, *labels, *([] if self.pair is None else [self.pair])}

    def asked(self) -> "Wanted":
        """Return them as they could have been typed."""
        label = None if self.labels else self.label
        return Wanted(self.text, self.pair, label, self.labels)


@dataclass(frozen=True)
class Wanted:
    """The columns as they were typed, by name or by number from 1; None: to be found.

    Args:
        pair: Of a second text, which is found where a table calls both as pairs are called.
        labels: Of several labels, a column each.
        numbers: Whether labels are numbers, of which no two need be equal.
        written: Whether labels are texts that people wrote to the others, which may all differ.
        separator: What parts several labels of a cell; None: a cell is one label.
        keys: What stands before the names of keys in messages.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] = ()
    labelled: bool = True
    numbers: bool = False
    written: bool = False
    separator: str | None = None
    keys: str = "data."

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are names."""
        typed = (self.text, self.pair, self.label, *self.labels)
        return tuple(column for column in typed if column is not None and not column.isdigit())

    def or_like(self, other: "Wanted", names: Collection[str]) -> "Wanted":
        """Return the same with the columns of another table where nothing was typed."""
        taken = {
            what: name
            for what in (TEXT, "pair", LABEL)
            if getattr(self, what) is None
            and (name := getattr(other, what)) is not None
            and {name, name.partition(".")[0]} & {*names}
        }
        if self.label is None and not self.labels and {*other.labels} & {*names}:
            return replace(self, **taken, labels=other.labels)
        return replace(self, **taken)


ANY = Wanted()


def typed(
    text: str | int | None, pair: str | int | None, label: str | int | Sequence[str | int] | None
) -> Wanted:
    """Return columns as a config has them."""
    several = isinstance(label, Sequence) and not isinstance(label, str)
    labels = tuple(map(str, label)) if isinstance(label, Sequence) and several else ()
    columns = [None if column is None else str(column) for column in (text, pair, label)]
    return Wanted(columns[0], columns[1], None if several else columns[2], labels)
