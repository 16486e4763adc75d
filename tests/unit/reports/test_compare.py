"""Tasks, groups, the baseline, and which run of several is taken and why."""

import csv
import io
import json
import logging
import math
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests import reports
from tests.fake_runs import ITEMS, blocks, labelled, write_run, write_sweep
from transfer_cli.earlier_runs import UNDECLARED_METRICS
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import Metric
from transfer_cli.reports import formats
from transfer_cli.reports.best import best_run, criterion, learnt_runs
from transfer_cli.reports.collect import best_run_lines, collect, resolve_run
from transfer_cli.reports.compare import compare_tasks
from transfer_cli.reports.contents import (
    Comparison,
    Group,
    Report,
    Run,
    Spread,
    SweepProgress,
    TaskRuns,
)
from transfer_cli.reports.outcomes import with_slices
from transfer_cli.reports.page import page
from transfer_cli.reports.remarks import best_reasons, explanations, next_commands
from transfer_cli.reports.results_table import (
    DIFFERENCE,
    MEMORY,
    NO_P_VALUE,
    P_VALUE,
    PUBLISHED,
    RUNS,
    Cell,
    results_table,
)
from transfer_cli.reports.statistics import mcnemar
from transfer_cli.reports.tables import as_csv, as_markdown, as_terminal_page
from transfer_cli.runs.items import write_items
from transfer_cli.runs.slices import Slice
from transfer_cli.runs.sweep import SweepJob

FULL, LORA = ("adaptation=full",), ("adaptation=lora",)


def report(folder, **asked):
    return compare_tasks(collect([folder]).runs, **asked)


def only(folder, **asked):
    (task,) = report(folder, **asked)
    return task


def seeds(folder, name, count, wrong):
    """Write runs of a scheme, each wrong on an item more than the one before."""
    for seed in range(count):
        path = folder / f"{name}-{seed}"
        write_run(path, seed=seed, adaptation=name, wrong=range(wrong + seed), typed=FULL)


def three_seeds(folder):
    """Write six runs: full is wrong on 4 to 6 of 40 items, lora on 10 to 12, those among them."""
    seeds(folder, "full", 3, 4)
    seeds(folder, "lora", 3, 10)
    return folder


# --- groups


def test_seeds_are_one_group_with_mean_and_deviation(tmp_path):
    task = only(three_seeds(tmp_path))

    full, lora = task.groups
    assert [(group.label, group.is_best) for group in task.groups] == [
        ("adaptation=full", True), ("adaptation=lora", False),
    ]  # fmt: skip
    assert task.varying == ("adaptation",)
    assert full.measures["test/error_rate"].values == (10.0, 12.5, 15.0)
    assert full.measures["test/error_rate"].mean == pytest.approx(12.5)
    assert full.measures["test/error_rate"].deviation == pytest.approx(2.5)
    assert (full.trained, lora.trained) == (1000, 80)
    assert full.seconds.mean == pytest.approx(11.0)
    assert full.memory.mean == 3 * 2**20
    assert task.labels == ("city", "person")
    assert task.name == "finetune on sample_questions"


@pytest.mark.parametrize(
    ("sort", "order", "lower_is_better", "difference"),
    [("test/accuracy", ["full", "lora"], False, -0.15), ("trained", ["lora", "full"], True, 15)],
)
def test_costs_and_measures_sort_in_their_direction(
    tmp_path, sort, order, lower_is_better, difference
):
    task = only(three_seeds(tmp_path), sort=sort.removeprefix("test/"))

    assert (task.sort, task.lower_is_better) == (sort, lower_is_better)
    assert task.measure == (sort if "/" in sort else "test/error_rate")
    assert [group.settings["adaptation"] for group in task.groups] == order
    [(full, lora)] = [sorted(task.groups, key=lambda group: group.label)]
    assert (full.is_best, lora.is_best) == (True, False)
    assert lora.against.difference == pytest.approx(difference)


def with_span_f1(folder, adaptation, value):
    """Write a run whose objective, not one of ours, has a metric of its own."""
    metrics = [
        Metric("loss", higher_is_better=False, unit="nats", per_example=True),
        Metric("span_f1", higher_is_better=True, unit="percent", headline=True),
    ]
    results = {
        "measures": {"test": {"loss": 1.0, "span_f1": value}},
        "metrics": [asdict(metric) for metric in metrics],
    }
    write_run(folder / adaptation, adaptation=adaptation, results=results, typed=FULL)


def test_a_metric_of_another_objective_is_the_headline_in_its_direction_and_unit(tmp_path):
    with_span_f1(tmp_path, "full", 60.0)
    with_span_f1(tmp_path, "lora", 70.0)

    task = only(tmp_path)

    assert task.measure == "test/span_f1"
    assert not task.lower_is_better
    assert [group.measures["test/span_f1"].mean for group in task.groups] == [70.0, 60.0]
    assert formats.axis_words(task, task.measure) == "test span f1 (%)"
    # Not a sum over items: what is one is tested in its place.
    assert task.groups[0].against.measure == "test/loss"


def test_few_labels_are_settings_of_one_task_and_paths_are_none(tmp_path):
    for place, count in enumerate((100, None)):
        write_run(
            tmp_path / str(place), data__labelled=count, data_dir=f"/data/{place}", device="cpu"
        )

    task = only(tmp_path)

    assert task.varying == ("data.labelled",)
    assert {group.label for group in task.groups} == {"data.labelled=100", "data.labelled=null"}


def taught(folder, name, teachers, **changed):
    """Write a run that learns from others, which its config names in two places."""
    write_run(
        folder / name, adaptation="distil", typed=("adaptation=distil", "adaptation.teachers=x"),
        adaptation__teachers=teachers, losses__rest__teachers=teachers[:], **changed,
    )  # fmt: skip


def test_runs_with_teachers_of_their_own_for_each_seed_are_one_group(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"full-{seed}", seed=seed)
        taught(tmp_path, f"distil-{seed}", [f"full-{seed}", f"lora-{seed}"], seed=seed)

    groups = only(tmp_path).groups

    assert {group.label: len(group.runs) for group in groups} == {
        "adaptation=full": 3, "adaptation=distil": 3,
    }  # fmt: skip


def test_other_teachers_of_a_seed_are_another_group(tmp_path):
    for seed in range(2):
        for name in ("far", "near"):
            taught(tmp_path, f"{name}-{seed}", name, seed=seed)

    groups = only(tmp_path).groups

    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1], [0, 1]]
    assert all("adaptation.teachers" in group.label for group in groups)


def test_teachers_of_the_same_report_are_told_apart_by_what_they_are(tmp_path):
    for seed in range(2):
        for name in ("full", "lora"):
            write_run(tmp_path / f"{name}-{seed}", seed=seed, adaptation=name)
            teacher = str(tmp_path / f"{name}-{seed}")
            taught(tmp_path, f"from-{name}-{seed}", teacher, seed=seed)

    groups = only(tmp_path).groups

    assert [len(group.runs) for group in groups] == [2] * 4


def test_a_run_outside_of_sweeps_is_not_taken_for_one_on_the_data_of_another(tmp_path):
    write_run(tmp_path / "stray", command="analyze", data=None)
    for runs in (["stray"], ["run", "stray"]):
        if "run" in runs:
            write_run(tmp_path / "run")

        tasks = report(tmp_path)

        assert sorted(run.path.name for task in tasks for run in task.runs) == runs
        (stray,) = (task for task in tasks if task.runs[0].path.name == "stray")
        assert "data._target_" not in stray.runs[0].settings


def test_another_objective_of_the_same_task_is_compared_and_its_start_is_named(tmp_path):
    for name, start, target in (
        ("full", "causal", "classification.Classification"), ("pet", "masked", "cloze.Cloze"),
    ):  # fmt: skip
        path = write_run(
            tmp_path / name, adaptation=name, init_from=start,
            objective___target_=f"transfer_cli.objectives.{target}",
        )  # fmt: skip
        results = json.loads((path / "results.json").read_text())
        results["task"] = {"name": "classification", "expected": "label"}
        (path / "results.json").write_text(json.dumps(results))

    task = only(tmp_path)

    assert [group.against.test for group in task.groups if group.against] == ["McNemar"]
    assert all("init_from=" in group.label for group in task.groups)


def test_runs_of_other_commands_data_or_labels_are_apart(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", data__world=7)
    write_run(tmp_path / "c", command="pretrain")
    other = write_run(tmp_path / "d")
    results = json.loads((other / "results.json").read_text())
    (other / "results.json").write_text(json.dumps(results | {"labels": ["x", "y", "z"]}))

    tasks_found = report(tmp_path)

    assert len(tasks_found) == 4
    assert len({task.name for task in tasks_found}) == 4
    assert all(task.baseline is None and not task.groups[0].is_best for task in tasks_found)


def test_a_run_that_did_not_end_is_in_its_group_and_counts_for_nothing(tmp_path):
    three_seeds(tmp_path)
    write_run(tmp_path / "broken", seed=9, status="failed", reason="out of memory", typed=FULL)

    full, _ = only(tmp_path).groups

    assert [run.status for run in full.runs] == ["finished"] * 3 + ["failed"]
    assert len(full.measures["test/error_rate"].values) == 3


def test_runs_that_are_all_unfinished_make_a_table_without_numbers(tmp_path):
    write_run(tmp_path / "a", status="failed", reason="so")
    write_run(tmp_path / "b", status="stopped", adaptation="lora")

    task = only(tmp_path)

    assert (task.measure, task.baseline) == ("", None)
    assert [group.measures for group in task.groups] == [{}, {}]


def test_a_job_without_a_directory_joins_the_group_of_its_twin(tmp_path):
    write_sweep(
        tmp_path / "sweep",
        SweepJob(0, ("adaptation=full", "seed=0"), outcome="done"),
        SweepJob(1, ("adaptation=full", "seed=1"), outcome="failed", reason="no memory"),
        SweepJob(2, ("adaptation=x", "seed=0"), outcome="failed", reason="no such preset"),
        SweepJob(3, ("adaptation=frozen", "seed=0")),
    )
    write_run(tmp_path / "sweep" / "0")

    full, other = only(tmp_path).groups

    assert [(run.number, run.status, run.seed) for run in full.runs] == [
        (0, "finished", 0), (1, "failed", 1),
    ]  # fmt: skip
    assert (other.label, other.runs[0].reason) == ("adaptation=x", "no such preset")


def test_measures_of_another_kind_are_passed_over(tmp_path):
    test = {"error_rate": "low", "loss": True, "x": math.nan, "accuracy": 1}
    write_run(tmp_path / "run", results={"measures": {"test": test, "x": 3}})

    (run,) = collect([tmp_path]).runs

    assert run.results.by_name == {"test/accuracy": 1.0}


def test_a_spread_over_numbers_that_are_not_finite_has_no_deviation():
    assert Spread.over([math.inf, 1.0]).deviation is None
    assert Spread.over([1.0, None]).values == (1.0,)
    assert Spread.over([]) is None


# --- the baseline


def test_full_fine_tuning_is_the_baseline_even_where_it_is_not_the_best(tmp_path):
    write_run(tmp_path / "full", wrong=range(9), typed=FULL)
    write_run(tmp_path / "lora", adaptation="lora", wrong=range(1), typed=LORA)

    task = only(tmp_path)

    assert task.baseline == "adaptation=full"
    assert task.groups[0].label == "adaptation=lora"
    comparison = task.groups[0].against
    assert (comparison.difference, comparison.test, comparison.items) == (-20.0, "McNemar", ITEMS)
    assert comparison.p == mcnemar(8, 0)
    assert comparison.low < -20 < comparison.high < 0
    assert comparison.corrected is None
    assert task.groups[1].against is None


def test_without_full_fine_tuning_the_best_is_the_baseline(tmp_path):
    for rate in (0.1, 0.2, 0.3):
        write_run(tmp_path / str(rate), wrong=range(int(rate * 20)), optimizer__lr=rate)

    task = only(tmp_path)

    assert task.baseline == "optimizer.lr=0.1"
    assert [group.against is None for group in task.groups] == [True, False, False]
    tests = [group.against for group in task.groups[1:]]
    assert [(test.p, test.corrected) for test in tests] == [(0.5, 0.5), (0.125, 0.25)]


def test_groups_of_seeds_are_compared_by_a_bootstrap(tmp_path):
    comparison = only(three_seeds(tmp_path)).groups[1].against

    assert comparison.test == "bootstrap"
    assert comparison.measure == "test/error_rate"
    assert comparison.difference == pytest.approx(15.0)
    assert 0 < comparison.low < 15 < comparison.high
    assert comparison.p < 0.05
    assert comparison.baseline == "adaptation=full"


def test_of_two_seeds_nothing_is_drawn_and_that_is_said_once(tmp_path):
    seeds(tmp_path, "full", 2, 4)
    seeds(tmp_path, "lora", 2, 10)

    task = only(tmp_path)
    shown = str(as_terminal_page(Report((task,)), None))

    assert all(measure.deviation is None for g in task.groups for measure in g.measures.values())
    comparison = task.groups[1].against
    told = (comparison.low, comparison.high, comparison.p, comparison.corrected)
    assert told == (None, None, None, None)
    assert not any(sign in shown for sign in ("±", "[", "95 %"))
    assert shown.count("takes three seeds or more") == 1
    lora = next(line for line in shown.splitlines() if line.startswith("  adaptation=lora"))
    assert NO_P_VALUE in lora.split()


@pytest.mark.parametrize(("count", "told"), [(1, False), (2, False), (4, True)])
def test_the_fewest_seeds_of_both_sides_decide_and_uneven_ones_are_named(tmp_path, count, told):
    seeds(tmp_path, "full", 3, 4)
    seeds(tmp_path, "lora", count, 10)

    task = only(tmp_path)
    comparison = task.groups[1].against

    assert (comparison.p is not None, comparison.low is not None) == (told, told)
    assert comparison.difference > 0
    shown = ", ".join(map(str, range(count)))
    assert [note for note in task.notes if f"lora ({shown})" in note and "full (0, 1, 2)" in note]


def test_a_p_that_is_not_told_corrects_no_other(tmp_path):
    three_seeds(tmp_path)
    write_run(tmp_path / "frozen", adaptation="frozen", wrong=range(20), typed=FULL)

    against = {group.label: group.against for group in only(tmp_path).groups}

    assert against["adaptation=frozen"].p is None
    assert against["adaptation=lora"].corrected is None


def test_a_group_of_three_is_drawn_beside_one_of_two(tmp_path):
    three_seeds(tmp_path)
    seeds(tmp_path, "frozen", 2, 20)

    shown = str(as_terminal_page(Report((only(tmp_path),)), None))

    assert "12.50 ± 2.50" in shown
    assert "51.25 ±" not in shown
    assert shown.count("takes three seeds or more") == 1


def test_a_baseline_is_found_by_its_words(tmp_path):
    three_seeds(tmp_path)

    task = only(tmp_path, baseline="adaptation=lora optimizer.lr=1e-3")

    assert task.baseline == "adaptation=lora"
    assert task.groups[0].against.difference == pytest.approx(-15.0)


def test_of_several_baselines_each_group_has_that_with_its_other_settings(tmp_path):
    for rate in (0.1, 0.2):
        for name, wrong in (("full", 4), ("lora", 8)):
            path = tmp_path / f"{name}-{rate}"
            typed = (f"adaptation={name}", f"optimizer.lr={rate}")
            count = round(wrong * 10 * rate)
            write_run(path, adaptation=name, optimizer__lr=rate, wrong=range(count), typed=typed)

    task = only(tmp_path, baseline="adaptation=full")

    assert task.baseline == "adaptation=full"
    against = {g.label: g.against and g.against.baseline for g in task.groups}
    assert against == {
        "adaptation=full optimizer.lr=0.1": None,
        "adaptation=full optimizer.lr=0.2": None,
        "adaptation=lora optimizer.lr=0.1": "adaptation=full optimizer.lr=0.1",
        "adaptation=lora optimizer.lr=0.2": "adaptation=full optimizer.lr=0.2",
    }


def test_a_baseline_with_another_rate_of_its_own_has_the_other_settings(tmp_path):
    for labels in (50, 100):
        for name, rate in (("full", 1e-4), ("lora", 1e-3)):
            write_run(
                tmp_path / f"{name}-{labels}", adaptation=name, optimizer__lr=rate,
                loop__batch=labels, typed=(f"adaptation={name}", f"loop.batch={labels}"),
            )  # fmt: skip

    task = only(tmp_path, baseline="adaptation=full")

    against = {g.label: g.against.baseline for g in task.groups if g.against}
    for labels in (50, 100):
        assert against[f"adaptation=lora loop.batch={labels} optimizer.lr=0.001"] == (
            f"adaptation=full loop.batch={labels} optimizer.lr=0.0001"
        )


# --- what cannot be compared


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Path.unlink, "without items.jsonl"),
        (lambda file: write_items(file, labelled((), count=30)), "not judged on the same items"),
        (lambda file: file.write_text(file.read_text().replace("0.25", "NaN", 1)),
         "losses are not finite"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_compared_are_not_and_the_reason_is_said(tmp_path, change, why):
    three_seeds(tmp_path)
    change(tmp_path / "lora-1" / "items.jsonl")

    task = only(tmp_path, sort="loss")

    assert [group.against for group in task.groups] == [None, None]
    assert any(why in note for note in task.notes)


def test_items_drawn_by_the_seed_are_compared_seed_by_seed(tmp_path):
    for seed in range(3):
        for name, wrong in (("full", 4), ("lora", 12)):
            write_run(
                tmp_path / f"{name}-{seed}", seed=seed, adaptation=name, wrong=range(wrong),
                items=labelled(range(wrong), count=ITEMS + seed),
            )  # fmt: skip

    comparison = only(tmp_path).groups[1].against

    assert comparison.test == "bootstrap"
    assert comparison.items == 3 * ITEMS + 3
    assert comparison.difference > 15


@pytest.mark.parametrize(
    "content",
    ["{}\n", "nonsense\n", '{"split": "test"}\n', "[" * 9000,
     '{"split": "test", "label": 1e999}\n', "\n"],
)  # fmt: skip
def test_damaged_items_are_said_to_be(tmp_path, content):
    three_seeds(tmp_path)
    (tmp_path / "full-1" / "items.jsonl").write_text(content)

    assert any("items.jsonl: line 1" in note for note in only(tmp_path).notes)


def test_language_models_are_compared_by_the_perplexity_of_their_blocks(tmp_path):
    losses = {"small": [25.0, 31.0, 28.0, 30.0], "large": [20.0, 26.0, 24.0, 25.0]}
    for name, nats in losses.items():
        mean = sum(nats) / 40
        measures = {"loss": mean, "word_perplexity": math.exp(sum(nats) / 20)}
        by_split = {"validation": measures, "test": measures}
        results = {"measures": by_split, "labels": [], "parameters": {"trainable": 5}}
        write_run(
            tmp_path / name, command="pretrain", model__width=len(name) * nats[0],
            results=results, items=blocks(nats),
            objective___target_="transfer_cli.objectives.causal_lm.CausalLM",
        )  # fmt: skip

    task = only(tmp_path)

    best, other = task.groups
    assert task.measure == "test/word_perplexity"
    expected = math.exp(114 / 20) - math.exp(95 / 20)
    assert other.against.difference == pytest.approx(expected)
    assert other.against.low < expected < other.against.high
    assert (other.against.test, other.against.items) == ("bootstrap", 4)
    assert task.errors == ()
    assert best.is_best


def test_modes_of_an_objective_are_not_compared(tmp_path):
    for mode in ("detect", "replace"):
        write_run(tmp_path / mode, command="pretrain", objective__mode=mode)

    names = [task.name for task in report(tmp_path)]

    assert [name.partition(" (")[2] for name in names] == [
        "objective.mode=detect)", "objective.mode=replace)",
    ]  # fmt: skip


def test_a_measure_that_is_no_sum_over_items_is_compared_by_the_error_rate(tmp_path):
    for name in ("full", "lora"):
        path = write_run(tmp_path / name, adaptation=name, wrong=range(len(name)))
        results = json.loads((path / "results.json").read_text())
        results["measures"]["test"]["macro_f1"] = 0.5 + (name == "lora") / 4
        (path / "results.json").write_text(json.dumps(results))

    task = only(tmp_path, sort="macro_f1")

    assert [group.is_best for group in task.groups] == [True, False]
    assert task.groups[0].against.measure == "test/error_rate"
    assert any("test/error_rate" in note for note in task.notes)


def test_runs_of_one_seed_are_told_from_runs_of_several(tmp_path):
    for place in range(2):
        write_run(tmp_path / str(place), seed=4)

    assert any("same seed" in note for note in only(tmp_path).notes)


# --- what most get wrong


def test_errors_that_most_runs_share_come_with_what_was_said(tmp_path):
    write_run(tmp_path / "a", wrong=[3, 7], seed=0)
    write_run(tmp_path / "b", wrong=[3, 7], seed=1)
    write_run(tmp_path / "c", wrong=[3, 9], seed=2)

    errors = only(tmp_path).errors

    assert [(mistake.text, mistake.wrong, mistake.runs) for mistake in errors] == [
        ("question 3 ?", 3, 3), ("question 7 ?", 2, 3),
    ]  # fmt: skip
    assert errors[1].label == "person"
    assert errors[1].predicted == {"city": 2, "person": 1}


def test_items_of_the_other_split_do_not_count(tmp_path):
    path = write_run(tmp_path / "a", wrong=[1])
    both = [*labelled(range(5), split="validation"), *labelled([1])]
    write_items(path / "items.jsonl", both)

    assert [mistake.text for mistake in only(tmp_path).errors] == ["question 1 ?"]


def several_labels(wrong):
    """Return the items of a task in which no label may be right, and none be said."""
    scored = [replace(item, score=1 - item.wrong) for item in labelled(wrong)]
    return [replace(scored[0], label="", predicted="city"), *scored[1:]]


def test_that_no_label_fits_is_an_answer_that_is_compared_and_sliced(tmp_path):
    path = write_run(tmp_path / "a", items=several_labels([0, 1]))
    (run,) = collect([path]).runs

    sliced = with_slices(run, {"low": Slice(regex=r" [0-3] ")}, problems := [])

    assert [(error.label, error.text) for error in only(path).errors] == [
        ("(none)", "question 0 ?"), ("person", "question 1 ?"),
    ]  # fmt: skip
    assert sliced.results.by_name["test/accuracy/slice/low"] == 0.5
    assert problems == [f"{path}: no slices of validation: items.jsonl holds nothing of validation"]


def test_of_slices_the_more_right_comes_first_whatever_a_task_measures(tmp_path):
    results = {"measures": {"test": {"loss": 1.0}}, "task": {"name": "regression"}, "metrics": []}
    for name, wrong in {"full": [1, 2], "lora": [1], "frozen": [1, 2, 3]}.items():
        path = tmp_path / name
        write_run(path, adaptation=name, results=results, items=several_labels(wrong))
    runs = [with_slices(run, {"all": Slice(regex="")}, []) for run in runs_of(tmp_path)]

    (task,) = compare_tasks(runs, sort="accuracy/slice/all")

    assert [group.settings["adaptation"] for group in task.groups] == ["lora", "full", "frozen"]
    assert task.metric("test/accuracy/slice/all").display_unit == " %"


@pytest.mark.parametrize(
    ("items", "why"),
    [(blocks([1.0, 2.0]), "neither right nor wrong"),
     ([replace(item, text="") for item in labelled([1])], "no texts"),
     (None, "without items.jsonl")],
)  # fmt: skip
def test_why_a_run_has_no_slices_is_said(tmp_path, items, why):
    path = write_run(tmp_path / "a", items=items)
    if items is None:
        (path / "items.jsonl").unlink()
    (run,) = collect([path]).runs

    sliced = with_slices(run, {"low": Slice(regex="0")}, problems := [])

    assert sliced == run
    assert why in problems[-1]


def runs_of(folder):
    return collect([folder]).runs


def best(folder):
    runs = runs_of(folder)
    return best_run(runs, criterion(learnt_runs(runs)))


def sweep(folder, *validations, **more):
    """Write a sweep with a run for each dict of validation measures, all at chance on test."""
    words = [(f"optimizer.lr={10**-n:g}",) for n in range(1, 1 + len(validations))]
    jobs = [SweepJob(n, overrides, overrides, outcome="done") for n, overrides in enumerate(words)]
    write_sweep(folder, *jobs)
    for n, measures in enumerate(validations):
        given = {"validation": measures, "typed": words[n], "optimizer__lr": 10.0**-n, **more}
        write_run(folder / str(n), **{**given, **measures.get("run", {})})
    return folder


def error(rate, **more):
    return {"error_rate": rate, **more}


def test_validation_chooses_and_the_test_split_does_not(tmp_path):
    write_run(tmp_path / "a", wrong=range(9), validation=error(10.0))
    write_run(tmp_path / "b", wrong=range(1), validation=error(20.0), optimizer__lr=0.1)

    [task] = compare_tasks(runs_of(tmp_path))

    assert best(tmp_path).run.path == tmp_path / "a"
    assert [group.is_best for group in task.groups] == [True, False]
    assert task.groups[0].runs[0].path == tmp_path / "a"
    assert (task.best.run.path, task.sort) == (tmp_path / "a", "validation/error_rate")


def test_what_learnt_nothing_is_never_the_best_and_stands_last(tmp_path):
    write_run(tmp_path / "a", failed="no better than city", validation=error(0.0))
    write_run(tmp_path / "b", validation=error(30.0), optimizer__lr=0.1)
    write_run(tmp_path / "c", status="failed", optimizer__lr=0.2)

    [task] = compare_tasks(runs_of(tmp_path))

    assert (best(tmp_path).run.path, best(tmp_path).among) == (tmp_path / "b", 1)
    assert [group.is_best for group in task.groups] == [True, False, False]
    assert task.groups[1].learnt_nothing == 1


@pytest.mark.parametrize(
    ("settings", "measure", "taken"),
    [
        ({}, "validation/error_rate", "0"),
        ({"loop__monitor": "loss"}, "validation/error_rate", "0"),
        ({"loop__monitor": "accuracy"}, "validation/accuracy", "1"),
        ({"sweep__objective": "validation/loss"}, "validation/loss", "2"),
        ({"sweep__objective": "measures.validation.loss"}, "validation/loss", "2"),
        ({"sweep__objective": "test/error_rate"}, "validation/error_rate", "0"),
        ({"loop__monitor": "accuracy/gone"}, "validation/error_rate", "0"),
    ],
)
def test_a_search_then_the_monitored_then_the_headline_decides(tmp_path, settings, measure, taken):
    sweep(
        tmp_path / "s", error(10.0, accuracy=0.5), error(20.0, accuracy=0.9),
        error(30.0, accuracy=0.1, loss=0.1),
        **settings,
    )  # fmt: skip

    chosen = best(tmp_path / "s")

    assert (chosen.choice.measure, chosen.run.path.name) == (measure, taken)


@pytest.mark.parametrize(
    ("second", "taken", "words"),
    [
        ({"loss": 0.1}, "1", "the lower validation/loss decided"),
        ({"run": {"adaptation": "lora"}}, "1", "the fewer trained parameters decided"),
        ({}, "0", "nothing else tells them apart, and the first was taken"),
    ],
)
def test_a_tie_is_said_and_broken_by_loss_then_by_cost(tmp_path, second, taken, words):
    sweep(tmp_path / "s", error(10.0, loss=0.2), error(10.0, **{"loss": 0.2} | second))

    chosen = best(tmp_path / "s")
    [task] = compare_tasks(runs_of(tmp_path / "s"))

    assert (chosen.run.path.name, chosen.decided) == (taken, words)
    assert [run.path.name for run in chosen.tied] == [str(1 - int(taken))]
    assert [group.is_best for group in task.groups] == [True, False]
    assert f"{words}" in " ".join(task.notes)
    assert any("a tie: " in line for line in best_run_lines(tmp_path / "s"))


def language_model(path, metric, key, value):
    """Write a run that is judged by a metric of running text, with a setting of its own."""
    metrics = [asdict(Metric(metric, higher_is_better=False, unit="perplexity", headline=True))]
    results = {"measures": {"validation": {metric: float(value)}}, "metrics": metrics}
    write_run(path, command="pretrain", results=results, **{key: value})


@pytest.mark.parametrize(
    ("metric", "key", "is_like"),
    [
        ("masked_token_perplexity", "tokenizer__size", False),
        ("masked_token_perplexity", "objective__rate", False),
        ("masked_token_perplexity", "optimizer__lr", True),
        ("token_perplexity", "tokenizer__size", False),
        ("token_perplexity", "objective__rate", True),
        ("word_perplexity", "tokenizer__size", True),
    ],
)
def test_a_measure_of_other_tokens_is_taken_with_a_caveat(tmp_path, caplog, metric, key, is_like):
    write_sweep(tmp_path, *[SweepJob(n, (), (), outcome="done") for n in range(2)])
    for number in range(2):
        language_model(tmp_path / str(number), metric, key, 1 + number)

    taken = resolve_run(str(tmp_path), "init_from")

    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert taken == str(tmp_path / "0")
    assert [key.replace("__", ".") in line for line in warned] == [True] * (not is_like)
    assert all(line in "".join(best_run_lines(tmp_path)) for line in warned)


def test_by_how_much_the_best_is_ahead_and_what_a_cheaper_equal_costs_is_said(tmp_path):
    for name, rate, scheme in (("a", 0.1, "full"), ("b", 0.2, "lora"), ("c", 0.3, "lora")):
        measures = {"error_rate": 12.5 if name == "c" else 10.0, "loss": rate}
        write_run(tmp_path / name, adaptation=scheme, optimizer__lr=rate, validation=measures)

    said = list(best_reasons(best(tmp_path)))

    assert said[1:] == [
        f"a tie: {tmp_path / 'b'} has the same; the lower validation/loss decided",
        f"as good and cheaper: {tmp_path / 'b'} trains 80 parameters, {tmp_path / 'a'} 1,000",
        f"the next, {tmp_path / 'c'}, has 12.50 %, 2.50 points above",
    ]


def test_without_validation_nothing_is_marked_and_that_is_said(tmp_path):
    for name in ("full", "lora"):
        results = {"measures": {"test": {"error_rate": 3.0}}, "labels": ["a", "b"]}
        write_run(tmp_path / name, adaptation=name, results=results)

    [task] = compare_tasks(runs_of(tmp_path))

    assert not any(group.is_best for group in task.groups)
    assert any("nothing was measured on a validation split" in note for note in task.notes)
    assert task.best is None


# --- what to type ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plain", "two words", "it's", "a;b$(c)", "lr=1e-3", "-m", "~root", "+x", "[a,b]"]
)
def test_the_lines_name_the_run_whatever_it_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_run(Path(name))
    [run] = runs_of(Path(f"./{name}"))

    typed = next_commands(run)

    for line in (typed["predict"], typed["export"]):
        word = shlex.split(line)[2]
        assert Path(word).is_dir()
        assert word[0] not in "-~+"
        assert "=" not in word.partition("/")[0]
    assert list(typed) == ["predict", "export", "compare"]


def test_a_pretrained_model_is_adapted_and_not_asked_for_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {"measures": {"validation": {"loss": 1.0}}, "labels": [], "task": None}
    write_run(Path("a b"), command="pretrain", results=results)
    [run] = runs_of(Path("a b"))

    typed = next_commands(run)

    assert shlex.split(typed["adapt"])[2] == "init_from='a b'"
    assert "predict" not in typed


def test_a_sweep_ends_with_its_best_run_and_the_lines_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep(Path("my sweep"), error(20.0), error(12.5))

    assert list(best_run_lines(Path("my sweep"))) == [
        "best run by validation: my sweep/1 (optimizer.lr=0.01)",
        "  validation/error_rate 12.50 %, the lowest of 2 runs that learnt anything; "
        "the test split had no say",
        "  the next, my sweep/0, has 20.00 %, 7.50 points above",
        "  predict: transfer predict 'my sweep/1' FILE",
        "  export:  transfer export 'my sweep/1' FOLDER",
        "compare: transfer report 'my sweep'",
    ]


def test_a_sweep_without_a_best_run_says_why_and_where_to_look(tmp_path):
    sweep(tmp_path / "s", error(0.0), failed="no better than city")

    why, compare = best_run_lines(tmp_path / "s")

    assert why == "no best run: no finished run learnt anything (1 learnt next to nothing)"
    assert compare == f"compare: transfer report {tmp_path / 's'}"


# --- a sweep in the place of a run ---------------------------------------------------------------


def test_a_sweep_stands_for_its_best_run_and_that_is_said_in_a_line(tmp_path, caplog):
    sweep(tmp_path / "s", error(20.0), error(12.5))
    caplog.set_level(logging.INFO)

    assert resolve_run(str(tmp_path / "s"), "run") == str(tmp_path / "s" / "1")
    [line] = caplog.messages
    assert line == (
        f"run: took {tmp_path / 's' / '1'}, the best of 2 runs of that sweep by "
        "validation/error_rate (12.50 %)"
    )


@pytest.mark.parametrize("name", ["s/1", "nowhere", ".", "hf:owner/name"])
def test_all_else_stays_as_it_is(tmp_path, monkeypatch, caplog, name):
    monkeypatch.chdir(tmp_path)
    sweep(Path("s"), error(20.0), error(12.5))

    assert resolve_run(name, "run") == name
    assert not caplog.messages


def refused(folder):
    with pytest.raises(ConfigError) as caught:
        resolve_run(str(folder), "run")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sweep_of_which_nothing_learnt_or_finished_is_refused(tmp_path):
    folder = sweep(tmp_path / "s", error(0.0), error(0.0), failed="no better than city")
    jobs = SweepJob(0, ("a=1",), outcome="failed", reason="why"), SweepJob(1, ("a=2",))
    write_sweep(tmp_path / "t", *jobs)

    assert "without a best run: no finished run learnt anything (2 learnt" in refused(folder)
    assert "no finished run learnt anything (1 failed, 1 left)" in refused(tmp_path / "t")


def test_a_sweep_over_several_tasks_is_refused(tmp_path):
    folder = sweep(tmp_path / "s", error(1.0), error(2.0))
    other = folder / "1" / "config.yaml"
    other.write_text(other.read_text().replace("samples.EmbeddedSample", "trec.Trec"))

    assert "a sweep over 2 tasks, whose runs cannot be compared; name" in refused(folder)
    assert sum(line.startswith("best run by") for line in best_run_lines(folder)) == 2


def test_a_damaged_result_leaves_the_others(tmp_path):
    folder = sweep(tmp_path / "s", error(1.0), error(2.0))

    (folder / "0" / "results.json").write_text(json.dumps({"measures": "none"}))
    assert resolve_run(str(folder), "run") == str(folder / "1")
    (folder / "1" / "results.json").write_text("{")
    assert "without a best run" in refused(folder)


# --- results table -------------------------------------------------------------------------------


MINUS = "\N{MINUS SIGN}"
RUN = Run(Path("run"), "run", "finetune", "finished")
SPREAD = Spread((9.0, 11.0), 10.0, 1.4142)
AGAINST = Comparison("test/error_rate", -2.0, -3.5, -0.5, 0.01, "McNemar", 40, "b", 0.02)


def group(label="a", **more):
    return Group(label, {}, (RUN,), {"test/error_rate": SPREAD}, **more)


def task(*groups, **more):
    return TaskRuns("task", groups, (), "test/error_rate", UNDECLARED_METRICS, **more)


def cells(runs, title):
    (titled,) = [column for column in results_table(runs) if column.title == title]
    return titled.cells


def test_a_column_in_which_nothing_stands_is_left_out():
    titles = [column.title for column in results_table(task(group()))]

    assert titles == ["group", "test/error_rate", "runs", "folder"]


def test_a_tested_difference_has_its_interval_and_a_corrected_p_notes_the_other_one():
    table_of = task(group(against=AGAINST), group("b"), baseline="b")

    (tested, base), p_values = cells(table_of, DIFFERENCE), cells(table_of, P_VALUE)

    assert (tested.text, tested.value) == (f"{MINUS}2.00 [{MINUS}3.50, {MINUS}0.50]", -2.0)
    assert (base.text, base.value) == ("baseline", 0)
    assert p_values == (Cell("0.020", 0.02, "p 0.010 before the correction"), Cell())


def test_without_a_test_the_difference_of_the_means_says_what_it_is():
    better = replace(group(), measures={"test/error_rate": Spread((8.0,), 8.0, None)})

    cell, _ = cells(task(better, group("b"), baseline="b"), DIFFERENCE)

    assert (cell.text, cell.note) == (f"{MINUS}2.00", "Of the means: not compared by item")


@pytest.mark.parametrize(
    ("runs", "text", "finished"),
    [
        ((RUN, RUN), "2", 2),
        ((RUN, replace(RUN, status="failed"), replace(RUN, status="running")),
         "1 of 3 (1 failed, 1 running)", 1),
    ],
)  # fmt: skip
def test_runs_that_are_not_finished_are_counted_apart(runs, text, finished):
    (cell,) = cells(task(replace(group(), runs=runs)), RUNS)

    assert (cell.text, cell.value) == (text, finished)


def test_what_learnt_nothing_is_marked_and_explained():
    weak = replace(RUN, reason="no better than guessing")
    table_of = task(replace(group(), runs=(weak,)))

    (cell,) = cells(table_of, "test/error_rate")

    assert cell.text.endswith(" †")
    assert "† counts runs that learnt next to nothing" in explanations(table_of)
    assert weak.shortfall == "† no better than guessing"
    assert replace(RUN, status="running").shortfall is None


def test_a_reason_of_several_lines_is_shown_in_one():
    failed = replace(RUN, status="failed", reason="no\n\tjob 7  done")
    jobs = ((1, "a=1", "no\n  job 2  done"),)
    sweep = SweepProgress(Path("sweep"), "transfer\nnot shown:", 0, 0, 1, jobs)

    shown = str(as_terminal_page(Report((task(replace(group(), runs=(failed,))),), (sweep,)), None))

    assert "failed: no job 7 done" in shown
    assert "a=1  failed: no job 2 done" in shown
    assert "transfer not shown:" in shown


def test_memory_that_is_not_finite_is_shown_and_not_sorted_by():
    nothing = Spread((float("nan"),), float("nan"), None)

    (cell,) = cells(task(group(memory=nothing)), MEMORY)

    assert cell.value is None


def test_terminal_markdown_and_page_show_the_same_cells(tmp_path):
    report = reports.sweep_of_schemes(tmp_path)
    on_page = re.sub(r"\n([(\[])", r" \1", page(report).replace("<wbr>", ""))
    shown = [str(as_terminal_page(report, None)), as_markdown(report), on_page]

    for column in results_table(report.tasks[0])[1:]:
        for cell in column.cells:
            number = cell.text.partition(" [")[0]
            assert all(number in text for text in shown), cell


def test_shares_and_errors_stand_in_one_unit():
    measures = {"test/accuracy": Spread((0.9,), 0.9, None), "test/error_rate": SPREAD}
    against = Comparison("test/accuracy", 0.021, 0.005, 0.035, 0.01, "McNemar", 40, "b", 0.02)
    first = Group("a", {}, (RUN,), measures, against=against)
    changed = replace(task(first, group("b")), measure="test/accuracy", baseline="b")

    columns = {column.title: column for column in results_table(changed, [*measures])}

    assert columns["test/accuracy"].heading == "test/accuracy (%)"
    assert columns["test/accuracy"].cells[0].text == "90.00"
    assert columns["test/error_rate"].heading == "test/error_rate (%)"
    assert columns[DIFFERENCE].cells[0].text == "+2.10 [+0.50, +3.50]"
    other = Group("b", {}, (RUN,), {"test/accuracy": Spread((0.88,), 0.88, None)})
    cell, _ = cells(replace(changed, groups=(replace(first, against=None), other)), DIFFERENCE)
    assert (cell.text, cell.value) == ("+2.00", pytest.approx(0.02))


def test_what_several_tables_or_runs_share_is_said_once():
    weak = [replace(RUN, name=name, reason="no better than city") for name in "xyz"]
    known = Group("a", {}, tuple(weak), {"test/error_rate": SPREAD})
    said = str(as_terminal_page(Report((task(known), task(known))), None))

    assert said.count("of two runs the mean is shown alone") == 1
    assert said.count("x, y, z") == said.count("no better than city") == 2


@pytest.mark.parametrize(
    "label", ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", 'a "b", c = d']
)  # fmt: skip
def test_what_a_spreadsheet_would_compute_is_quoted_and_all_else_as_it_is(label):
    known = replace(task(Group(label, {"data.label": label}, (RUN,))), varying=("data.label",))

    [row] = csv.DictReader(io.StringIO(as_csv(Report((known,))), newline=""))

    told = label if label.startswith("a") else "'"
    assert row["group"].startswith(told)
    assert row["setting data.label"].startswith(told)


def test_what_a_sweep_says_was_published_stands_in_each_table_beside_the_job_of_that_word(tmp_path):
    jobs = [SweepJob(n, words, outcome="done") for n, words in enumerate((FULL, LORA))]
    sweep = write_sweep(tmp_path / "sweep", *jobs)
    for job, scheme, seed in ((0, "full", 0), (1, "lora", 0)):
        figures = {"adaptation=lora": 3.6, "adaptation=other": 9.9}
        write_run(sweep.run(job), adaptation=scheme, seed=seed, sweep__published=figures)

    task = only(tmp_path)

    (published,) = [column for column in results_table(task) if column.title == PUBLISHED]
    cells = {group.settings["adaptation"]: cell.value for group, cell in zip(
        task.groups, published.cells, strict=True
    )}  # fmt: skip
    assert cells == {"full": None, "lora": 3.6}
    made = Report((task,))
    rows = csv.DictReader(io.StringIO(as_csv(made)))
    assert {row["setting adaptation"]: row[PUBLISHED] for row in rows} == {
        "full": "", "lora": "3.6",
    }  # fmt: skip
    for shown in (str(as_terminal_page(made, None)), as_markdown(made), page(made)):
        assert PUBLISHED in shown
        assert "3.60" in shown
        assert "9.90" not in shown
