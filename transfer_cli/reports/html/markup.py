"""HTML from templates: all that is put into one is escaped, unless it is markup already."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import category

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from transfer_cli.reports import formats
from transfer_cli.reports.contents import plain_values
from transfer_cli.reports.results_table import Cell
from transfer_cli.safe_files import escaped

Html = Markup
"""Text that is markup already; `Html('<p>{}</p>').format(text)` escapes the text."""


@dataclass(frozen=True)
class PageColumn:
    """A column of a table; numbers are right-aligned, and a note explains the heading."""

    title: object
    is_number: bool = False
    note: str | None = None


def render(template: str, **values: object) -> Html:
    """Return a template of `reports/templates`, filled in."""
    return Html(_TEMPLATES.get_template(template).render(values))


def macro(template: str, name: str, *arguments: object) -> Html:
    """Return what a macro of a template makes."""
    return Html(getattr(_TEMPLATES.get_template(template).module, name)(*arguments))


def table(
    caption: str,
    columns: Sequence[PageColumn | str],
    rows: Iterable[Sequence[Cell | object]],
    marked: Sequence[bool] = (),
) -> Html:
    """Return a table in a container that scrolls by itself, also by keyboard.

    The first cell of a row is its heading. Where it is said which rows are `marked`, the headings
    of the columns are buttons that sort the table.
    """
    heads = [PageColumn(column) if isinstance(column, str) else column for column in columns]
    cells = [
        [value if isinstance(value, Cell) else Cell(escape(value)) for value in row] for row in rows
    ]
    return macro("macros.html", "table", caption, heads, cells, marked)


def note(text: str) -> Html:
    """Return a remark."""
    return Html('<p class="note">{}</p>').format(text)


def details(summary: str, content: object, *, is_open: bool) -> Html:
    """Return what opens on demand."""
    return macro("macros.html", "opening", summary, content, is_open)


def joined(parts: Iterable[object]) -> Html:
    """Return markup and texts one after another; None is left out."""
    there = (part for part in parts if part is not None)
    return Html().join(part if isinstance(part, Html) else str(part) for part in there)


def visible_text(value: object) -> str:
    """Return `value` as a text without characters that steer what is around them."""
    # Spaces of every width are not printable for Python, and harmless here.
    return escaped("".join(" " if category(sign) == "Zs" else sign for sign in str(value)))


def json_block(value: Any) -> Html:
    """Return plain values for a script to read. No text in them can end the element early."""
    content = json.dumps(_visible_texts(plain_values(value)), separators=(",", ":"))
    for sign in "<>&":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return Html(content)


def _visible_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _visible_texts(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_visible_texts(part) for part in value]
    return visible_text(value) if isinstance(value, str) else value


COLOURS = 8
"""Of groups in charts: how many the page's style has."""

DASHES = (None, "7 4", "2 3", "7 3 2 3", "12 4")
"""Each an SVG `stroke-dasharray`."""

SHAPES = (
    "M14 6m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "M11 3h6v6h-6z",
    "M14 2l4 4-4 4-4-4z",
    "M14 2l4 7h-8z",
    "M11 2l3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3-3-3z",
    "M14 10l4-7h-8z",
    "M13 2h2v3h3v2h-3v3h-2V7h-3V5h3z",
    "M14 1.5l1.4 3 3.3.4-2.4 2.2.6 3.3-2.9-1.6-2.9 1.6.6-3.3-2.4-2.2 3.3-.4z",
)
"""Each the path of a marker in a box of 28 by 12."""


def line_style(place: int) -> dict[str, object]:
    """Return how a group's line is drawn beside its name: its colour, dashes and marker."""
    return {"slot": place % COLOURS, "dashes": dashes(place), "shape": shape(place)}


def dashes(place: int) -> str | None:
    """Return how the line of a group is dashed: groups of one colour differ in it."""
    return DASHES[(place + place // COLOURS) % len(DASHES)]


def shape(place: int) -> str:
    """Return the marker of a group."""
    return SHAPES[(place + place // COLOURS) % len(SHAPES)]


_TEMPLATES = Environment(
    loader=PackageLoader("transfer_cli.reports"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_TEMPLATES.filters |= {"json_block": json_block, "line_style": line_style}
_TEMPLATES.globals |= {"formats": formats, "table": table}
