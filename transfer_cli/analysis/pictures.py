"""Pictures of what analyses find, drawn with matplotlib as PNGs where it is installed."""

import io
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from transfer_cli.reports.finding import Chart, Lines, Matrix, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

_MOST_TICKS = 24


def draw_charts(charts: Mapping[str, Chart]) -> dict[str, bytes]:
    """Return a picture of each chart; none without matplotlib."""
    if charts and find_spec("matplotlib") is None:
        log.info("no pictures: they take matplotlib, which `pip install matplotlib` brings")
        return {}
    return {shows: _picture(chart) for shows, chart in charts.items()}


def new_figure(width: float, height: float) -> "Figure":
    """Return a figure of so many inches, without `pyplot`, which keeps all and wants a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: "Figure") -> bytes:
    """Return a figure as a PNG."""
    file, dots_an_inch = io.BytesIO(), 110
    figure.savefig(file, format="png", dpi=dots_an_inch)
    return file.getvalue()


def _picture(chart: Chart) -> bytes:
    figure = new_figure(*_figure_size(chart))
    axes = figure.subplots()
    match chart:
        case Lines():
            _draw_lines(axes, chart)
        case Matrix():
            _draw_matrix(axes, chart)
        case Points():
            _draw_points(axes, chart)
    return as_png(figure)


def _figure_size(chart: Chart) -> tuple[float, float]:
    """Return width and height in inches."""
    if isinstance(chart, Matrix):
        rows, columns = len(chart.values), len(chart.values[0])
        return min(9.0, 2.5 + 0.35 * columns), min(9.0, 1.8 + 0.35 * rows)
    return (6.5, 4.0) if isinstance(chart, Lines) else (6.5, 5.5)


def _draw_lines(axes: "Axes", chart: Lines) -> None:
    for number, (name, heights) in enumerate(chart.series.items()):
        style = "--" if name in chart.dashed else "-"
        there = np.array(heights, dtype=float)  # of None it makes NaN
        axes.plot(chart.at, there, style, marker="o", markersize=4, color=f"C{number}", label=name)
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel(chart.y_title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _draw_matrix(axes: "Axes", chart: Matrix) -> None:
    values = np.array(chart.values, dtype=float)
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max(initial=0.0))
    is_signed = bool((finite < 0).any())
    least = -largest if is_signed else float(finite.min(initial=largest))
    low, high = chart.bounds or (least, largest)
    image = axes.imshow(
        values, cmap="RdBu_r" if is_signed else "viridis", vmin=low, vmax=high, aspect="equal"
    )
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    titles = (chart.row_title, chart.column_title)
    for axis, size, title in zip((axes.yaxis, axes.xaxis), values.shape, titles, strict=True):
        axis.set_ticks(range(0, size, -(-size // _MOST_TICKS)))
        axis.set_label_text(title)


def _draw_points(axes: "Axes", chart: Points) -> None:
    places = np.array(chart.places)
    belongs = np.array(chart.groups or [""] * len(places))
    for number, group in enumerate(dict.fromkeys(belongs.tolist())):
        x, y = places[belongs == group].T
        axes.scatter(x, y, s=8, alpha=0.6, color=f"C{number}", label=group, linewidths=0)
    for at, name in chart.names.items():
        # Without the signs by which matplotlib sets formulas.
        axes.annotate(name, places[at], fontsize=7, parse_math=False)
    axes.set_xlabel(chart.titles[0])
    axes.set_ylabel(chart.titles[1])
    if chart.groups and len(set(chart.groups)) <= _MOST_TICKS:
        axes.legend(frameon=False, fontsize=8, markerscale=2)
