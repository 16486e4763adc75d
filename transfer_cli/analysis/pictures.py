"""Pictures of what analyses find, drawn with matplotlib as PNGs where it is installed."""

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

_DOTS = 110
"""Dots an inch of a picture."""

_MOST_TICKS = 24


def lines(
    series: Mapping[str, Sequence[float]],
    at: Sequence[Any],
    *,
    x_title: str,
    y_title: str,
    dashed: Sequence[str] = (),
) -> bytes | None:
    """Return a picture of lines over the same places, or None without matplotlib.

    Args:
        series: The height of each line at each place, by its name; NaN where it has none.
        at: The places; names are spread evenly.
        x_title: What the places are.
        y_title: What the heights are.
        dashed: The names of the lines that are there for comparison.
    """

    def draw(axes: "Axes") -> None:
        for number, (name, heights) in enumerate(series.items()):
            style = "--" if name in dashed else "-"
            axes.plot(at, heights, style, marker="o", markersize=4, color=f"C{number}", label=name)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)

    return _drawn(draw, (6.5, 4.0))


def matrix(
    values: npt.ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    row_title: str = "",
    column_title: str = "",
    bounds: tuple[float, float] | None = None,
) -> bytes | None:
    """Return a picture of a matrix as coloured squares, or None without matplotlib.

    Args:
        values: `[rows, columns]`; negative ones are drawn in a colour of their own.
        rows: Names of the rows.
        columns: Names of the columns.
        row_title: What the rows are.
        column_title: What the columns are.
        bounds: The values of the lightest and the darkest colour; None: those that there are.
    """
    found = np.asarray(values, dtype=float)

    def draw(axes: "Axes") -> None:
        largest = float(np.nanmax(np.abs(found), initial=0.0))
        is_signed = bool((found < 0).any())
        low, high = bounds or ((-largest, largest) if is_signed else (float(found.min()), largest))
        image = axes.imshow(
            found, cmap="RdBu_r" if is_signed else "viridis", vmin=low, vmax=high, aspect="equal"
        )
        axes.figure.colorbar(image, ax=axes, shrink=0.8)
        for axis, names, title in (
            (axes.yaxis, rows, row_title),
            (axes.xaxis, columns, column_title),
        ):
            shown = range(0, len(names), -(-len(names) // _MOST_TICKS) or 1)
            axis.set_ticks(list(shown), [names[at] for at in shown])
            axis.set_label_text(title)

    width = min(9.0, 2.5 + 0.35 * len(columns))
    return _drawn(draw, (width, min(9.0, 1.8 + 0.35 * len(rows))))


def points(
    places: npt.NDArray[np.float64],
    *,
    groups: Sequence[str],
    names: Mapping[int, str],
    titles: Sequence[str],
) -> bytes | None:
    """Return a picture of points in a plane, or None without matplotlib.

    Args:
        places: `[N, 2]`.
        groups: What each point belongs to, shown by colour; empty: they are all alike.
        names: What is written beside some points, by their numbers.
        titles: What the two directions are.
    """

    def draw(axes: "Axes") -> None:
        belongs = np.array(groups or [""] * len(places))
        for number, group in enumerate(dict.fromkeys(belongs.tolist())):
            x, y = places[belongs == group].T
            axes.scatter(x, y, s=8, alpha=0.6, color=f"C{number}", label=group, linewidths=0)
        for at, name in names.items():
            # Without the signs by which matplotlib sets formulas.
            axes.annotate(name, places[at], fontsize=7, parse_math=False)
        axes.set_xlabel(titles[0])
        axes.set_ylabel(titles[1])
        if groups and len(set(groups)) <= _MOST_TICKS:
            axes.legend(frameon=False, fontsize=8, markerscale=2)

    return _drawn(draw, (6.5, 5.5))


def only_drawn(pictures: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return the pictures that there are; say once in a log what the others take."""
    if None in pictures.values():
        log.info("no pictures: they take matplotlib, which `pip install matplotlib` brings")
    return {shows: each for shows, each in pictures.items() if each is not None}


def _drawn(draw: Callable[["Axes"], None], size: tuple[float, float]) -> bytes | None:
    if find_spec("matplotlib") is None:
        return None
    # Without `pyplot`, which keeps every figure and looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.subplots())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS)
    return file.getvalue()
