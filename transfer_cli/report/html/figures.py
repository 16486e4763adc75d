"""Charts on a page: what stands around them, and the choice of groups that they show."""

from collections.abc import Iterable, Sequence

from transfer_cli.report.html.charts import COLOURS, Chart, dash, symbol
from transfer_cli.report.html.markup import Html, data_block, details, table, tag

SHOWN_AT_FIRST = 8
"""Of more than `MANY_GROUPS` groups; the others are shown on demand."""
MANY_GROUPS = 10

_DASH_ARRAYS = {
    "solid": None, "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4",
}  # fmt: skip
_SHAPES = {
    "circle": "M14 6m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "square": "M11 3h6v6h-6z",
    "diamond": "M14 2l4 4-4 4-4-4z",
    "triangle-up": "M14 2l4 7h-8z",
    "triangle-down": "M14 10l4-7h-8z",
    "cross": "M13 2h2v3h3v2h-3v3h-2V7h-3V5h3z",
    "x": "M11 2l3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3-3-3z",
    "star": "M14 1.5l1.4 3 3.3.4-2.4 2.2.6 3.3-2.9-1.6-2.9 1.6.6-3.3-2.4-2.2 3.3-.4z",
}


def swatch(place: int) -> Html:
    """Return a piece of a group's line: its colour, dashes and marker."""
    line = tag("path", d="M0 6h28", stroke_dasharray=_DASH_ARRAYS[dash(place)], class_="stroke")
    mark = tag("path", d=_SHAPES[symbol(place)], class_="fill")
    return tag(
        "svg", line, mark, class_=f"swatch slot-{place % COLOURS}", viewBox="0 0 28 12",
        width=28, height=12, aria_hidden="true",
    )  # fmt: skip


def chart_figure(task_id: str, chart: Chart, groups: int) -> Html:
    """Return a chart: heading, words, the place where it is drawn, and its numbers.

    Args:
        task_id: Of the task, for addresses.
        chart: What is drawn.
        groups: How many groups one can choose from in the legend; 0 where there is no choice.
    """
    address = f"{task_id}-{chart.name}"
    views = [{"name": v.name, "traces": v.traces, "layout": v.layout} for v in chart.views]
    numbers = table(f"Numbers of: {chart.title}", chart.columns, chart.rows)
    plot = tag(
        "div", class_="plot", role="img", aria_label=f"{chart.title}. {chart.description}",
        style=f"min-width:{chart.narrowest}px" if chart.narrowest else None,
    )  # fmt: skip
    if chart.narrowest:
        plot = tag(
            "div", plot, class_="scroll", tabindex="0", role="region", aria_label=chart.title
        )
    return tag(
        "figure",
        tag("figcaption", tag("h4", chart.title), tag("p", chart.caption)),
        tag("div", *_controls(address, chart), class_="controls"),
        plot,
        details("Numbers", numbers if chart.columns else tag("div", class_="numbers")),
        data_block(views),
        class_="chart", id=address, data_legend=task_id if groups else None,
    )  # fmt: skip


def _controls(address: str, chart: Chart) -> Iterable[Html]:
    if len(chart.views) > 1:
        options = [tag("option", view.name, value=at) for at, view in enumerate(chart.views)]
        yield tag("label", "Measure ", tag("select", *options, class_="view", id=f"{address}-view"))
    if chart.name == "search":
        options = [
            tag("option", title, value=share)
            for share, title in ((1, "all"), (0.5, "best half"), (0.2, "best fifth"))
        ]
        yield tag("label", "Show ", tag("select", *options, class_="share", id=f"{address}-share"))
    yield tag("button", "Save picture", type="button", class_="save quiet")


def legend(task_id: str, names: Sequence[str]) -> Html:
    """Return a button for each group, which shows it in the charts or takes it out of them."""
    many = len(names) > MANY_GROUPS
    pressed = ["true" if not many or at < SHOWN_AT_FIRST else "false" for at in range(len(names))]
    buttons = [
        tag("button", swatch(at), tag("span", name), type="button", title=name, data_group=at,
            aria_pressed=pressed[at])
        for at, name in enumerate(names)
    ]  # fmt: skip
    rest = buttons[SHOWN_AT_FIRST:] if many else []
    return tag(
        "div",
        tag("div", *buttons[: len(buttons) - len(rest)], class_="choices"),
        details(f"{len(rest)} more groups", tag("div", *rest, class_="choices")) if rest else None,
        class_="legend", role="group", aria_label="Groups in the charts", data_legend_of=task_id,
    )  # fmt: skip
