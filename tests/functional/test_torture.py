"""`scripts/torture.py`, with few kills, and `scripts/compare_runs.py`, with runs that differ."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from transfer_cli.config.locate import conf_dir
from transfer_cli.runs.tensorboard import SummaryWriter

pytestmark = pytest.mark.functional

SCRIPTS = conf_dir().parent / "scripts"


def call(script, *words):
    return subprocess.run(
        [sys.executable, SCRIPTS / script, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_killed_runs_end_as_one_that_was_left_alone(tmp_path):
    ended = call("torture.py", "--kills", 2, "--only", "clm", "--keep", tmp_path / "kept")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "every run is the undisturbed one, bit for bit"
    assert (tmp_path / "kept" / "clm" / "round-1" / "run" / "results.json").is_file()


@pytest.fixture
def copied(pretrained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pretrained, copy)
    return copy


@pytest.mark.slow
def test_a_copy_of_a_run_is_the_same(pretrained, copied):
    ended = call("compare_runs.py", pretrained, copied)

    assert (ended.returncode, ended.stdout) == (0, "the same\n"), ended.stderr


@pytest.mark.slow
def test_each_file_that_differs_is_named_with_the_first_difference(pretrained, copied):
    weights = copied / "model" / "weights.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-2] ^= 1
    weights.write_bytes(damaged)
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[2])
    record["loss"] += 1.0
    (copied / "metrics.jsonl").write_text("\n".join([*lines[:2], json.dumps(record), *lines[3:]]))
    results = json.loads((copied / "results.json").read_text())
    results["seen"]["steps"] += 1
    (copied / "results.json").write_text(json.dumps(results))
    writer = SummaryWriter(copied / "tensorboard")
    writer.add_scalar("train/loss", 1.0, 6)
    writer.close()
    (copied / "checkpoints" / ".step-00000002.1").mkdir()

    ended = call("compare_runs.py", pretrained, copied)

    assert ended.returncode == 1
    assert [line.split(":")[0] for line in ended.stdout.splitlines()] == [
        "checkpoints/.step-00000002.1",
        "model/weights.safetensors",
        "metrics.jsonl",
        "results.json",
        "tensorboard",
    ]
    assert "line 3: " in ended.stdout
    assert "seen.steps: 6 / 7" in ended.stdout
    assert "train/loss: two points at step 6" in ended.stdout
