"""The table of a task, on the terminal and in files."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests import reports
from transfer_cli.earlier_runs import UNDECLARED
from transfer_cli.report.contents import (
    FINISHED,
    Comparison,
    Group,
    Report,
    Run,
    Spread,
    SweepProgress,
    TaskRuns,
)
from transfer_cli.report.page import page
from transfer_cli.report.results_table import (
    DIFFERENCE,
    MEMORY,
    RUNS,
    P,
    explanations,
    results_table,
)
from transfer_cli.report.tables import as_csv, as_markdown, as_page

MINUS = "\N{MINUS SIGN}"
RUN = Run(Path("run"), "run", "finetune", "finished")
SPREAD = Spread((9.0, 11.0), 10.0, 1.4142)
AGAINST = Comparison("test/error_rate", -2.0, -3.5, -0.5, 0.01, "McNemar", 40, "b", 0.02)


def group(label="a", **more):
    return Group(label, {}, (RUN,), {"test/error_rate": SPREAD}, **more)


def task(*groups, **more):
    return TaskRuns("task", groups, (), "test/error_rate", UNDECLARED, **more)


def cells(found, title):
    (column,) = [each for each in results_table(found) if each.title == title]
    return column.cells


def test_a_column_in_which_nothing_stands_is_left_out():
    titles = [column.title for column in results_table(task(group()))]

    assert titles == ["group", "test/error_rate", "runs", "folder"]


def test_a_tested_difference_is_written_with_its_interval_and_sorted_by_its_value():
    table_of = task(group(against=AGAINST), group("b"), baseline="b")

    tested, base = cells(table_of, DIFFERENCE)

    assert (tested.text, tested.value) == (f"{MINUS}2.00 [{MINUS}3.50, {MINUS}0.50]", -2.0)
    assert (base.text, base.value) == ("baseline", 0)


def test_a_corrected_p_is_shown_and_the_other_one_noted():
    table_of = task(group(against=AGAINST), group("b"), baseline="b")

    tested, base = cells(table_of, P)

    assert (tested.text, tested.value) == ("0.020", 0.02)
    assert tested.note == "p 0.010 before the correction"
    assert (base.text, base.value) == ("", None)


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


def test_a_reason_of_several_lines_is_shown_in_one():
    failed = replace(RUN, status="failed", reason="no\n\tjob 7  done")
    jobs = ((1, "a=1", "no\n  job 2  done"),)
    sweep = SweepProgress(Path("sweep"), "transfer\nnot shown:", 0, 0, 1, jobs)

    shown = str(as_page(Report((task(replace(group(), runs=(failed,))),), (sweep,)), None))

    assert "failed: no job 7 done" in shown
    assert "a=1  failed: no job 2 done" in shown
    assert "transfer not shown:" in shown


def test_a_run_at_work_came_to_nothing_yet():
    assert replace(RUN, status="running").shortfall is None


def test_memory_that_is_not_finite_is_shown_and_not_sorted_by():
    nothing = Spread((float("nan"),), float("nan"), None)

    (cell,) = cells(task(group(memory=nothing)), MEMORY)

    assert cell.value is None


def test_terminal_markdown_and_page_show_the_same_cells(tmp_path):
    report = reports.sweep_of_schemes(tmp_path)
    on_page = re.sub(r"\n([(\[])", r" \1", page(report).replace("<wbr>", ""))
    shown = [str(as_page(report, None)), as_markdown(report), on_page]

    for column in results_table(report.tasks[0])[1:]:
        for cell in column.cells:
            number = cell.text.partition(" [")[0]
            assert all(number in each for each in shown), cell


def test_shares_and_errors_stand_in_one_unit():
    measures = {"test/accuracy": Spread((0.9,), 0.9, None), "test/error_rate": SPREAD}
    against = Comparison("test/accuracy", 0.021, 0.005, 0.035, 0.01, "McNemar", 40, "b", 0.02)
    first = Group("a", {}, (RUN,), measures, against=against)
    changed = replace(task(first, group("b")), measure="test/accuracy", baseline="b")

    columns = {each.title: each for each in results_table(changed, [*measures])}

    assert columns["test/accuracy"].heading == "test/accuracy (%)"
    assert columns["test/accuracy"].cells[0].text == "90.00"
    assert columns["test/error_rate"].heading == "test/error_rate (%)"
    assert columns[DIFFERENCE].cells[0].text == "+2.10 [+0.50, +3.50]"


def test_what_several_tables_or_runs_share_is_said_once():
    weak = [replace(RUN, name=name, reason="no better than city") for name in "xyz"]
    known = Group("a", {}, tuple(weak), {"test/error_rate": SPREAD})
    said = str(as_page(Report((task(known), task(known))), None))

    assert said.count("of two runs the mean is shown alone") == 1
    assert said.count("x, y, z") == said.count("no better than city") == 2


def report_of(label):
    run = Run(Path("run"), "run", "finetune", FINISHED)
    group = Group(label, {"data.label": label}, (run,))
    task = TaskRuns("finetune on x", (group,), ("data.label",), "test/error_rate", UNDECLARED)
    return Report((task,))


@pytest.mark.parametrize("label", ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1"])
def test_what_a_spreadsheet_would_compute_is_quoted(label):
    [row] = csv.DictReader(io.StringIO(as_csv(report_of(label)), newline=""))

    assert row["group"].startswith("'")
    assert row["setting data.label"].startswith("'")


def test_other_texts_are_as_they_are():
    [row] = csv.DictReader(io.StringIO(as_csv(report_of('a "b", c = d'))))

    assert row["group"] == 'a "b", c = d'
