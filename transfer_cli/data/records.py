"""A row of a table, and what stands in its columns."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transfer_cli.errors import DataError, did_you_mean, list_names

MAX_LABEL_CHARACTERS = 1000
"""A longer label is a text in the wrong column. Results and messages repeat labels."""

MAX_LABELS = 10_000
"""Of own files. More are rather texts, or numbers: a column that was not meant."""

FEW_ROWS = 20
"""In fewer rows, labels that occur once are no sign of anything."""

MAX_COLUMNS = 10_000
"""Wider tables are refused: no column can be found in one, and each row is a mapping of all."""

_MOST_LISTED = 20
_MISSING = object()


@dataclass(frozen=True)
class Record:
    """One row of a table: its first line, from 1, and values, which are texts but in JSON lines."""

    line: int
    fields: Mapping[str, object]


def text_of(record: Record, column: str, name: str) -> str:
    """Return the text in a column."""
    value = value_of(record, column, name)
    where = f"{name}, line {record.line}: {column!r}"
    if not isinstance(value, str):
        within = nested_names({column: value})
        names = list_names(within, _MOST_LISTED)
        cure = "" if within == [column] else f" Within it there are {names}."
        raise DataError(f"{where} is {json_kind(value)}, expected text.{cure}")
    if "\0" in value:
        raise DataError(f"{where} holds a NUL character. Is this text?")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} holds half of a surrogate pair, or bytes that are not UTF-8."
        ) from error
    return value


def label_of(record: Record, column: str, name: str) -> str:
    """Return the label in a column; JSON numbers and truth values as JSON writes them."""
    value = value_of(record, column, name)
    where = f"{name}, line {record.line}: the label in {column!r}"
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{where} is {value}. Leave rows without a label out.")
    if isinstance(value, list) and [*map(type, value)] != [str]:
        is_names = all(isinstance(part, str) for part in value)
        data = "labels objective=multilabel" if is_names else "conll objective=tagging"
        what = f"{len(value)} labels" if is_names else "a list of entities"
        raise DataError(f"{where} is {what}, which data={data} reads.")
    if isinstance(value, list):  # as annotation tools write one choice
        record = Record(record.line, {column: value[0]})
    number = isinstance(value, bool | int | float)
    label = json.dumps(value) if number else text_of(record, column, name).strip()
    if not label:
        raise DataError(f"{where} is empty.", "empty label")
    if len(label) > MAX_LABEL_CHARACTERS:
        raise DataError(
            f"{where} has {len(label):,} characters, the most is {MAX_LABEL_CHARACTERS:,}. "
            "Is it the text?"
        )
    return label


def plain_number(text: str) -> str:
    """Return a number with a point, given one with a decimal comma or marks between thousands.

    `1,234` may be either, and is returned as it is.
    """
    if _COMMA_NUMBER.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return text.replace(",", "") if _POINT_NUMBER.fullmatch(text) else text


_COMMA_NUMBER = re.compile(
    r"[-+]?([0-9]+,([0-9]{1,2}|[0-9]{4,})|0?,[0-9]+|[0-9]{1,3}(\.[0-9]{3})+,[0-9]+)"
)
_POINT_NUMBER = re.compile(r"[-+]?[0-9]{1,3}((,[0-9]{3})+\.[0-9]+|(,[0-9]{3}){2,})")
NUMBER_MARKS = {",": _COMMA_NUMBER, ".": re.compile(r"[-+]?[1-9][0-9]{0,2}\.[0-9]{3}")}
"""Of numbers with a decimal comma, and of those that are thousands if others have one."""


def value_of(record: Record, column: str, name: str) -> object:
    """Return what is in a column; `a.b` is `b` in the object that is `a`."""
    if column in record.fields:
        return record.fields[column]
    value: object = record.fields
    for part in column.split("."):
        value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    if value is not _MISSING:
        return value
    columns = nested_names(record.fields)
    shown = list_names((repr(known[:80]) for known in columns), _MOST_LISTED)
    raise DataError(
        f"{name}, line {record.line}: no column {column!r}; there are "
        f"{shown or 'none'}.{did_you_mean(column, columns)}"
    )


def nested_names(fields: Mapping[str, object], depth: int = 4) -> list[str]:
    """Return the names of all values, those in objects as `value_of` takes them."""
    names = []
    for name, value in fields.items():
        within = []
        if isinstance(value, Mapping) and depth > 1:
            within = nested_names(value, depth - 1)
        names += [f"{name}.{inner}" for inner in within] or [name]
    return names


def json_kind(value: object) -> str:
    """Return what JSON calls the kind of a value, with its article."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", bool: "true or false", str: "a string"}
    return names.get(type(value), "a number")


def check_columns(columns: Sequence[str], where: str) -> None:
    """Raise `DataError` if there are too many columns, or two of one name."""
    if len(columns) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(columns):,} columns, the most is {MAX_COLUMNS:,}.")
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise DataError(f"{where}: the column {twice[0][:80]!r} is there twice. Rename one.")
