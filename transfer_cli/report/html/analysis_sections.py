"""The sections of analyses: what was found, drawn by a plugin or plainly."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transfer_cli.report import formats, sections
from transfer_cli.report.contents import TaskRuns
from transfer_cli.report.finding import Finding, FindingTable
from transfer_cli.report.html.markup import (
    Html,
    PageColumn,
    details,
    joined,
    macro,
    note,
    table,
)
from transfer_cli.report.html.views import attention_viewer, shaded_words
from transfer_cli.report.sections import RunAnalysis
from transfer_cli.runs.stored_analyses import MOST_ANALYSES, read_picture
from transfer_cli.runs.untrusted import is_number, reason
from transfer_cli.safe_files import UnreadableError

MOST_RUNS = 20
"""Of one analysis on one page."""

MOST_ROWS = 500
MOST_COLUMNS = 30
MOST_CHARACTERS = 500
"""Of a cell."""

MOST_PICTURE_BYTES = 16 * 2**20
"""Of the pictures of one page, before they are encoded."""

_OPEN = 3
"""Runs that are open from the start; more of them open on demand."""

_PICTURE = Html(
    '<figure class="picture"><img src="data:image/png;base64,{encoded}" alt="{caption}">'
    "<figcaption>{caption}</figcaption></figure>"
)

_VIEWS: Mapping[str, Callable[[Mapping[str, Any]], Html]] = {
    "attention": attention_viewer, "words": shaded_words,
}  # fmt: skip
"""What shows a `FindingView`, by its kind."""


class Pictures:
    """Puts pictures into a page, as long as there is room for them."""

    def __init__(self) -> None:
        self._room = MOST_PICTURE_BYTES

    def embedded(self, shows: str, path: Path) -> Html:
        """Return a picture with its caption; in its place, why there is none."""
        try:
            found = read_picture(path)
        except (OSError, UnreadableError) as error:
            return note(f"{path.name} is not shown: {reason(error)}")
        if len(found) > self._room:
            return note(f"{path.name} is not shown: the page has no room for more pictures")
        self._room -= len(found)
        return picture(shows, found)


def analysis_sections(
    task: TaskRuns, names: Sequence[str], pictures: Pictures
) -> Iterator[tuple[str, str, Html]]:
    """Yield name, title and content of the section of each analysis that runs of a task have."""
    known = {each.name for run in task.runs for each in run.analyses}
    for name in sorted(known)[:MOST_ANALYSES]:
        found = list(islice(_of_runs(task, names, name, pictures), MOST_RUNS))
        title = title_of(name, Finding.from_json(found[0].content))
        yield f"analysis-{name}", title, _section(name, found)


def title_of(name: str, finding: Finding) -> str:
    """Return what an analysis calls itself."""
    return _cut(finding.title) or name.replace("_", " ").capitalize()


def shown_finding(finding: Finding, pictures: Iterable[Html]) -> Html:
    """Return what an analysis found, with its pictures."""
    return joined([*_painted(finding), *pictures])


def picture(shows: str, content: bytes) -> Html:
    """Return a picture with its caption."""
    encoded, caption = base64.b64encode(content).decode(), shows.replace("_", " ")
    return _PICTURE.format(encoded=encoded, caption=caption)


def _of_runs(
    task: TaskRuns, names: Sequence[str], name: str, pictures: Pictures
) -> Iterator[RunAnalysis]:
    for group, called in zip(task.groups, names, strict=True):
        found = ((run, each) for run in group.runs for each in run.analyses if each.name == name)
        for run, each in found:
            embedded = {what: pictures.embedded(what, at) for what, at in each.pictures.items()}
            yield RunAnalysis(run.name, called, each.content, embedded)


def _section(name: str, found: Sequence[RunAnalysis]) -> Html:
    if name in sections.SECTIONS:
        try:
            return joined([sections.SECTIONS[name](found)])
        except Exception as error:  # others' code, on files that anybody may have written
            why = f"{type(error).__name__}: {error}"
            return note(f"Shown plainly: its own section ends in {why}") + _of_all(found)
    return _of_all(found)


def _of_all(found: Sequence[RunAnalysis]) -> Html:
    """Return what an analysis found of each run."""
    made = [
        shown_finding(Finding.from_json(each.content), each.pictures.values()) for each in found
    ]
    if len(made) == 1:
        return made[0]
    is_open = len(found) <= _OPEN
    return joined(
        details(f"{each.group}: {each.run}", part, is_open=is_open)
        for each, part in zip(found, made, strict=True)
    )


def _painted(finding: Finding) -> Iterator[Html]:
    if finding.summary:
        yield Html("<p>{}</p>").format(finding.summary)
    if finding.view is not None:
        yield _VIEWS[finding.view.kind](finding.view.data)
    if finding.values:
        pairs = [(_cut(name), _cell(value)) for name, value in finding.values.items()]
        yield table("Values", ["what", "value"], pairs[:MOST_ROWS])
    for each in finding.tables:
        if not each.rows or not each.columns:
            continue
        if each.title:
            yield Html("<h3>{}</h3>").format(each.title)
        yield from _shaded(each) if each.is_shaded else _table(each)
    yield from map(note, finding.notes)


def _table(found: FindingTable) -> Iterator[Html]:
    rows = found.rows[:MOST_ROWS]
    columns = [PageColumn(_cell(title), is_number=_are_numbers(values))
               for title, *values in zip(found.columns, *rows, strict=True)]  # fmt: skip
    shown_rows = ([_cell(value) for value in row[:MOST_COLUMNS]] for row in rows)
    yield table(found.title or "FindingTable", columns[:MOST_COLUMNS], shown_rows)
    if len(rows) < len(found.rows):
        yield note(f"{len(found.rows) - len(rows):,} rows are left out.")


def _are_numbers(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(map(is_number, there))


def _shaded(found: FindingTable) -> Iterator[Html]:
    """Yield a table whose numbers have a share of a colour behind them."""
    corner, *names = found.columns
    rows = [
        (name, [(_cell(value), min(1.0, max(0.0, value or 0.0))) for value in values])
        for name, *values in found.rows
    ]
    yield macro("shades.html", "shades", found.title, corner, names, rows)


def _cell(value: Any) -> str:
    return _cut(formats.cell(value))


def _cut(text: str) -> str:
    return formats.cut(text, MOST_CHARACTERS)
