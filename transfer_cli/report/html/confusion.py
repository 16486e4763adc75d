"""Confusion tables of groups: those of their runs, added up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.report.contents import Group, TaskRuns

MOST_LABELS = 60
"""With more labels a table can no longer be read, and a page of many groups no longer be sent."""

_MOST_PAIRS = 3


@dataclass(frozen=True)
class Confusion:
    """How often which label was taken for which.

    Args:
        split: Where.
        runs: How many runs are added up.
        cells: Label, prediction, how often; those that never happened are left out.
    """

    split: str
    runs: int
    cells: Sequence[tuple[int, int, int]]


def confusions(task: TaskRuns) -> dict[int, Confusion]:
    """Return the confusion of each group that has one, by the group's place."""
    if not task.labels:
        return {}
    split = task.measure.partition("/")[0]
    found = {at: _added_up(group, split, len(task.labels)) for at, group in enumerate(task.groups)}
    return {at: each for at, each in found.items() if each is not None}


def _added_up(group: Group, split: str, labels: int) -> Confusion | None:
    tables = [rows for run in group.runs if (rows := _table(run.results, split, labels))]
    if not tables:
        return None
    cells: Counter[tuple[int, int]] = Counter()
    for rows in tables:
        for label, row in enumerate(rows):
            cells.update({(label, said): count for said, count in enumerate(row) if count})
    return Confusion(split, len(tables), [(*pair, cells[pair]) for pair in sorted(cells)])


def _table(results: Any, split: str, labels: int) -> list[list[int]] | None:
    """Return the table that `results.json` holds; None where it is not one for these labels."""
    rows: Any = results
    for key in ("tables", split, "confusion"):
        rows = rows.get(key) if isinstance(rows, dict) else None
    if not isinstance(rows, list) or len(rows) != labels:
        return None
    is_whole = all(
        isinstance(row, list)
        and len(row) == labels
        and all(type(count) is int and count >= 0 for count in row)
        for row in rows
    )
    return rows if is_whole else None


def most_confused(found: Confusion, labels: Sequence[str]) -> str:
    """Return the commonest mistakes, in words."""
    wrong = [cell for cell in found.cells if cell[0] != cell[1]]
    if not wrong:
        return "Nothing was confused."
    worst = sorted(wrong, key=lambda cell: -cell[2])[:_MOST_PAIRS]
    pairs = "; ".join(
        f"{labels[label]} taken for {labels[said]}, {n:,} times" for label, said, n in worst
    )
    return f"Most often confused: {pairs}."
