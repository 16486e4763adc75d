"""The curve of a range test, drawn with matplotlib as a PNG."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from transfer_cli.engine.lr_finder import RangeTest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADROOM = 0.6
"""How much of the loss's fall is shown above where it began; explosions are cut off."""

_DOTS = 110
"""Dots an inch of the picture."""


def as_png(seen: RangeTest, suggested: int, groups: Mapping[str, float], title: str) -> bytes:
    """Return the curve as a picture, with the suggestion marked.

    Where layer groups have rates of their own, a second panel shows which.
    """
    # Without `pyplot`, which keeps every figure and looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    several = len(set(groups.values())) > 1
    heights = [3.4, 0.5 + 0.22 * len(groups)] if several else [3.4]
    figure = Figure(figsize=(7.5, sum(heights) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    _draw_curve(axes[0], seen, suggested)
    figure.suptitle(title, fontsize=11)
    if several:
        _draw_groups(axes[1], seen, suggested, groups)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS)
    return file.getvalue()


def _draw_curve(axes: "Axes", seen: RangeTest, suggested: int) -> None:
    low, first = min(seen.smoothed), seen.smoothed[0]
    fall = max(first - low, 1e-3 * abs(first), 1e-9)
    rate = seen.rates[suggested]
    lowest = int(np.argmin(seen.smoothed))
    axes.semilogx(seen.rates, seen.losses, ".", color="0.7", markersize=4, label="each step")
    axes.semilogx(seen.rates, seen.smoothed, color="C0", linewidth=2, label="smoothed")
    axes.axvline(rate, color="C3", linewidth=1, linestyle="--")
    axes.plot(
        [rate], [seen.smoothed[suggested]], "o", color="C3",
        label=f"fastest fall: optimizer.lr={rate:.2g}",
    )  # fmt: skip
    axes.plot(
        [seen.rates[lowest]], [seen.smoothed[lowest]], "v", color="0.3",
        label=f"lowest, at {seen.rates[lowest]:.2g}",
    )  # fmt: skip
    axes.set_xlim(seen.rates[0], seen.rates[-1])
    axes.set_ylim(low - 0.1 * fall, first + _HEADROOM * fall)
    axes.set_xlabel("learning rate (optimizer.lr)")
    axes.set_ylabel("training loss (nats a target)")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def _draw_groups(
    axes: "Axes", seen: RangeTest, suggested: int, groups: Mapping[str, float]
) -> None:
    """Show the rates that each group passed through, and the one suggested for it."""
    base = seen.rates[suggested]
    places = range(len(groups))
    for place, rate in zip(places, groups.values(), strict=True):
        scale = rate / base
        passed = [seen.rates[0] * scale, seen.rates[-1] * scale]
        axes.semilogx(passed, [place, place], color="0.8", linewidth=3, solid_capstyle="butt")
        axes.semilogx([rate], [place], "o", color="C3")
        axes.annotate(f"{rate:.2g}", (rate, place), (6, 3), textcoords="offset points", fontsize=8)
    axes.set_yticks(list(places), list(groups), fontsize=8)
    axes.set_ylim(-0.7, len(groups) - 0.3)
    axes.set_xlabel("learning rate of each layer group")
    axes.grid(visible=True, axis="x", alpha=0.3)
