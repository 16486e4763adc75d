"""What a machine refuses: one line with cause and cure, exit code 2, and nothing half-written."""

import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.functional


@pytest.fixture
def refusal(transfer, tmp_path):
    """Return how to run what is refused; checks the form of the refusal and gives its line."""

    def call(command, *words):
        ended = transfer(command, *words)
        lines = ended.err.splitlines()
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        assert [line for line in lines if line.startswith("transfer ")] == [lines[-1]]
        assert lines[-1].startswith(f"transfer {command}: ")
        assert [path.name for path in tmp_path.iterdir() if path.name != "in.txt"] == []
        return lines[-1]

    return call


@pytest.fixture
def pretrain(tiny, loop, corpus):
    """Return a command line that pretrains a model on text."""
    return ("pretrain", "data=text", f"data.train={corpus}", *tiny, *loop, "loop.steps=2",
            "run.dir=run")  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, not even from root")
def test_a_place_without_the_right_to_write(refusal, pretrain, monkeypatch):
    assert "run.dir: /proc/run cannot be written: " in refusal(*pretrain, "run.dir=/proc/run")
    assert "run.root: /proc/pretrain cannot be written: " in refusal(
        *pretrain[:-1], "run.root=/proc"
    )
    monkeypatch.setenv("TRANSFER_CACHE", "/proc/cache")
    assert "Cannot write the cache in /proc/cache" in refusal(*pretrain)


@contextmanager
def files_up_to(size_bytes):
    """Let no file grow larger: the disk is full, whoever asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_space_for_the_first_files(transfer, refusal, pretrain):
    assert transfer("prepare", *pretrain[1:3], "tokenizer.size=600").code == 0

    with files_up_to(1000):
        line = refusal(*pretrain)

    assert "cannot be written: File too large. Free some space there" in line


def test_no_space_for_a_checkpoint(transfer, pretrain, tmp_path, read_json):
    assert transfer(*pretrain, "run.dir=whole").code == 0
    weights = (tmp_path / "whole" / "model" / "weights.safetensors").read_bytes()

    with files_up_to(len(weights) + 1000):  # the weights find a place, the optimizer's state not
        ended = transfer(*pretrain)
    left = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    status = read_json(tmp_path / "run" / "status.json")
    resumed = transfer("pretrain", "resume=run")

    assert ended.code == 2
    assert "Traceback" not in ended.err
    line = ended.err.splitlines()[-1]
    assert line.startswith("transfer pretrain: run/checkpoints")
    assert "cannot be written" in line
    assert not left
    assert status["status"] == "failed"
    assert resumed.code == 0, resumed.err
    assert (tmp_path / "run" / "model" / "weights.safetensors").read_bytes() == weights


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_space_for_the_output(refusal, finetuned, tmp_path, command):
    words = [f"run={finetuned}", "output=/dev/full", "device=cpu"]
    if command == "predict":
        (tmp_path / "in.txt").write_text("Who ?\n")
        words.append("input=in.txt")

    assert "/dev/full cannot be written: No space left on device" in refusal(command, *words)
    assert Path("/dev/full").is_char_device()


def test_a_run_that_diverges_says_where_and_ends_with_4(transfer, pretrain, tmp_path, read_json):
    ended = transfer(
        *pretrain, "optimizer.lr=1e18", "schedule=constant", "loop.clip=null", "loop.steps=20",
        "loop.evaluate_every=20 steps", "loop.max_bad_steps=2",
    )  # fmt: skip

    assert ended.code == 4, ended.err
    assert "Traceback" not in ended.err
    said = ended.err.splitlines()[-1]
    assert "loss or gradient is not finite" in said
    assert "on examples main" in said
    assert read_json(tmp_path / "run" / "status.json")["status"] == "failed"
