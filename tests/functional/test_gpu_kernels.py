"""`scripts/gpu/kernels.py`: what a step launches on a GPU stays within its budget."""

import json
import os
import subprocess
import sys

import pytest

from tests.scripting import SCRIPTS

pytestmark = [pytest.mark.functional, pytest.mark.slow]
pytest.importorskip("triton")

BUDGETS = {
    "block": (31, 1130),
    "bf16 residual": (31, 910),
    "no biases": (20, 1045),
    "loss": (2, 480),
}
"""Kernels, and megabytes that they read and write."""


def counted(tmp_path, *words):
    said = tmp_path / "kernels.json"
    command = [sys.executable, SCRIPTS / "gpu" / "kernels.py", *words, "--json", said]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}, check=True)
    return {record["case"]: record for record in json.loads(said.read_text())}


def test_a_block_and_the_loss_stay_within_their_budgets(tmp_path):
    records = counted(tmp_path, *BUDGETS)

    for case, (kernels, megabytes) in BUDGETS.items():
        record = records[case]
        assert record["kernels"] <= kernels, record
        assert record["MB"] <= megabytes, record


def test_the_loss_reads_and_writes_logits_many_at_a_time(tmp_path):
    compiled = counted(tmp_path, "loss", "--compile")["loss"]["compiled"]

    reads_all = [row for row in compiled if "gather" not in row["kernel"]]
    assert reads_all
    assert all(int(size) >= 8 for row in reads_all for size in row["loads"])
