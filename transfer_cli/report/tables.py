"""A report on a terminal, and as a file for other programs: CSV, JSON, Markdown."""

import csv
import io
import json
import shlex
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from transfer_cli.errors import listed
from transfer_cli.report import formats, results_table
from transfer_cli.report.best import commands
from transfer_cli.report.contents import (
    FAILED,
    Group,
    Report,
    Run,
    SweepProgress,
    TaskRuns,
    plain_values,
)
from transfer_cli.report.formats import plain
from transfer_cli.report.results_table import BEST, FOLDER, GROUP, ResultColumn
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import (
    markdown_code,
    markdown_row,
    markdown_text,
    printable,
    spreadsheet_cell,
)
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


def as_csv(report: Report) -> str:
    """Return a line for each group, with its numbers in full; not those of single classes."""
    records = [_record(task, group) for task in report.tasks for group in task.groups]
    names = dict.fromkeys(name for record in records for name in record)
    written = io.StringIO()
    writer = csv.DictWriter(written, list(names), restval="", lineterminator="\n")
    writer.writerow({name: _cell(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in each.items()} for each in records)
    return written.getvalue()


def as_json(value: object) -> str:
    """Return a report, or other records, as JSON; a number that is not finite is null."""
    return json.dumps(plain_values(value), indent=2) + "\n"


def as_markdown(report: Report) -> str:
    """Return a table for each task, with what must be known of it."""
    parts = [*map(markdown_text, results_table.apart(report))]
    parts += ["\n".join(_markdown(task)) for task in report.tasks]
    if report.problems:
        parts += ["Not shown:", "\n".join(f"- {markdown_text(each)}" for each in report.problems)]
    return "\n\n".join(parts) + "\n"


def _record(task: TaskRuns, group: Group) -> dict[str, Any]:
    record: dict[str, Any] = {
        "task": task.name,
        "group": group.label,
        **{f"setting {key}": group.settings.get(key) for key in task.varying},
        "runs": len(group.runs),
        "finished": len(group.finished),
        "failed": sum(run.status == FAILED for run in group.runs),
        "learnt_nothing": group.learnt_nothing,
        "seeds": " ".join(str(run.seed) for run in group.finished),
        "best": group.is_best,
        "baseline": results_table.is_baseline(group, task),
        "best_run": task.best.run.path
        if task.best and results_table.holds_best(task, group)
        else None,
        "folders": shlex.join(str(run.path) for run in group.runs),
        "trained": group.trained,
    }
    spreads = {
        **group.measures, "flops": group.flops, "seconds": group.seconds, "joules": group.joules,
        "memory_bytes": group.memory,
    }  # fmt: skip
    for name, found in spreads.items():
        if name.count("/") < 2 or "/slice/" in name:
            record |= {name: found and found.mean, f"{name} deviation": found and found.deviation}
    against = {} if group.against is None else vars(group.against)
    return record | {f"against {name}": value for name, value in against.items()}


def _cell(value: Any) -> Any:
    if value is None or is_number(value):
        return value
    return spreadsheet_cell(str(value) if isinstance(value, Path) else plain(value))


def _markdown(task: TaskRuns) -> Iterator[str]:
    columns = results_table.results_table(task)
    yield f"### {markdown_text(task.name)}"
    yield ""
    yield markdown_row(markdown_text(each.heading) for each in columns)
    yield markdown_row(["---", *["---:"] * (len(columns) - 1)])
    for group, (name, *cells) in zip(task.groups, results_table.texts(columns), strict=True):
        first = f"**{markdown_code(name)}** \\*" if group.is_best else markdown_code(name)
        yield markdown_row([first, *map(markdown_text, cells)])
    remarks = [markdown_text(line) for line in results_table.remarks(task)]
    remarks += [
        f"{markdown_code(run.name)}: {markdown_text(run.shortfall)}"
        for run in task.runs
        if run.shortfall is not None
    ]
    if remarks:
        yield ""
        yield from (f"- {line}" for line in remarks)
    if task.best is not None:
        yield ""
        own = markdown_text(results_table.own(task))
        yield f"**Best run by validation**: {markdown_code(str(task.best.run.path))} {own}"
        yield ""
        yield from (f"- {markdown_text(line)}" for line in results_table.why_best(task))
        yield from (
            f"- {what}: {markdown_code(line)}" for what, line in commands(task.best.run).items()
        )
