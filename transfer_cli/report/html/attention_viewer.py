"""The viewer of attention on a page: a text, a block, a head, a token; `assets/attention.js`."""

from collections.abc import Mapping, Sequence
from typing import Any

from transfer_cli.report.html.markup import Html, PageColumn, details, render, table
from transfer_cli.report.results_table import Cell


def attention_viewer(data: Mapping[str, Any]) -> Html:
    """Return the viewer of what `analysis.attention.attention_view` gives to it."""
    numbers = _numbers(data["heads"], data["kinds"])
    return render(
        "attention.html",
        data=data,
        numbers=details("Numbers of all heads", numbers, is_open=False),
    )


def _numbers(heads: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> Html:
    """Return the summaries of all heads as a table that can be sorted."""
    measures = [name for name in heads[0] if name not in ("block", "head")]
    columns = [PageColumn(kinds.get(name, name), is_number=True) for name in measures]
    rows = [
        [
            Cell(f"{each['block']}.{each['head']}", 1000 * each["block"] + each["head"]),
            *(_cell(each[name], is_share=name in kinds) for name in measures),
        ]
        for each in heads
    ]
    return table("Heads", [PageColumn("head"), *columns], rows, [False] * len(rows))


def _cell(value: float | None, *, is_share: bool) -> Cell:
    if value is None:
        return Cell()
    return Cell(f"{100 * value:.1f} %" if is_share else f"{value:.2f}", value)
