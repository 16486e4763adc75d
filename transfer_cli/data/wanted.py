"""The columns of a table, as they were typed and as they were chosen; `columns` chooses."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transfer_cli.data.records import Record, text_of, value_of

TEXT, PAIR, LABEL = "text", "pair", "label"


@dataclass(frozen=True)
class Chosen:
    """The columns to read.

    Args:
        label: "" where rows have none.
        notes: Those that were found under other names than the usual.
        labels: Columns that each say of one label whether a text has it, in place of `label`.
        texts: Columns whose texts are joined to the text, which is then called by all of them.
        join: What stands between these.
    """

    text: str
    pair: str | None
    label: str
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    join: str = " "

    @property
    def names(self) -> set[str]:
        """The names of all."""
        labels = self.labels or (self.label,)
        texts = self.texts or (self.text,)
        return {*texts, *filter(None, labels), *([] if self.pair is None else [self.pair])}

    def as_wanted(self) -> "Wanted":
        """Return them as they could have been typed."""
        label = None if self.labels else self.label or None
        text = None if self.texts else self.text
        return Wanted(text, self.pair, label, self.labels, self.texts, self.join)

    def join_texts(self, record: Record, name: str) -> Record:
        """Return a record with the texts of several columns as one, but for empty ones."""
        if not self.texts:
            return record
        there = [column for column in self.texts if value_of(record, column, name) is not None]
        parts = (text_of(record, column, name) for column in there)
        text = self.join.join(part for part in parts if part.strip())
        return Record(record.line, {**record.fields, self.text: text})


@dataclass(frozen=True)
class Wanted:
    """The columns as they were typed, by name or by number from 1; None: to be found.

    Args:
        pair: Of a second text, which is found where a table calls both as pairs are called.
        labels: Of several labels, a column each.
        texts: Of the parts of a text, in place of `text`.
        join: What stands between parts.
        numbers: Whether labels are numbers; no two need be equal.
        written: Whether labels are texts that people wrote to the others, which may all differ.
        turns: Whether a row is a conversation: its turns in `text`, or a question in `text` and its
            answer in `label`.
        paired: Whether there are two texts, and a label only where a column is called so.
        separator: What parts several labels of a cell; None: a cell is one label.
        keys: What stands before the names of keys in messages.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    join: str = " "
    labelled: bool = True
    numbers: bool = False
    written: bool = False
    turns: bool = False
    paired: bool = False
    separator: str | None = None
    keys: str = "data."

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are names."""
        columns = (self.text, self.pair, self.label, *self.labels, *self.texts)
        return tuple(column for column in columns if column is not None and not column.isdecimal())

    def filled_from(self, other: "Wanted", names: Collection[str]) -> "Wanted":
        """Return the same with the columns of another table where nothing was typed."""
        changes: dict[str, Any] = {
            what: name
            for what in (TEXT, PAIR, LABEL)
            if getattr(self, what) is None
            and (name := getattr(other, what)) is not None
            and {name, name.partition(".")[0]} & {*names}
        }
        if self.label is None and not self.labels and {*other.labels} & {*names}:
            changes["labels"] = other.labels
        if self.text is None and not self.texts and {*other.texts} & {*names}:
            changes |= {"texts": other.texts, "join": other.join}
        return replace(self, **changes)


ANY = Wanted()


JOINS = {"space": " ", "line": "\n", "blank_line": "\n\n"}
"""What can stand between the parts of a text, by name; any other text stands for itself."""

Typed = str | int | Sequence[str | int] | None
"""A column as a config has it, or several."""


def parse_columns(text: Typed, pair: str | int | None, label: Typed, join: str = "space") -> Wanted:
    """Return columns as a config has them."""
    one_text, texts = _one_or_several(text)
    one_label, labels = _one_or_several(label)
    second = None if pair is None else str(pair)
    return Wanted(one_text, second, one_label, labels, texts, JOINS.get(join, join))


def _one_or_several(columns: Typed) -> tuple[str | None, tuple[str, ...]]:
    if columns is None or isinstance(columns, str | int):
        return None if columns is None else str(columns), ()
    return None, tuple(map(str, columns))
