"""HTML from templates: all that is put into one is escaped, unless it is markup already."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import category

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from transfer_cli.report import formats
from transfer_cli.report.contents import plain_values
from transfer_cli.report.html.line_styles import line_style
from transfer_cli.report.results_table import Cell
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
    """Return a template of `report/templates`, filled in."""
    return Html(_TEMPLATES.get_template(template).render(values))


def macro(template: str, name: str, *given: object) -> Html:
    """Return what a macro of a template makes."""
    return Html(getattr(_TEMPLATES.get_template(template).module, name)(*given))


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
    heads = [PageColumn(each) if isinstance(each, str) else each for each in columns]
    cells = [
        [each if isinstance(each, Cell) else Cell(escape(each)) for each in row] for row in rows
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


def shown(value: object) -> str:
    """Return `value` as a text without characters that steer what is around them."""
    # Spaces of every width are not printable for Python, and harmless here.
    return escaped("".join(" " if category(each) == "Zs" else each for each in str(value)))


def json_block(value: Any) -> Html:
    """Return plain values for a script to read. No text in them can end the element early."""
    content = json.dumps(_shown_texts(plain_values(value)), separators=(",", ":"))
    for each in "<>&":
        content = content.replace(each, f"\\u{ord(each):04x}")
    return Html(content)


def _shown_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown_texts(each) for each in value]
    return shown(value) if isinstance(value, str) else value


_TEMPLATES = Environment(
    loader=PackageLoader("transfer_cli.report"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_TEMPLATES.filters |= {"json_block": json_block, "line_style": line_style}
_TEMPLATES.globals |= {"formats": formats, "table": table}
