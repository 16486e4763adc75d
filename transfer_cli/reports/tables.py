"""A report on a terminal, and as a file for other programs: CSV, JSON, Markdown."""

import csv
import io
import json
import shlex
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from transfer_cli.errors import list_names
from transfer_cli.metrics import UNSEEN
from transfer_cli.reports import formats, remarks, results_table
from transfer_cli.reports.contents import (
    FAILED,
    Group,
    Report,
    Run,
    SweepProgress,
    TaskRuns,
    plain_values,
)
from transfer_cli.reports.formats import plain
from transfer_cli.reports.results_table import BEST, FOLDER, GROUP, ResultColumn
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


def as_terminal_page(report: Report, width: int | None) -> Page:
    """Return what `transfer report` prints.

    If a terminal has only `width` columns, the least important numbers are left out.
    """
    shown_remarks: set[str] = set()
    in_tables = {(run.sweep, run.number) for task in report.tasks for run in task.runs}
    parts: list[list[Renderable]] = [
        *(list(_sweep_lines(standing, in_tables)) for standing in report.standings),
        [Line(why) for why in remarks.why_several_tables(report)],
        *(list(_task(task, width, shown_remarks)) for task in report.tasks),
        [Line(Piece("not shown:", "warning"), f" {line}") for line in report.problems],
        *(list(_best(task, len(report.tasks))) for task in report.tasks),
    ]
    return Page(*[block for part in parts if part for block in (BLANK, *part)][1:])


def _best(task: TaskRuns, tasks: int) -> Iterator[Renderable]:
    if task.best is None:
        return
    of_task = f" of {task.name}" if tasks > 1 else ""
    head = Piece(f"best run by validation{of_task}:", "heading")
    name = remarks.best_run_label(task, task.best.run)
    yield Line(head, " ", Piece(str(task.best.run.path), "mark"), f"  {name}")
    for line in remarks.why_best(task, task.best):
        yield Entry(["  "], [Piece(line, "note")], 2)
    for what, line in remarks.next_commands(task.best.run).items():
        yield Line(f"  {what + ':':9}{line}")


def _sweep_lines(
    sweep: SweepProgress, in_tables: Set[tuple[Path | None, int | None]]
) -> Iterator[Renderable]:
    """Yield the progress of a sweep, and its failed jobs that are in no table."""
    pieces: list[Piece | str] = [
        Piece(f"{sweep.done} done", "good"), ", ",
        Piece(f"{sweep.running} running", "mark" if sweep.running else ""), ", ",
        Piece(f"{sweep.left} left"),
    ]  # fmt: skip
    if sweep.failed:
        pieces += [", ", Piece(f"{len(sweep.failed)} failed", "bad")]
    if sweep.pruned:
        pieces += [", ", Piece(f"{sweep.pruned} pruned")]
    yield Line(Piece(f"sweep {sweep.path}", "heading"), ": ", *pieces, _remaining_text(sweep))
    yield Line("  ", Piece(printable(sweep.command), "note"))
    for number, overrides, reason in sweep.failed:
        if (sweep.path.resolve(), number) not in in_tables:
            what = f"{printable(overrides)}  failed: {printable(reason)}"
            yield Entry([f"  job {number}  "], [Piece(what, "bad")], 10)


def _remaining_text(sweep: SweepProgress) -> str:
    is_idle = sweep.left > 0 and not sweep.running
    text = ", and nobody is at work on it" if is_idle else ""
    if sweep.seconds_left is not None:
        about = formats.duration(float(round(sweep.seconds_left)))
        text += f"; about {about} {'if taken up again' if is_idle else 'to go'}"
    return text


def _task(task: TaskRuns, width: int | None, shown_remarks: set[str]) -> Iterator[Renderable]:
    """Yield the table of a task and its remarks, but for those that an earlier table has."""
    runs, groups = len(task.runs), len(task.groups)
    by = f", sorted by {task.sort}" if groups > 1 and task.sort else ""
    size = f"{formats.several(runs, 'run')} in {formats.several(groups, 'group')}{by}"
    yield Line(Piece(task.name, "heading"), f": {size}")
    columns, left_out = _columns_for_width(results_table.results_table(task), width)
    table: list[list[Piece | str]] = []
    rows = zip(task.groups, results_table.row_texts(columns), strict=True)
    for group, (name, measured, *others) in rows:
        if group.is_best:
            table.append([Piece(f"{BEST} {name}", "mark"), Piece(measured, "mark"), *others])
        else:
            table.append([Piece(f"  {name}", "name"), measured, *others])
    titles = [Column(printable(column.heading), right=column.title != FOLDER)
              for column in columns[1:]]  # fmt: skip
    yield TextTable([Column(f"  {columns[0].title}"), *titles], table)
    lines = [line for line in remarks.table_remarks(task) if line not in shown_remarks]
    shown_remarks.update(lines)
    if left_out:
        lines.append(f"not shown here, for want of room: {', '.join(left_out)}")
    for line in lines:
        yield Entry(["  "], [Piece(line, "note")], 2)
    yield from _unfinished(task)
    yield from _errors(task)


def _columns_for_width(
    columns: list[ResultColumn], width: int | None
) -> tuple[list[ResultColumn], list[str]]:
    """Return the columns for which there is room, and the titles of the others."""
    needed = {
        column.title: max(map(len, (printable(column.heading), *(c.text for c in column.cells))))
        for column in columns
    }
    needed[GROUP] = min(needed[GROUP] + 2, _NARROWEST_NAME)
    if FOLDER in needed:
        needed[FOLDER] = min(needed[FOLDER], _NARROWEST_FOLDER)
    further = [column.title for column in columns if column.is_measure][1:]
    left_out: list[str] = []
    for title in (other for other in (*_LEAST_IMPORTANT, *further) if other in needed):
        room = [size + 2 for other, size in needed.items() if other not in left_out]
        if width is None or sum(room) - 2 <= width:
            break
        left_out.append(title)
    return [column for column in columns if column.title not in left_out], left_out


def _unfinished(task: TaskRuns) -> Iterator[Renderable]:
    by_reason: dict[str, list[Run]] = {}
    for run in task.runs:
        if run.shortfall is not None:
            by_reason.setdefault(run.shortfall, []).append(run)
    if by_reason:
        yield Line("  came to nothing, or not to an end:")
    for what, runs in by_reason.items():
        overrides = f"{' '.join(runs[0].overrides)}  ".lstrip() if len(runs) == 1 else ""
        names = list_names((run.name for run in runs), _MOST_NAMED)
        yield Entry(["    "], [f"{names}  ", overrides, Piece(what, "bad")], 4)


def _errors(task: TaskRuns) -> Iterator[Renderable]:
    if task.errors:
        most = f", the first {MOST_ERRORS}" if len(task.errors) > MOST_ERRORS else ""
        yield Line(f"  wrong in most runs ({task.measure.partition('/')[0]}{most}):")
    for error in task.errors[:MOST_ERRORS]:
        predicted = ", ".join(f"{label} {count}" for label, count in error.predicted.items())
        text = " ".join(error.text.split())
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS]} ..."
        answer = Piece(printable(f"is {error.label}, said {predicted}"), "note")
        yield Entry([f"    {error.wrong} of {error.runs}  "], [f"{text}  ", answer], 14)


# --- files for other programs ------------------------------------------------------------------


def as_csv(report: Report) -> str:
    """Return a line for each group, with its numbers in full; not those of single classes."""
    records = [_record(task, group) for task in report.tasks for group in task.groups]
    names = dict.fromkeys(name for record in records for name in record)
    written = io.StringIO()
    writer = csv.DictWriter(written, list(names), restval="", lineterminator="\n")
    writer.writerow({name: _cell(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in record.items()} for record in records)
    return written.getvalue()


def as_json(value: object) -> str:
    """Return a report, or other records, as JSON; a number that is not finite is null."""
    return json.dumps(plain_values(value), indent=2) + "\n"


def as_markdown(report: Report) -> str:
    """Return a table for each task, with what must be known of it."""
    parts = [*map(markdown_text, remarks.why_several_tables(report))]
    parts += ["\n".join(_markdown(task)) for task in report.tasks]
    if report.problems:
        parts += ["Not shown:", "\n".join(f"- {markdown_text(why)}" for why in report.problems)]
    return "\n\n".join(parts) + "\n"


def _record(task: TaskRuns, group: Group) -> dict[str, Any]:
    best = task.best.run.path if task.best and results_table.holds_best(task, group) else None
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
        "best_run": best,
        "folders": shlex.join(str(run.path) for run in group.runs),
        "trained": group.trained,
    }
    spreads = {
        **group.measures, "flops": group.flops, "seconds": group.seconds, "joules": group.joules,
        "memory_bytes": group.memory,
    }  # fmt: skip
    for name, spread in spreads.items():
        if name.count("/") < 2 or "/slice/" in name or name.endswith(UNSEEN):
            mean, deviation = (None, None) if spread is None else (spread.mean, spread.deviation)
            record |= {name: mean, f"{name} deviation": deviation}
    if group.published is not None:
        record[results_table.PUBLISHED] = group.published
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
    yield markdown_row(markdown_text(column.heading) for column in columns)
    yield markdown_row(["---", *["---:"] * (len(columns) - 1)])
    for group, (name, *cells) in zip(task.groups, results_table.row_texts(columns), strict=True):
        first = f"**{markdown_code(name)}** \\*" if group.is_best else markdown_code(name)
        yield markdown_row([first, *map(markdown_text, cells)])
    lines = [markdown_text(line) for line in remarks.table_remarks(task)]
    lines += [
        f"{markdown_code(run.name)}: {markdown_text(run.shortfall)}"
        for run in task.runs
        if run.shortfall is not None
    ]
    if lines:
        yield ""
        yield from (f"- {line}" for line in lines)
    if task.best is not None:
        yield ""
        label = markdown_text(remarks.best_run_label(task, task.best.run))
        yield f"**Best run by validation**: {markdown_code(str(task.best.run.path))} {label}"
        yield ""
        yield from (f"- {markdown_text(line)}" for line in remarks.why_best(task, task.best))
        yield from (
            f"- {what}: {markdown_code(line)}"
            for what, line in remarks.next_commands(task.best.run).items()
        )
