"""A report as a file for other programs: CSV, JSON, Markdown."""

import csv
import io
import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transfer_cli.report import results_table
from transfer_cli.report.best import commands
from transfer_cli.report.contents import FAILED, Best, Group, Report, Run, TaskRuns
from transfer_cli.report.differing_settings import plain
from transfer_cli.report.untrusted import is_number
from transfer_cli.safe_files import escaped, in_one_line

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


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


def plain_values(value: object) -> Any:
    """Return records, paths and plain values as lists and mappings that JSON can hold."""
    return json.loads(json.dumps(value, default=_record_fields), parse_constant=lambda _: None)


def as_markdown(report: Report) -> str:
    """Return a table for each task, with what must be known of it."""
    parts = [*map(_text, results_table.apart(report))]
    parts += ["\n".join(_markdown(task)) for task in report.tasks]
    if report.problems:
        parts += ["Not shown:", "\n".join(f"- {_text(each)}" for each in report.problems)]
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
    """Return what is written for a value: no text that a spreadsheet would compute."""
    if value is None or is_number(value):
        return value
    text = in_one_line(str(value) if isinstance(value, Path) else plain(value))
    return f"'{text}" if text.startswith(_FORMULA) else text


def _record_fields(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    found = dict(vars(value))
    if isinstance(value, TaskRuns):
        found["lower_is_better"] = value.lower_is_better
    if isinstance(value, Run) and not value.analyses:
        del found["analyses"]
    if isinstance(value, Best):  # the runs themselves are in their groups
        found |= {
            "run": value.run.path,
            "tied": [run.path for run in value.tied],
            "runner_up": value.runner_up and value.runner_up.path,
        }
    return found


def _markdown(task: TaskRuns) -> Iterator[str]:
    columns = results_table.results_table(task)
    yield f"### {_text(task.name)}"
    yield ""
    yield _line(_text(each.heading) for each in columns)
    yield _line(["---", *["---:"] * (len(columns) - 1)])
    for group, (name, *cells) in zip(task.groups, results_table.texts(columns), strict=True):
        first = f"**{_code(name)}** \\*" if group.is_best else _code(name)
        yield _line([first, *map(_text, cells)])
    remarks = [_text(line) for line in results_table.remarks(task)]
    remarks += [
        f"{_code(run.name)}: {_text(run.shortfall)}"
        for run in task.runs
        if run.shortfall is not None
    ]
    if remarks:
        yield ""
        yield from (f"- {line}" for line in remarks)
    if task.best is not None:
        yield ""
        own = _text(results_table.own(task))
        yield f"**Best run by validation**: {_code(str(task.best.run.path))} {own}"
        yield ""
        yield from (f"- {_text(line)}" for line in results_table.why_best(task))
        yield from (f"- {what}: {_code(line)}" for what, line in commands(task.best.run).items())


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return a text as code, which Markdown leaves as it is."""
    return "`" + " ".join(escaped(text).replace("`", "'").split()).replace("|", "\\|") + "`"


def _text(text: str) -> str:
    """Return a text in which Markdown finds nothing to do."""
    line = " ".join(escaped(text).split())
    return "".join(f"\\{each}" if each in "\\`*<>[]|#" else each for each in line)
