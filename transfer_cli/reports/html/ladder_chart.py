"""The chart of a ladder: runs, their law with its interval, and foretold beside measured losses."""

from transfer_cli.reports import formats
from transfer_cli.reports.contents import Ladder
from transfer_cli.reports.html.charts import Chart, Trace, View, log_axis, log_ticks, rounded
from transfer_cli.reports.html.markup import PageColumn, shape
from transfer_cli.reports.ladder import ladder_lines, with_interval

_WORDS = "validation loss, nats a token"


def ladder_chart(ladder: Ladder) -> Chart | None:
    """Return the validation loss over operations; None where there is no law."""
    if not ladder.curve:
        return None
    places = [place for place, _ in ladder.curve]
    curves: list[Trace] = [
        {
            "x": places, "y": [rounded(getattr(expected, end)) for _, expected in ladder.curve],
            "line": {"dashes": "" if end == "loss" else "2 3", "width": 1.5},
            "meta": {"role": "quiet"},
        }
        for end in ("loss", "low", "high")
    ]  # fmt: skip
    foretold = [
        (rung, rung.prediction.loss, with_interval(rung.prediction))
        for rung in (*ladder.came, ladder.target)
        if rung and rung.prediction
    ]
    groups = {
        "ladder": [(rung, rung.loss, f"{rung.loss:.3f}") for rung in ladder.rungs],
        "foretold": foretold,
        "came": [(rung, rung.loss, f"{rung.loss:.3f}") for rung in ladder.came],
    }
    points: list[Trace] = [
        {
            "name": kind, "x": [rung.operations for rung, *_ in members],
            "y": [rounded(loss) for _, loss, _ in members],
            "marker": {"shape": shape(place), "size": 9},
            "meta": {"slot": place, "role": "points"},
        }
        for place, (kind, members) in enumerate(groups.items()) if members
    ]  # fmt: skip
    rows = [(f"{rung.name} ({kind})", formats.flops(rung.operations), text)
            for kind, members in groups.items() for rung, _, text in members]  # fmt: skip
    ticks = log_ticks(places)
    axis = log_axis("floating-point operations", ticks, map(formats.flops, ticks), places)
    return Chart(
        "ladder", "Validation loss over operations",
        "Each point is a run. The line is the law of the ladder, as far as it is believed; between "
        "the dotted ones a further run is expected, in 95 of 100 cases.",
        " ".join(f"{line}." for line in ladder_lines(ladder)),
        [View(_WORDS, [*curves, *points], {"xaxis": axis, "yaxis": {"title": _WORDS}})],
        ["run", *(PageColumn(title, is_number=True) for title in (axis["title"], _WORDS))],
        rows, [kind for kind, members in groups.items() if members],
    )  # fmt: skip
