"""The sections of analyses: drawn by a plugin, or plainly."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transfer_cli.report import formats, sections
from transfer_cli.report.contents import TaskRuns
from transfer_cli.report.html.markup import Html, PageColumn, details, joined, note, table
from transfer_cli.report.sections import RunAnalysis
from transfer_cli.runs.analyses import MOST_ANALYSES, read_picture
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
        yield f"analysis-{name}", title_of(name, found[0].content), _section(name, found)


def title_of(name: str, content: Mapping[str, Any]) -> str:
    """Return what an analysis calls itself."""
    given = content.get("title")
    title = _cut(given) if isinstance(given, str) else ""
    return title or name.replace("_", " ").capitalize()


def plainly(content: Mapping[str, Any], pictures: Mapping[str, Html]) -> Html:
    """Return the keys and pictures that every analysis may have."""
    return joined(_plain(RunAnalysis("", "", content, pictures)))


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
            shown = {what: pictures.embedded(what, at) for what, at in each.pictures.items()}
            yield RunAnalysis(run.name, called, each.content, shown)


def _section(name: str, found: Sequence[RunAnalysis]) -> Html:
    failed = None
    if name in sections.SECTIONS:
        try:
            return joined([sections.SECTIONS[name](found)])
        except Exception as error:  # others' code, on files that anybody may have written
            why = f"{type(error).__name__}: {error}"
            failed = note(f"Shown plainly: its own section ends in {why}")
    if len(found) == 1:
        return joined([failed, *_plain(found[0])])
    is_open = len(found) <= _OPEN
    shown = (details(f"{each.group}: {each.run}", joined(_plain(each)), is_open=is_open)
             for each in found)  # fmt: skip
    return joined([failed, *shown])


def _plain(found: RunAnalysis) -> Iterator[Html]:
    """Yield the keys and pictures that every analysis may have."""
    summary, values, rows = (found.content.get(key) for key in ("summary", "values", "table"))
    if isinstance(summary, str):
        yield Html("<p>{}</p>").format(summary)
    if isinstance(values, dict) and values:
        pairs = ((_cut(name), _cell(value)) for name, value in islice(values.items(), MOST_ROWS))
        yield table("Values", ["what", "value"], pairs)
    if isinstance(rows, dict):
        yield from _table(rows.get("columns"), rows.get("rows"))
    yield from found.pictures.values()


def _table(titles: Any, rows: Any) -> Iterable[Html]:
    if not isinstance(titles, list) or not isinstance(rows, list) or not titles:
        return
    titles = titles[:MOST_COLUMNS]
    shown = [row[:MOST_COLUMNS] for row in rows[:MOST_ROWS] if isinstance(row, list)]
    shown = [row for row in shown if len(row) == len(titles)]
    columns = [PageColumn(_cell(title), bool(shown) and all(is_number(row[at]) for row in shown))
               for at, title in enumerate(titles)]  # fmt: skip
    yield table("Table", columns, ([_cell(value) for value in row] for row in shown))
    if len(shown) < len(rows):
        yield note(f"{len(rows) - len(shown):,} rows are left out.")


def _cell(value: Any) -> str:
    return formats.number(value) if isinstance(value, float) else _cut(formats.setting(value))


def _cut(text: str) -> str:
    return formats.cut(text, MOST_CHARACTERS)
