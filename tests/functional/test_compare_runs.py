"""What compares two runs, bit for bit."""

import json
import shutil

import pytest

from tests.long.compare_runs import differences
from transfer_cli.runs.tensorboard import SummaryWriter

pytestmark = pytest.mark.slow


@pytest.fixture
def copied(pretrained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pretrained, copy)
    return copy


def test_a_copy_of_a_run_is_the_same(pretrained, copied):
    assert differences(pretrained, copied) == []


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

    report = differences(pretrained, copied)

    assert [line.split(":")[0] for line in report] == [
        "checkpoints/.step-00000002.1",
        "model/weights.safetensors",
        "metrics.jsonl",
        "results.json",
        "tensorboard",
    ]
    text = "\n".join(report)
    assert "line 3: " in text
    assert "seen.steps: 6 / 7" in text
    assert "train/loss: two points at step 6" in text
