"""What a chart of a report is: traces that the page's script draws, and its words and numbers.

A trace is a mapping: `x` and `y` of its points, None where a line has a gap; `line` and `marker`,
what is drawn; `error_y`, bars; `name`, what a point is called, or a name for each point; `labels`,
words beside the points; `ring`, the point to take. `meta.slot` says which group it shows, or
`slots` for each point: the script gives it a colour that differs from the others on a light and on
a dark ground.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.report.html.markup import Html, PageColumn, table
from transfer_cli.report.results_table import Cell

_LOG_RATIO = 20.0
_FEW_POWERS = 3

Trace = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One of the figures of a chart: its traces, and its axes (`layout`)."""

    name: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart, its words and its numbers.

    Args:
        name: Part of its address on the page.
        caption: What it shows and how to read it.
        description: The same with the outcome, for those who cannot see it.
        views: One at least.
        columns: Of the table of numbers; without them the script lists what is visible.
        lines: What its lines are called, where they are no groups.
    """

    name: str
    title: str
    caption: str
    description: str
    views: Sequence[View]
    columns: Sequence[PageColumn | str] = ()
    rows: Sequence[Sequence[Cell | object]] = ()
    lines: Sequence[str] = ()

    @property
    def numbers(self) -> Html:
        """The table of its numbers."""
        return table(f"Numbers of: {self.title}", self.columns, self.rows)


def rounded(value: float) -> float:
    """Return a value with as many digits as a chart can show."""
    return float(f"{value:.5g}")


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values are easier to tell apart by their logarithm."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_RATIO


def log_axis(
    title: str, ticks: Sequence[float], words: Iterable[str], around: Sequence[float] = ()
) -> dict[str, Any]:
    """Return a logarithmic axis with words at its ticks, and some space around some values."""
    axis: dict[str, Any] = {
        "type": "log", "title": title, "tickvals": ticks, "ticktext": list(words),
    }  # fmt: skip
    if around:
        low, high = math.log10(min(around)), math.log10(max(around))
        edge = max(0.12 * (high - low), 0.2)
        axis["range"] = [round(low - edge, 4), round(high + edge, 4)]
    return axis


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers around values: powers of ten, and some between where they are close."""
    low, high = math.log10(min(values)), math.log10(max(values))
    powers = range(math.floor(low), math.ceil(high) + 1)
    between = (1,) if len(powers) > _FEW_POWERS else (1, 2, 5)
    return [part * 10.0**power for power in powers for part in between]
