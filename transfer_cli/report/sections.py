"""Sections that others add to a report's page, each for the analysis of one name.

An analysis without one is shown all the same: its values, its table, its pictures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.report.html.markup import Html


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
"""Makes the content of a section; it is escaped unless `report.html.markup` has made it."""

SECTIONS: dict[str, Render] = {}
"""What shows the analyses of each name."""


def register_section(name: str, render: Render) -> None:
    """Have the analyses called `name` shown by `render`, for the rest of the process."""
    SECTIONS[name] = render
