"""A report as a file for other programs: CSV, JSON, Markdown."""

import csv
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transfer_cli.report import results_table
from transfer_cli.report.best import commands
from transfer_cli.report.contents import FAILED, Group, Report, TaskRuns, plain_values
from transfer_cli.report.formats import plain
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import markdown_code, markdown_row, markdown_text, spreadsheet_cell


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
