"""Colour, dashes and marker of each group in charts."""

COLOURS = 8
"""How many the page's style has."""

DASHES = {
    "solid": None, "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4",
}  # fmt: skip
"""Plotly's name -> SVG's `stroke-dasharray`."""

SYMBOLS = {
    "circle": "M14 6m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "square": "M11 3h6v6h-6z",
    "diamond": "M14 2l4 4-4 4-4-4z",
    "triangle-up": "M14 2l4 7h-8z",
    "x": "M11 2l3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3-3-3z",
    "triangle-down": "M14 10l4-7h-8z",
    "cross": "M13 2h2v3h3v2h-3v3h-2V7h-3V5h3z",
    "star": "M14 1.5l1.4 3 3.3.4-2.4 2.2.6 3.3-2.9-1.6-2.9 1.6.6-3.3-2.4-2.2 3.3-.4z",
}
"""Plotly's name -> the path of the marker in a box of 28 by 12."""


def line_style(place: int) -> dict[str, object]:
    """Return how a group's line is drawn beside its name: its colour, dashes and marker."""
    return {
        "slot": place % COLOURS, "dashes": DASHES[dash(place)], "shape": SYMBOLS[symbol(place)],
    }  # fmt: skip


def dash(place: int) -> str:
    """Return how the line of a group is dashed: groups of one colour differ in it."""
    return [*DASHES][(place + place // COLOURS) % len(DASHES)]


def symbol(place: int) -> str:
    """Return the marker of a group."""
    return [*SYMBOLS][(place + place // COLOURS) % len(SYMBOLS)]
