"""What analyses found about a model, as one HTML page that needs nothing but itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transfer_cli.report.html.analysis_sections import picture, plainly, title_of
from transfer_cli.report.html.markup import Html, joined
from transfer_cli.report.page import Section, document


@dataclass(frozen=True)
class Shown:
    """An analysis as the page shows it.

    Args:
        name: What it is called.
        content: See `runs.analyses`.
        pictures: PNGs by what each shows.
        section: What is shown in place of its summary, values and table; None: these.
        script: The script of the section.
    """

    name: str
    content: Mapping[str, Any]
    pictures: Mapping[str, bytes]
    section: Html | None = None
    script: str = ""


def analyses_page(title: str, found: Iterable[Shown]) -> str:
    """Return the page; texts of people and models are shown as texts."""
    sections, scripts = [], []
    for each in found:
        pictures = {shows: picture(shows, content) for shows, content in each.pictures.items()}
        content = plainly(each.content, pictures)
        if each.section is not None:
            content = joined([each.section, *pictures.values()])
        sections.append(Section(each.name, title_of(each.name, each.content), content))
        if each.script and each.script not in scripts:
            scripts.append(each.script)
    return document("analyses.html", title, scripts, sections=sections)
