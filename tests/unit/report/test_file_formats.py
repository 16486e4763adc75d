import csv
import io
from pathlib import Path

import pytest

from transfer_cli.report.contents import FINISHED, Group, Report, Run, TaskRuns
from transfer_cli.report.file_formats import as_csv
from transfer_cli.runs.undeclared_metrics import UNDECLARED


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
