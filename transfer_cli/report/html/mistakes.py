"""What the runs of a task got wrong: which label they took for which, and the texts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.contents import Group, SharedError, TaskRuns
from transfer_cli.report.html.markup import Html, PageColumn, joined, macro, note, table

MOST_LABELS = 60
"""With more labels a table can no longer be read, and a page of many groups no longer be sent."""

MOST_ERRORS = 200

_MOST_PAIRS = 3


def confusion_section(task_id: str, task: TaskRuns, names: Sequence[str]) -> Html | None:
    """Return the confusion table of the best group, and those of the others to choose from."""
    if len(task.labels) > MOST_LABELS:
        return note(f"Not shown for as many as {len(task.labels):,} labels.")
    split = task.measure.partition("/")[0]
    found = (_confusion(group, split, task.labels) for group in task.groups)
    groups = {at: each for at, each in enumerate(found) if each is not None}
    if not groups:
        return None
    first = next(iter(groups.values()))
    rows = [[0] * len(task.labels) for _ in task.labels]
    for label, said, count in first["cells"]:
        rows[label][said] = count
    caption = f"Confusion on {split}, {formats.several(first['runs'], 'run')}"
    cells = macro("mistakes.html", "cells", caption, task.labels, rows)
    return macro(
        "mistakes.html", "confusion", task_id, [(at, names[at]) for at in groups], cells,
        first["words"], {"labels": task.labels, "groups": groups},
    )  # fmt: skip


def _confusion(group: Group, split: str, labels: Sequence[str]) -> dict[str, Any] | None:
    """Return how often a group's runs took which label for which, as the page's script reads it."""
    tables = _tables(group, (split, "confusion"), len(labels), len(labels))
    if not tables:
        return None
    counts: Counter[tuple[int, int]] = Counter()
    for rows in tables:
        for label, row in enumerate(rows):
            counts.update({(label, said): count for said, count in enumerate(row) if count})
    cells = [(*pair, counts[pair]) for pair in sorted(counts)]
    wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: -cell[2])
    pairs = "; ".join(
        f"{labels[label]} taken for {labels[said]}, {n:,} times"
        for label, said, n in wrong[:_MOST_PAIRS]
    )
    words = f"Most often confused: {pairs}." if pairs else "Nothing was confused."
    return {"cells": cells, "split": split, "runs": len(tables), "words": words}


def decisions_section(task: TaskRuns) -> Html | None:
    """Return how often each label was said wrongly and missed, of texts with several labels.

    That is by the runs of the best group that has such counts.
    """
    split = task.measure.partition("/")[0]
    found = (_tables(group, (split, "decisions"), 4, len(task.labels)) for group in task.groups)
    tables = next(filter(None, found), None)
    if tables is None:
        return None
    counts = [
        [sum(cells) for cells in zip(*lines, strict=True)] for lines in zip(*tables, strict=True)
    ]
    by_label = zip(task.labels, *counts[:3], strict=True)
    order = sorted(by_label, key=lambda row: -row[2] - row[3])
    rows = [
        (name, right, surplus, missing) for name, right, surplus, missing in order[:MOST_LABELS]
    ]
    columns = [PageColumn(each, is_number=True) for each in ("right", "said wrongly", "missed")]
    caption = f"Labels on {split}, {formats.several(len(tables), 'run')}"
    listed = table(caption, ["label", *columns], rows)
    more = len(order) - len(rows)
    return joined([listed, note(f"{more:,} with fewer errors are left out.") if more else None])


def _tables(group: Group, place: tuple[str, str], height: int, width: int) -> list[list[list[int]]]:
    """Return the tables of this size that the results of a group's runs hold at a place."""
    (split, name), found = place, []
    for run in group.runs:
        rows: Any = run.results.tables.get(split, {}).get(name)
        if not isinstance(rows, list) or len(rows) != height:
            continue
        if all(isinstance(line, list) and len(line) == width for line in rows) and all(
            type(n) is int and n >= 0 for row in rows for n in row
        ):
            found.append(rows)
    return found


def shared_errors(errors: Sequence[SharedError], expected: str) -> Html | None:
    """Return what most runs get wrong: the text, what is right, and what was said."""
    if not errors:
        return None
    rows = [
        (*(macro("mistakes.html", name, each) for name in ("text", "label", "said")),
         f"{each.wrong} of {each.runs}")
        for each in errors[:MOST_ERRORS]
    ]  # fmt: skip
    columns = ["text", expected, "said instead", "wrong runs"]
    listed = table("Errors that most runs share", columns, rows)
    more = len(errors) - len(rows)
    made = Html('<div class="texts">{}</div>').format(listed)
    return joined([made, note(f"{more:,} more are left out.") if more else None])
