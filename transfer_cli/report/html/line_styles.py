"""Colour, dashes and marker of each group in charts."""

COLOURS = 8
"""How many the page's style has."""

DASHES = (None, "7 4", "2 3", "7 3 2 3", "12 4")
"""Each an SVG `stroke-dasharray`."""

SHAPES = (
    "M14 6m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "M11 3h6v6h-6z",
    "M14 2l4 4-4 4-4-4z",
    "M14 2l4 7h-8z",
    "M11 2l3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3-3-3z",
    "M14 10l4-7h-8z",
    "M13 2h2v3h3v2h-3v3h-2V7h-3V5h3z",
    "M14 1.5l1.4 3 3.3.4-2.4 2.2.6 3.3-2.9-1.6-2.9 1.6.6-3.3-2.4-2.2 3.3-.4z",
)
"""Each the path of a marker in a box of 28 by 12."""


def line_style(place: int) -> dict[str, object]:
    """Return how a group's line is drawn beside its name: its colour, dashes and marker."""
    return {"slot": place % COLOURS, "dashes": dashes(place), "shape": shape(place)}


def dashes(place: int) -> str | None:
    """Return how the line of a group is dashed: groups of one colour differ in it."""
    return DASHES[(place + place // COLOURS) % len(DASHES)]


def shape(place: int) -> str:
    """Return the marker of a group."""
    return SHAPES[(place + place // COLOURS) % len(SHAPES)]
