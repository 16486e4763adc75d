"""A report on a terminal."""

from collections.abc import Iterator, Set
from pathlib import Path

from transfer_cli.report import words
from transfer_cli.report.model import Report, Standing, Task
from transfer_cli.report.rows import BEST, Rows, apart, explanations, rows, split_of, unfinished
from transfer_cli.terminal import (
    BLANK,
    Column,
    Entry,
    Line,
    Page,
    Piece,
    Renderable,
    Style,
    TextTable,
)

MOST_ERRORS = 5
"""Shared errors that are shown."""

_NARROWEST_NAME = 28
_MOST_CHARACTERS = 100


def as_page(report: Report, width: int | None) -> Page:
    """Return what `transfer report` prints.

    Args:
        report: The report.
        width: Columns of the terminal, for which the least important numbers are left out; None:
            there is room for everything.
    """
    why = apart(report)
    in_tables = {(run.sweep, run.number) for task in report.tasks for run in task.runs}
    parts: list[list[Renderable]] = [
        *(list(_standing(each, in_tables)) for each in report.standings),
        [] if why is None else [Line(why)],
        *(list(_task(each, width)) for each in report.tasks),
        list(_problems(report)),
    ]
    blocks: list[Renderable] = []
    for part in filter(None, parts):
        blocks += [BLANK, *part] if blocks else part
    return Page(*blocks)


def _standing(
    found: Standing, in_tables: Set[tuple[Path | None, int | None]]
) -> Iterator[Renderable]:
    """Yield where a sweep stands, and what failed without a place in a table."""
    counts = [
        Piece(f"{found.done} done", "good"),
        Piece(f"{found.running} running", "mark" if found.running else ""),
        Piece(f"{found.left} left"),
    ]
    if found.failed:
        counts.append(Piece(f"{len(found.failed)} failed", "bad"))
    if found.pruned:
        counts.append(Piece(f"{found.pruned} pruned"))
    pieces = [piece for count in counts for piece in (", ", count)][1:]
    yield Line(Piece(f"sweep {found.path}", "heading"), ": ", *pieces, _to_go(found))
    yield Line("  ", Piece(found.command, "note"))
    for number, overrides, reason in found.failed:
        if (found.path.resolve(), number) in in_tables:
            continue
        yield Entry([f"  job {number}  "], [Piece(f"{overrides}  failed: {reason}", "bad")], 10)


def _to_go(found: Standing) -> str:
    if not found.running and not found.left:
        return ""
    if found.seconds_left is None:
        time = ""
    else:
        about = words.duration(float(round(found.seconds_left)))
        time = f"; about {about} to go" if found.running else f"; about {about} if taken up again"
    return time if found.running else f", and nobody is at work on it{time}"


def _task(task: Task, width: int | None) -> Iterator[Renderable]:
    yield Line(Piece(task.name, "heading"), f": {_size(task)}")
    found = rows(task)
    shown, left_out = _fitting(found, width)
    titles = [found.titles[place] for place in shown]
    table: list[list[Piece | str]] = []
    for cells, best in zip(found.cells, found.is_best, strict=True):
        first, measured, *others = (cells[place] for place in shown)
        style: Style = "mark" if best else "name"
        mark = f"{BEST} " if best else "  "
        table.append([Piece(mark + first, style), Piece(measured, "mark" if best else ""), *others])
    columns = [Column(f"  {titles[0]}"), *(Column(title, right=True) for title in titles[1:])]
    yield TextTable(columns, table)
    lines = [*explanations(task)]
    if left_out:
        lines.append(f"not shown here, for want of room: {', '.join(left_out)}")
    for line in lines:
        yield Entry(["  "], [Piece(line, "note")], 2)
    yield from _unfinished(task)
    yield from _errors(task)


def _fitting(found: Rows, width: int | None) -> tuple[list[int], list[str]]:
    """Return the places of the columns for which there is room, and the titles of the others."""
    needed = [max(map(len, cells)) for cells in zip(found.titles, *found.cells, strict=True)]
    needed[0] = min(needed[0] + 2, _NARROWEST_NAME)
    left_out: list[str] = []
    for title in (title for title in found.least_first if title in found.titles):
        kept = [at for at, each in enumerate(found.titles) if each not in left_out]
        if width is None or sum(needed[at] + 2 for at in kept) - 2 <= width:
            break
        left_out.append(title)
    return [at for at, each in enumerate(found.titles) if each not in left_out], left_out


def _size(task: Task) -> str:
    runs, groups = len(task.runs), len(task.groups)
    by = f", sorted by {task.sort}" if groups > 1 and task.sort else ""
    return f"{words.several(runs, 'run')} in {words.several(groups, 'group')}{by}"


def _unfinished(task: Task) -> Iterator[Renderable]:
    found = list(unfinished(task))
    if found:
        yield Line("  came to nothing, or not to an end:")
    for run, what in found:
        own = f"{' '.join(run.overrides)}  " if run.overrides else ""
        yield Entry([f"    {run.name}  "], [own, Piece(what, "bad")], 24)


def _errors(task: Task) -> Iterator[Renderable]:
    if task.errors:
        most = f", the first {MOST_ERRORS}" if len(task.errors) > MOST_ERRORS else ""
        yield Line(f"  wrong in most runs ({split_of(task)}{most}):")
    for each in task.errors[:MOST_ERRORS]:
        said = ", ".join(f"{label} {count}" for label, count in each.predicted.items())
        text = " ".join(each.text.split())
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS]} ..."
        yield Entry(
            [f"    {each.wrong} of {each.runs}  "],
            [f"{text}  ", Piece(f"is {each.label}, said {said}", "note")],
            14,
        )


def _problems(report: Report) -> Iterator[Renderable]:
    for line in report.problems:
        yield Line(Piece("not shown:", "warning"), f" {line}")
