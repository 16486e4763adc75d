"""What the charts of a page show, and the curves that are read from `metrics.jsonl`."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reports
from transfer_cli.earlier_runs import UNDECLARED_METRICS
from transfer_cli.reports import formats
from transfer_cli.reports.contents import Spread, TaskRuns
from transfer_cli.reports.html.charts import cost_charts, label_chart, means, rate_chart
from transfer_cli.reports.html.confidence_charts import confidence_charts
from transfer_cli.reports.html.learning_curves import (
    mean_curve,
    read_curves,
    thin,
    training_chart,
    validation_chart,
)
from transfer_cli.reports.html.markup import COLOURS, dashes, shape


def shown(report):
    (task,) = report.tasks
    curves = {run.name: read_curves(run.path / "metrics.jsonl", 400) for run in task.runs}
    return task, formats.group_names(task), curves


def traces(chart, role, view=0):
    return [trace for trace in chart.views[view].traces if trace["meta"]["role"] == role]


def test_groups_that_share_a_colour_differ_in_dash_or_marker():
    looks = [(place % COLOURS, dashes(place), shape(place)) for place in range(40)]

    assert len(set(looks)) == len(looks)


def test_each_group_has_a_mean_and_its_seeds(tmp_path):
    task, names, curves = shown(reports.sweep_of_schemes(tmp_path))

    chart = validation_chart(task, names, curves)

    assert [view.name for view in chart.views] == [
        "validation error rate", "validation loss", "validation accuracy",
    ]  # fmt: skip
    means = traces(chart, "mean")
    assert [mean["name"] for mean in means] == list(names)
    assert len(traces(chart, "seed")) == 9
    first = [curves[run.name]["validation/error_rate"] for run in task.groups[0].runs]
    end = sum(curve[-1][1] for curve in first) / 3
    assert means[0]["y"][-1] == pytest.approx(end, rel=1e-4)
    *_, accuracy = chart.views  # a share
    assert accuracy.layout["yaxis"]["title"] == "validation accuracy (%)"
    last = [trace["y"][-1] for trace in accuracy.traces if trace["meta"]["role"] == "mean"]
    assert all(50 < percent <= 100 for percent in last)


def test_the_mean_leaves_a_run_out_that_broke_off(tmp_path):
    task, names, curves = shown(reports.sweep_of_schemes(tmp_path))
    [(place, failed)] = [(place, run) for place, group in enumerate(task.groups)
                         for run in group.runs if run.status == "failed"]  # fmt: skip
    short = {**curves, failed.name: read_curves(failed.path / "nothing", 400)}

    whole = traces(training_chart(task, names, curves), "mean")
    without = traces(training_chart(task, names, short), "mean")

    assert whole[place]["y"] == without[place]["y"]


def test_perplexities_that_fall_a_long_way_have_a_logarithmic_axis(tmp_path):
    task, names, curves = shown(reports.language_models(tmp_path))

    perplexity, loss, *_ = validation_chart(task, names, curves).views

    assert perplexity.name == "validation word perplexity"
    assert perplexity.layout["yaxis"]["type"] == "log"
    assert "type" not in loss.layout["yaxis"]


def test_the_front_holds_what_no_smaller_group_beats(tmp_path):
    task, names, _ = shown(reports.sweep_of_schemes(tmp_path))

    chart, operations = cost_charts(task, names)

    assert [chart.name, operations.name] == ["size", "flops"]
    (front,) = traces(chart, "quiet")
    means = {group.trained: [] for group in task.groups}
    for group in task.groups:
        means[group.trained].append(group.measures[task.measure].mean)
    wanted, best = [], math.inf
    for trained in sorted(means):
        if min(means[trained]) < best:
            best = min(means[trained])
            wanted.append(trained)
    assert front["x"] == wanted
    assert len(chart.rows) == 9


def test_groups_that_all_train_as_much_are_not_drawn_against_it(tmp_path):
    task, names, curves = shown(reports.single(tmp_path))

    assert cost_charts(task, names) == []
    assert "chart of 1 group over" in training_chart(task, names, curves).description


def test_energy_is_drawn_where_a_machine_has_told_it(tmp_path):
    task, names, _ = shown(reports.sweep_of_schemes(tmp_path))
    joules = Spread.over([3e4, 4e4])
    groups = [replace(group, joules=joules) for group in task.groups]
    groups[0] = replace(groups[0], joules=Spread.over([2e6]))

    *_, chart = cost_charts(replace(task, groups=tuple(groups)), names)

    assert chart.name == "joules"
    assert "energy" in chart.title
    (points,) = traces(chart, "points")
    assert sorted(set(points["x"])) == [3.5e4, 2e6]
    assert "1 MJ" in chart.views[0].layout["xaxis"]["ticktext"]


@pytest.mark.parametrize("known", [True, False])
def test_all_labels_stand_where_they_are_and_else_to_the_right_of_every_number(tmp_path, known):
    task, _, _ = shown(reports.few_labels(tmp_path))
    for run in task.runs if not known else ():
        run.results.examples.clear()

    chart = label_chart(task)

    lines = traces(chart, "points")
    assert {line["name"] for line in lines} == {"full", "lora", "frozen"}
    for line in lines:
        assert line["x"] == [100, 500, 2000, 4907 if known else 4000]
    axis = chart.views[0].layout["xaxis"]
    assert axis["ticktext"] == ["100", "500", "2,000", "all"]
    some = [group for group in task.groups if group.settings["data.labelled"] is not None]
    assert "“all”" in chart.caption
    assert "“all”" not in label_chart(replace(task, groups=tuple(some))).caption


def test_each_scheme_has_a_line_over_its_rates_and_the_run_to_take_is_ringed(tmp_path):
    task, _, _ = shown(reports.sweep_of_schemes(tmp_path))
    by_validation = replace(task, measure="validation/error_rate")

    chart = rate_chart(by_validation)

    lines = traces(chart, "points")
    assert {line["name"] for line in lines} == {"full", "lora", "adapters"}
    for line in lines:
        assert line["x"] == [3e-4, 1e-3, 3e-3]
        scheme = [group for group in task.groups if group.settings["adaptation"] == line["name"]]
        means = {group.settings["optimizer.lr"]: group.measures["validation/error_rate"].mean
                 for group in scheme}  # fmt: skip
        assert line["y"] == pytest.approx([means[rate] for rate in line["x"]], rel=1e-4)
    axes = chart.views[0].layout
    assert axes["xaxis"]["type"] == "log"
    assert axes["xaxis"]["ticktext"] == ["0.0003", "0.001", "0.003"]
    assert axes["yaxis"]["title"] == "validation error rate (%)"
    [ringed] = [line for line in lines if "ring" in line]
    taken = task.best.run.settings
    assert (ringed["name"], ringed["x"][ringed["ring"]]) == (
        taken["adaptation"], taken["optimizer.lr"],
    )  # fmt: skip


def test_one_rate_is_no_chart_over_rates(tmp_path):
    few, single = reports.few_labels(tmp_path / "few"), reports.single(tmp_path)

    assert rate_chart(few.tasks[0]) is None
    assert rate_chart(single.tasks[0]) is None


def test_a_search_that_tries_no_rate_twice_has_points_without_lines(tmp_path):
    task, _, _ = shown(reports.search(tmp_path, trials=24))

    lines = traces(rate_chart(task), "points")

    assert {line["name"] for line in lines} <= {"full", "lora", "adapters"}
    assert sum(len(line["x"]) for line in lines) == 24
    assert not any("line" in line for line in lines)


def test_of_two_seeds_no_bar_is_drawn_and_that_is_said(tmp_path):
    task, _, _ = shown(reports.sweep_of_schemes(tmp_path))
    two = [replace(group, runs=group.runs[:2], measures={
        name: Spread.over(spread.values[:2]) for name, spread in group.measures.items()
    }) for group in task.groups]  # fmt: skip

    chart = rate_chart(replace(task, groups=tuple(two)))

    bars = [bar for trace in traces(chart, "points") for bar in trace["error_y"]["array"]]
    assert set(bars) == {0}
    assert "without bars: a deviation takes three seeds or more" in chart.caption


def test_no_bar_leaves_what_an_error_rate_can_be():
    task = TaskRuns("task", (), (), "test/error_rate", UNDECLARED_METRICS)
    spreads = [Spread.over(values) for values in ([0, 0, 9], [100, 100, 70], [40, 50, 60])]

    trace = means(task, spreads)

    bars = trace["error_y"]
    lows = [mean - bar for mean, bar in zip(trace["y"], bars["arrayminus"], strict=True)]
    highs = [mean + bar for mean, bar in zip(trace["y"], bars["array"], strict=True)]
    assert (min(lows), max(highs)) == (0, 100)
    assert (lows[2], highs[2]) == (40, 60)


def write(path, records, end=""):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records) + end)
    return path


def test_a_half_written_last_line_is_passed_over(tmp_path):
    assert read_curves(tmp_path / "metrics.jsonl", 100) == {}
    records = [{"kind": "train", "step": step, "loss": 1.0 / step} for step in (1, 2)]
    path = write(tmp_path / "metrics.jsonl", records, '{"kind": "train", "step": 3, "lo')

    assert read_curves(path, 100)["train/loss"] == ((1, 1.0), (2, 0.5))


def test_measures_of_single_classes_and_what_is_no_finite_number_are_left_out(tmp_path):
    path = write(
        tmp_path / "metrics.jsonl",
        [
            {"kind": "validation", "step": 5, "loss": 2.0, "accuracy/city": 0.5, "note": "x"},
            {"kind": "validation", "step": 6, "loss": math.nan, "accuracy": True},
            {"kind": "validation", "step": "7", "loss": 1.0},
            {"kind": "test", "step": 8, "loss": 1.0},
            ["kind"],
        ],
        f'{{"kind": "validation", "step": 9, "loss": {"9" * 400}}}\n'
        f'{{"kind": "validation", "step": {"9" * 40}, "loss": 1}}\n{"[" * 5000}\n',
    )

    assert read_curves(path, 100) == {"validation/loss": ((5, 2.0),)}


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path):
    records = [{"kind": "train", "step": step, "loss": 0.5} for step in range(1, 10_001)]
    path = write(tmp_path / "metrics.jsonl", records)

    points = read_curves(path, 300)["train/loss"]

    assert 100 < len(points) <= 300
    assert (points[0][0], points[-1][0]) == (1, 10_000)


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(5, 400))
def test_thinned_curves_of_different_lengths_keep_steps_in_common(one, other, most):
    curves = [thin(tuple((step, 1.0) for step in range(n)), most) for n in (one, other)]

    for curve, whole in zip(curves, (one, other), strict=True):
        assert len(curve) <= most
        assert (whole == 0) == (curve == ())
    shorter, longer = sorted(curves, key=len)
    if min(one, other) > most:
        common = {step for step, _ in shorter} & {step for step, _ in longer}
        assert len(common) >= min(one, other) * most // (8 * max(one, other))


def test_the_mean_is_over_the_steps_that_all_curves_have():
    assert mean_curve([((1, 2.0), (2, 4.0)), ((2, 8.0), (3, 1.0)), ()]) == ((2, 6.0),)


def calibrated(task, tables):
    """Return a task whose best group has one run with tables on test."""
    (run, *_) = task.groups[0].runs
    results = replace(run.results, tables={"test": tables})
    first = replace(task.groups[0], runs=(replace(run, results=results),))
    return replace(task, groups=(first, *task.groups[1:]))


def test_reliability_and_coverage_are_those_of_the_best_group(tmp_path):
    task, names, _ = shown(reports.sweep_of_schemes(tmp_path))
    empty, full = [0] * 13, [0] * 77
    tables = {
        "reliability": [[4, *empty, 6], [1, *empty, 3], [2, *empty, 8], [0, *empty, 8]],
        "curve": [[4, *full, 5, 1], [1, *full, 4, 1]],
    }

    reliability, coverage = confidence_charts(calibrated(task, tables), names)

    before, after = traces(reliability, "points")
    assert (before["x"], before["y"]) == ([3.3333, 96.667], [25, 50])
    assert (after["name"], after["y"]) == ("after", [0, 100])
    (precision,) = traces(coverage, "points")
    assert precision["x"] == [10, 60, 100]
    assert precision["y"] == [100, 83.333, 60]
    assert confidence_charts(task, names) == [None, None]
    damaged = calibrated(task, {"curve": [[1]], "reliability": "x"})
    assert confidence_charts(damaged, names) == [None, None]
    nothing = {"curve": [[0] * 80] * 2, "reliability": [[0] * 15] * 4}
    assert confidence_charts(calibrated(task, nothing), names) == [None, None]


def test_charts_of_one_group_are_those_of_the_best_and_say_of_which(tmp_path):
    (task,) = reports.sweep_of_schemes(tmp_path).tasks
    tables = {"curve": [[0] * 79 + [4], [0] * 79 + [1]]}
    others = calibrated(replace(task, groups=task.groups[::-1]), tables)  # as sorted otherwise
    first, *_, last = others.groups
    both = replace(others, groups=(*others.groups[:-1], calibrated(task, tables).groups[0]))
    assert last.is_best
    assert not first.is_best

    for shown_task, place in ((others, 0), (both, -1)):
        names = formats.group_names(shown_task)
        _, coverage = confidence_charts(shown_task, names)
        assert coverage.caption.endswith(f"On test: {names[place]}.")
