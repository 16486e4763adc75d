"""A report as a file for other programs: CSV, JSON, Markdown."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from transfer_cli.report import results_table
from transfer_cli.report.contents import FAILED, LEFT_OUT_IF_EMPTY, Group, Report, TaskRuns
from transfer_cli.safe_files import escaped

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


def as_json(report: Report) -> str:
    """Return all of a report."""
    return plain_json(report)


def plain_json(value: Any) -> str:
    """Return dataclasses, paths and plain values as JSON; a number that is not finite is null."""
    return json.dumps(_plain(value), indent=2, allow_nan=False) + "\n"


def as_markdown(report: Report) -> str:
    """Return a table for each task, with what must be known of it."""
    why = results_table.apart(report)
    parts = [] if why is None else [_text(why)]
    parts += ["\n".join(_markdown(task)) for task in report.tasks]
    if report.problems:
        lines = (f"- {_text(each)}" for each in report.problems)
        parts.append("\n".join(["Not shown:", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _record(task: TaskRuns, group: Group) -> dict[str, Any]:
    settings = {f"setting {key}": group.settings.get(key) for key in task.varying}
    record: dict[str, Any] = {
        "task": task.name,
        "group": group.label,
        **settings,
        "runs": len(group.runs),
        "finished": len(group.finished),
        "failed": sum(run.status == FAILED for run in group.runs),
        "learnt_nothing": group.learnt_nothing,
        "seeds": " ".join(str(run.seed) for run in group.finished),
        "best": group.is_best,
        "baseline": results_table.is_baseline(group, task),
        "trained": group.trained,
    }
    spreads = {**group.measures, "seconds": group.seconds, "memory_bytes": group.memory}
    for name, found in spreads.items():
        if name.count("/") > 1:
            continue
        record[name] = found and found.mean
        record[f"{name} deviation"] = found and found.deviation
    if group.against is not None:
        record |= {f"against {name}": value for name, value in asdict(group.against).items()}
    return record


def _cell(value: Any) -> Any:
    """Return what is written for a value: no text that a spreadsheet would compute."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return value
    text = escaped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return f"'{text}" if text.startswith(_FORMULA) else text


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        made = {
            each.name: _plain(found)
            for each in fields(value)
            if (found := getattr(value, each.name)) or LEFT_OUT_IF_EMPTY not in each.metadata
        }
        if isinstance(value, TaskRuns):
            made["lower_is_better"] = value.lower_is_better
        return made
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _markdown(task: TaskRuns) -> Iterator[str]:
    columns = results_table.results_table(task)
    yield f"### {_text(task.name)}"
    yield ""
    yield _line(_text(each.title) for each in columns)
    yield _line(["---", *["---:"] * (len(columns) - 1)])
    for group, (name, *cells) in zip(task.groups, results_table.texts(columns), strict=True):
        first = f"**{_code(name)}** \\*" if group.is_best else _code(name)
        yield _line([first, *map(_text, cells)])
    remarks = [_text(line) for line in results_table.remarks(task)]
    remarks += [
        f"{_code(run.name)}: {_text(what)}" for run, what in results_table.came_to_nothing(task)
    ]
    if remarks:
        yield ""
        yield from (f"- {line}" for line in remarks)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return a text as code, which Markdown leaves as it is."""
    return "`" + " ".join(escaped(text).replace("`", "'").split()).replace("|", "\\|") + "`"


def _text(text: str) -> str:
    """Return a text in which Markdown finds nothing to do."""
    line = " ".join(escaped(text).split())
    return "".join(f"\\{each}" if each in "\\`*<>[]|#" else each for each in line)
