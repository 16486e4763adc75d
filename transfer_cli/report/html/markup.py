"""HTML as values: whatever has not been made by `tag` is escaped when it is put into one."""

import json
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from transfer_cli.safe_files import escaped

_LONG_TITLE = 14
_VOID = ("br", "img", "link", "meta")
"""Elements that nothing is in."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return `value` as text of a page; what is markup already stays as it is."""
    return value if isinstance(value, Html) else Html(escape(shown(value)))


def shown(value: object) -> str:
    """Return `value` as a text without characters that steer what is around them."""
    # Spaces of every width are not printable for Python, and harmless here.
    plain = "".join(" " if unicodedata.category(each) == "Zs" else each for each in str(value))
    return escaped(plain)


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: Of the element.
        children: Elements, and anything else as its text; None is left out.
        attributes: `class_` stands for `class` and `data_value` for `data-value`; True for an
            attribute without a value; None and False for one that is not there.
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    inside = "".join(text(child) for child in children if child is not None)
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{inside}</{name}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(shown(value))}"'


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Return elements and texts one after another; None is left out."""
    return Html(text(between).join(text(part) for part in parts if part is not None))


def data_block(value: Any, **attributes: object) -> Html:
    """Return plain values for a script to read. No text in them can end the element early."""
    try:
        content = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        content = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    for each in "<>&":
        content = content.replace(each, f"\\u{ord(each):04x}")
    return tag("script", Html(content), type="application/json", **attributes)


def _finite(value: Any) -> Any:
    """Return plain values with None in place of what is no finite number."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def details(summary: object, *children: object, **attributes: object) -> Html:
    """Return what opens on demand."""
    return tag("details", tag("summary", summary), *children, **attributes)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: Its heading.
        is_number: Whether it holds numbers: those stand to the right.
        note: What the heading means, where that is not plain.
    """

    title: object
    is_number: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        content: What is shown.
        value: What it is sorted by; none where there is nothing, which comes last.
    """

    content: object
    value: float | str | None = None


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell | object]]) -> Html:
    """Return a table in a container that scrolls by itself, also by keyboard.

    The first cell of a row is its heading.
    """
    heads = [_head(column, column.title) for column in columns]
    return _framed(caption, heads, (tag("tr", *_cells(columns, row)) for row in rows))


def sortable_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell | object]],
    marked: Sequence[bool],
) -> Html:
    """Return a `table` whose headings are buttons that sort it; some rows are marked."""
    heads = [
        _head(column, tag("button", column.title, type="button", class_="sort"))
        for column in columns
    ]
    body = (
        tag("tr", *_cells(columns, row), class_="best" if is_marked else None)
        for row, is_marked in zip(rows, marked, strict=True)
    )
    return _framed(caption, heads, body, data_sortable=True)


def _framed(caption: str, heads: list[Html], body: Iterable[Html], **attributes: object) -> Html:
    content = tag(
        "table",
        tag("caption", caption, class_="hidden"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        **attributes,
    )
    return tag(
        "div", content, class_="scroll", tabindex="0", role="region", aria_label=f"{caption}, table"
    )


def _head(column: Column, content: object) -> Html:
    is_long = len(str(column.title)) > _LONG_TITLE
    kind = ("number long" if is_long else "number") if column.is_number else None
    return tag("th", content, scope="col", class_=kind, title=column.note)


def _cells(columns: Sequence[Column], row: Sequence[Cell | object]) -> Iterable[Html]:
    for place, (column, given) in enumerate(zip(columns, row, strict=True)):
        cell = given if isinstance(given, Cell) else Cell(given)
        kind = "number" if column.is_number else None
        if place == 0:
            yield tag("th", cell.content, scope="row", class_=kind, data_value=cell.value)
        else:
            yield tag("td", cell.content, class_=kind, data_value=cell.value)
