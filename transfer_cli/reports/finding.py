"""What an analysis finds, as plain values: others write it, print it, draw it and show it.

`commands.analyze` prints it, `analysis.pictures` draws its charts, `reports.html.analysis_sections`
shows it on a page. A file holds what `as_json` returns; that of a stranger is read by `from_json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Row = Sequence[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class FindingTable:
    """Rows of plain values, None for an empty cell; shades from 0 to 1 follow the value."""

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    is_shaded: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines over the same places.

    Args:
        series: The height of each line at each place, by its name; None where it has none.
        at: The places; names are spread evenly.
        dashed: The names of the lines that are there for comparison.
    """

    series: Mapping[str, Sequence[float | None]]
    at: Sequence[Any]
    x_title: str
    y_title: str
    dashed: Sequence[str] = ()


@dataclass(frozen=True)
class Matrix:
    """Coloured squares `[rows, columns]`, None for none; `bounds` are the ends of the colours."""

    values: Sequence[Sequence[float | None]]
    row_title: str
    column_title: str
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Points:
    """Points in a plane.

    Args:
        places: Two numbers each.
        groups: What each point belongs to, shown by colour; empty: they are all alike.
        names: What is written beside some points, by their numbers.
    """

    places: Sequence[Sequence[float]]
    titles: Sequence[str]
    groups: Sequence[str] = ()
    names: Mapping[int, str] = field(default_factory=dict)


Chart = Lines | Matrix | Points


@dataclass(frozen=True)
class FindingView:
    """What only a page of its own can show: where heads look, or words with colours."""

    kind: Literal["attention", "words"]
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What an analysis finds.

    Args:
        values: Single numbers and words, by what they are.
        tables: The file holds the first; the others show what `data` holds.
        charts: By what each shows, in lower-case letters, digits and underscores.
        notes: What must be known to read it.
        files: Other files beside it, by the end of the name: `maps.npz`.
    """

    title: str
    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[FindingTable] = ()
    charts: Mapping[str, Chart] = field(default_factory=dict)
    notes: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    view: FindingView | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the content of its file."""
        content: dict[str, Any] = {
            "title": self.title, "summary": self.summary, "values": self.values,
        }  # fmt: skip
        if self.tables:
            content["table"] = {"columns": self.tables[0].columns, "rows": self.tables[0].rows}
        return {**content, "notes": self.notes, **self.data}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Finding":
        """Return what a file holds, in which any value can be of any kind."""
        title, summary, values, table, notes = map(content.get, _SHOWN)
        return cls(
            _of_kind(title, str),
            _of_kind(summary, str),
            _of_kind(values, dict),
            [_table(table)] if isinstance(table, dict) else [],
            notes=[note for note in _of_kind(notes, list) if isinstance(note, str)],
            data={key: value for key, value in content.items() if key not in _SHOWN},
        )


_SHOWN = ("title", "summary", "values", "table", "notes")


def _of_kind(value: Any, kind: type[T]) -> T:
    """Return a value of this kind; in place of another an empty one."""
    return value if isinstance(value, kind) else kind()


def _table(stored: Mapping[str, Any]) -> FindingTable:
    """Return a table without the rows that have too few or too many values."""
    columns, rows = (_of_kind(stored.get(key), list) for key in ("columns", "rows"))
    fitting = [row for row in rows if isinstance(row, list) and len(row) == len(columns)]
    return FindingTable(columns, fitting)
