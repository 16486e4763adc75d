"""A report on a terminal."""

from collections.abc import Iterator, Set
from pathlib import Path

from transfer_cli.errors import listed
from transfer_cli.report import formats, results_table
from transfer_cli.report.best import commands
from transfer_cli.report.contents import Report, Run, SweepProgress, TaskRuns
from transfer_cli.report.results_table import BEST, FOLDER, GROUP, ResultColumn
from transfer_cli.safe_files import printable
from transfer_cli.terminal import BLANK, Column, Entry, Line, Page, Piece, Renderable, TextTable

MOST_ERRORS = 5
"""Shared errors that are shown."""

_NARROWEST_NAME = 28
_NARROWEST_FOLDER = 16
_MOST_CHARACTERS = 100
_MOST_NAMED = 8
_LEAST_IMPORTANT = (
    results_table.MEMORY, results_table.JOULES, results_table.FLOPS, results_table.TRAINED,
    results_table.SECONDS,
)  # fmt: skip


def as_page(report: Report, width: int | None) -> Page:
    """Return what `transfer report` prints.

    If a terminal has only `width` columns, the least important numbers are left out.
    """
    said: set[str] = set()
    in_tables = {(run.sweep, run.number) for task in report.tasks for run in task.runs}
    parts: list[list[Renderable]] = [
        *(list(_standing(each, in_tables)) for each in report.standings),
        [Line(why) for why in results_table.apart(report)],
        *(list(_task(each, width, said)) for each in report.tasks),
        [Line(Piece("not shown:", "warning"), f" {line}") for line in report.problems],
        *(list(_best(each, len(report.tasks))) for each in report.tasks),
    ]
    return Page(*[block for part in parts if part for block in (BLANK, *part)][1:])


def _best(task: TaskRuns, tasks: int) -> Iterator[Renderable]:
    """Yield which run to take, why, and what to type next."""
    if task.best is None:
        return
    of_task = f" of {task.name}" if tasks > 1 else ""
    head = Piece(f"best run by validation{of_task}:", "heading")
    yield Line(head, " ", Piece(str(task.best.run.path), "mark"), f"  {results_table.own(task)}")
    for line in results_table.why_best(task):
        yield Entry(["  "], [Piece(line, "note")], 2)
    for what, line in commands(task.best.run).items():
        yield Line(f"  {what + ':':9}{line}")


def _standing(
    found: SweepProgress, in_tables: Set[tuple[Path | None, int | None]]
) -> Iterator[Renderable]:
    """Yield the progress of a sweep, and its failed jobs that are in no table."""
    pieces: list[Piece | str] = [
        Piece(f"{found.done} done", "good"), ", ",
        Piece(f"{found.running} running", "mark" if found.running else ""), ", ",
        Piece(f"{found.left} left"),
    ]  # fmt: skip
    if found.failed:
        pieces += [", ", Piece(f"{len(found.failed)} failed", "bad")]
    if found.pruned:
        pieces += [", ", Piece(f"{found.pruned} pruned")]
    yield Line(Piece(f"sweep {found.path}", "heading"), ": ", *pieces, _to_go(found))
    yield Line("  ", Piece(printable(found.command), "note"))
    for number, overrides, reason in found.failed:
        if (found.path.resolve(), number) not in in_tables:
            what = f"{printable(overrides)}  failed: {printable(reason)}"
            yield Entry([f"  job {number}  "], [Piece(what, "bad")], 10)


def _to_go(found: SweepProgress) -> str:
    is_idle = found.left > 0 and not found.running
    said = ", and nobody is at work on it" if is_idle else ""
    if found.seconds_left is not None:
        about = formats.duration(float(round(found.seconds_left)))
        said += f"; about {about} {'if taken up again' if is_idle else 'to go'}"
    return said


def _task(task: TaskRuns, width: int | None, said: set[str]) -> Iterator[Renderable]:
    """Yield the table of a task and its remarks, but for those that an earlier table has."""
    runs, groups = len(task.runs), len(task.groups)
    by = f", sorted by {task.sort}" if groups > 1 and task.sort else ""
    size = f"{formats.several(runs, 'run')} in {formats.several(groups, 'group')}{by}"
    yield Line(Piece(task.name, "heading"), f": {size}")
    columns, left_out = _fitting(results_table.results_table(task), width)
    table: list[list[Piece | str]] = []
    rows = zip(task.groups, results_table.texts(columns), strict=True)
    for group, (name, measured, *others) in rows:
        if group.is_best:
            table.append([Piece(f"{BEST} {name}", "mark"), Piece(measured, "mark"), *others])
        else:
            table.append([Piece(f"  {name}", "name"), measured, *others])
    titles = [Column(printable(each.heading), right=each.title != FOLDER) for each in columns[1:]]
    yield TextTable([Column(f"  {columns[0].title}"), *titles], table)
    lines = [line for line in results_table.remarks(task) if line not in said]
    said.update(lines)
    if left_out:
        lines.append(f"not shown here, for want of room: {', '.join(left_out)}")
    for line in lines:
        yield Entry(["  "], [Piece(line, "note")], 2)
    yield from _unfinished(task)
    yield from _errors(task)


def _fitting(
    columns: list[ResultColumn], width: int | None
) -> tuple[list[ResultColumn], list[str]]:
    """Return the columns for which there is room, and the titles of the others."""
    needed = {
        each.title: max(len(printable(each.heading)), *(len(cell.text) for cell in each.cells))
        for each in columns
    }
    needed[GROUP] = min(needed[GROUP] + 2, _NARROWEST_NAME)
    if FOLDER in needed:
        needed[FOLDER] = min(needed[FOLDER], _NARROWEST_FOLDER)
    further = [each.title for each in columns if each.is_measure][1:]
    left_out: list[str] = []
    for title in (each for each in (*_LEAST_IMPORTANT, *further) if each in needed):
        room = [size + 2 for each, size in needed.items() if each not in left_out]
        if width is None or sum(room) - 2 <= width:
            break
        left_out.append(title)
    return [each for each in columns if each.title not in left_out], left_out


def _unfinished(task: TaskRuns) -> Iterator[Renderable]:
    found: dict[str, list[Run]] = {}
    for run in task.runs:
        if run.shortfall is not None:
            found.setdefault(run.shortfall, []).append(run)
    if found:
        yield Line("  came to nothing, or not to an end:")
    for what, runs in found.items():
        own = f"{' '.join(runs[0].overrides)}  " if runs[0].overrides and len(runs) == 1 else ""
        names = listed((run.name for run in runs), _MOST_NAMED)
        yield Entry(["    "], [f"{names}  ", own, Piece(what, "bad")], 4)


def _errors(task: TaskRuns) -> Iterator[Renderable]:
    if task.errors:
        most = f", the first {MOST_ERRORS}" if len(task.errors) > MOST_ERRORS else ""
        yield Line(f"  wrong in most runs ({task.measure.partition('/')[0]}{most}):")
    for each in task.errors[:MOST_ERRORS]:
        said = ", ".join(f"{label} {count}" for label, count in each.predicted.items())
        text = " ".join(each.text.split())
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS]} ..."
        answer = Piece(printable(f"is {each.label}, said {said}"), "note")
        yield Entry([f"    {each.wrong} of {each.runs}  "], [f"{text}  ", answer], 14)
