"""The sections of analyses on a page, and those that others add, each for the analysis of one name.

An analysis without one is shown all the same: its values, its table, its pictures. Where heads
look, and words with colours, only a page can show.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transfer_cli.reports import formats
from transfer_cli.reports.contents import TaskRuns
from transfer_cli.reports.finding import Finding, FindingTable
from transfer_cli.reports.html.markup import (
    Html,
    PageColumn,
    details,
    joined,
    macro,
    note,
    render,
    table,
)
from transfer_cli.reports.results_table import Cell
from transfer_cli.runs.stored_analyses import MOST_ANALYSES, read_picture
from transfer_cli.runs.untrusted import error_reason, is_number
from transfer_cli.safe_files import UnreadableError


@dataclass(frozen=True)
class RunAnalysis:
    """One run's analysis, as a section shows it; run and group are names.

    Args:
        content: The JSON object. It may come from a stranger: any value can be of any kind.
        pictures: What each shows -> the picture, to be put on the page as it is.
    """

    run: str
    group: str
    content: Mapping[str, Any]
    pictures: Mapping[str, Html]


Render = Callable[[Sequence[RunAnalysis]], object]
"""Makes the content of a section; it is escaped unless `reports.html.markup` has made it."""

SECTIONS: dict[str, Render] = {}
"""What shows the analyses of each name."""


def register_section(name: str, render: Render) -> None:
    """Have the analyses called `name` shown by `render`, for the rest of the process."""
    SECTIONS[name] = render


# --- where heads look, and words with colours --------------------------------------------------


def attention_viewer(data: Mapping[str, Any]) -> Html:
    """Return the viewer of what `analysis.attention_maps.attention_view` gives to it."""
    numbers = _numbers(data["heads"], data["kinds"])
    return render(
        "attention.html", data=data, numbers=details("Numbers of all heads", numbers, is_open=False)
    )


def _numbers(heads: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> Html:
    measures = [name for name in heads[0] if name not in ("block", "head")]
    columns = [PageColumn(kinds.get(name, name), is_number=True) for name in measures]
    rows = [
        [
            Cell(f"{head['block']}.{head['head']}", 1000 * head["block"] + head["head"]),
            *(_head_cell(head[name], is_share=name in kinds) for name in measures),
        ]
        for head in heads
    ]
    return table("Heads", [PageColumn("head"), *columns], rows, [False] * len(rows))


def _head_cell(value: float | None, *, is_share: bool) -> Cell:
    if value is None:
        return Cell()
    return Cell(f"{100 * value:.1f} %" if is_share else f"{value:.2f}", value)


_WORD = Html('<span class="word {kind}" style="--share:{share}" title="{title}">{word}</span>')
_LEGEND = Html(
    '<p class="note"><span class="word for" style="--share:1">a line below</span>: the word speaks '
    'for the answer; <span class="word against" style="--share:1">a line above</span>: against it. '
    "The stronger the colour and the thicker the line, the more, by comparison with the strongest "
    "word of the same line.</p>"
)
_TEXT = Html('<div class="card words"><h3>{heading}</h3>{lines}{numbers}</div>')
_LINE = Html("<p><small>{method}</small><br>{words}</p>")


def shaded_words(data: Mapping[str, Any]) -> Html:
    """Return texts of `analysis.attributions` with coloured words, one line for each method."""
    return joined([_LEGEND, *map(_text_card, data["texts"])])


def _text_card(text: Mapping[str, Any]) -> Html:
    scores = text["scores"]
    heading = f"Example {text['example'] + 1:,}: {text['prediction']}"
    if text["label"] is not None:
        heading += f" (right: {text['label']})"
    if text["explained"] != text["prediction"]:
        heading += f", explained: {text['explained']}"
    names = map(_method_title, scores)
    rows = zip(text["words"], *(map(formats.number, values) for values in scores.values()),
               strict=True)  # fmt: skip
    residue = (
        f"Integrated gradients after {text['steps']} steps lack {formats.number(text['residue'])} "
        f"of a change of {formats.number(text['change'])}."
    )
    numbers = table(heading, ["word", *(PageColumn(name, is_number=True) for name in names)], rows)
    return _TEXT.format(
        heading=heading,
        lines=joined(_method_line(name, text["words"], values) for name, values in scores.items()),
        numbers=details("Numbers", joined([numbers, Html("<p>{}</p>").format(residue)]),
                        is_open=False),
    )  # fmt: skip


def _method_title(method: str) -> str:
    return {"gradient_input": "gradient times input"}.get(method, method.replace("_", " "))


def _method_line(method: str, words: Sequence[str], scores: Sequence[float]) -> Html:
    largest = max(map(abs, scores)) or 1.0
    shaded = (
        _WORD.format(
            kind="for" if score > 0 else "against" if score < 0 else "",
            share=f"{abs(score) / largest:.2f}",
            title=formats.number(score),
            word=word,
        )
        for word, score in zip(words, scores, strict=True)
    )
    return _LINE.format(method=_method_title(method), words=Html(" ").join(shaded))


# --- sections ----------------------------------------------------------------------------------

MOST_ROWS = 500
MOST_COLUMNS = 30
MOST_CHARACTERS = 500
"""Of a cell."""

MOST_PICTURE_BYTES = 16 * 2**20
"""Of the pictures of one page, before they are encoded."""

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

    def embed(self, shows: str, path: Path) -> Html:
        """Return a picture with its caption; in its place, why there is none."""
        try:
            content = read_picture(path)
        except (OSError, UnreadableError) as error:
            return note(f"{path.name} is not shown: {error_reason(error)}")
        if len(content) > self._room:
            return note(f"{path.name} is not shown: the page has no room for more pictures")
        self._room -= len(content)
        return picture(shows, content)


def analysis_sections(
    task: TaskRuns, names: Sequence[str], pictures: Pictures
) -> Iterator[tuple[str, str, Html]]:
    """Yield name, title and content of the section of each analysis that runs of a task have."""
    stored = Counter(analysis.name for run in task.runs for analysis in run.analyses)
    most_runs = 20  # of one analysis on one page
    for name in sorted(stored)[:MOST_ANALYSES]:
        analyses = list(islice(_run_analyses(task, names, name, pictures), most_runs))
        title = finding_title(name, Finding.from_json(analyses[0].content))
        more = stored[name] - len(analyses)
        left_out = note(f"Those of {formats.several(more, 'run')} are left out.") if more else None
        yield f"analysis-{name}", title, joined([_section(name, analyses), left_out])


def finding_title(name: str, finding: Finding) -> str:
    """Return what an analysis calls itself."""
    return _cut(finding.title) or name.replace("_", " ").capitalize()


def finding_html(finding: Finding, pictures: Iterable[Html]) -> Html:
    """Return what an analysis found, with its pictures."""
    return joined([*_finding_parts(finding), *pictures])


def picture(shows: str, content: bytes) -> Html:
    """Return a picture with its caption."""
    encoded, caption = base64.b64encode(content).decode(), shows.replace("_", " ")
    return _PICTURE.format(encoded=encoded, caption=caption)


def _run_analyses(
    task: TaskRuns, names: Sequence[str], name: str, pictures: Pictures
) -> Iterator[RunAnalysis]:
    for group, called in zip(task.groups, names, strict=True):
        stored = ((run, analysis) for run in group.runs for analysis in run.analyses)
        for run, analysis in stored:
            if analysis.name == name:
                shown = {what: pictures.embed(what, at) for what, at in analysis.pictures.items()}
                yield RunAnalysis(run.name, called, analysis.content, shown)


def _section(name: str, analyses: Sequence[RunAnalysis]) -> Html:
    if name in SECTIONS:
        try:
            return joined([SECTIONS[name](analyses)])
        except Exception as error:  # others' code, on files that anybody may have written
            why = f"{type(error).__name__}: {error}"
            return note(f"Shown plainly: its own section ends in {why}") + _plain_section(analyses)
    return _plain_section(analyses)


def _plain_section(analyses: Sequence[RunAnalysis]) -> Html:
    shown = [
        finding_html(Finding.from_json(analysis.content), analysis.pictures.values())
        for analysis in analyses
    ]
    if len(shown) == 1:
        return shown[0]
    most_open = 3  # runs that are open from the start; more of them open on demand
    is_open = len(analyses) <= most_open
    return joined(
        details(f"{analysis.group}: {analysis.run}", part, is_open=is_open)
        for analysis, part in zip(analyses, shown, strict=True)
    )


def _finding_parts(finding: Finding) -> Iterator[Html]:
    if finding.summary:
        yield Html("<p>{}</p>").format(finding.summary)
    if finding.view is not None:
        yield _VIEWS[finding.view.kind](finding.view.data)
    if finding.values:
        pairs = [(_cut(name), _cell(value)) for name, value in finding.values.items()]
        yield table("Values", ["what", "value"], pairs[:MOST_ROWS])
    for shown_table in finding.tables:
        if not shown_table.rows or not shown_table.columns:
            continue
        if shown_table.title:
            yield Html("<h3>{}</h3>").format(shown_table.title)
        yield from _shaded(shown_table) if shown_table.is_shaded else _table(shown_table)
    yield from map(note, finding.notes)


def _table(shown: FindingTable) -> Iterator[Html]:
    rows = shown.rows[:MOST_ROWS]
    columns = [PageColumn(_cell(title), is_number=_are_numbers(values))
               for title, *values in zip(shown.columns, *rows, strict=True)]  # fmt: skip
    shown_rows = ([_cell(value) for value in row[:MOST_COLUMNS]] for row in rows)
    yield table(shown.title or "Table", columns[:MOST_COLUMNS], shown_rows)
    if len(rows) < len(shown.rows):
        yield note(f"{len(shown.rows) - len(rows):,} rows are left out.")
    if len(columns) > MOST_COLUMNS:
        yield note(f"{len(columns) - MOST_COLUMNS:,} columns are left out.")


def _are_numbers(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(map(is_number, there))


def _shaded(shown: FindingTable) -> Iterator[Html]:
    corner, *names = shown.columns
    rows = [
        (name, [(_cell(value), min(1.0, max(0.0, value or 0.0))) for value in values])
        for name, *values in shown.rows
    ]
    yield macro("shades.html", "shades", shown.title, corner, names, rows)


def _cell(value: Any) -> str:
    return _cut(formats.cell(value))


def _cut(text: str) -> str:
    return formats.cut(text, MOST_CHARACTERS)
