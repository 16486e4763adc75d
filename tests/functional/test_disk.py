"""A disk that is full, read-only or lacks a file: one line, and what was written is intact."""

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import pytest

from transfer_cli.runs import checkpoint

LOOP = ("loop.steps=8", "checkpoint.every=3 steps", "loop.evaluate_every=2 steps", "run.dir=run",
        "resume=auto")  # fmt: skip


@pytest.fixture
def text(short_text, tmp_path):
    """Return a text that a test may remove."""
    return shutil.copy(short_text, tmp_path / "text.txt")


@pytest.fixture
def words(deep_words, text):
    """Return the command line of a run on that text, saved after 3, 6 and 8 steps."""
    return (*deep_words, f"data.train={text}", *LOOP)


@pytest.fixture
def spoilt(transfer, at_record):
    """Return how to run a command under which something happens after a step."""

    def call(step, action, *words):
        at_record("before", "train", step + 1, action)
        return transfer(*words)

    return call


@pytest.fixture
def files_up_to():
    """Return how to let no file grow larger, as on a full disk, until the test ends or says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size or soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_intact(step):
    """Assert that the run's newest checkpoint is whole and of this step, and nothing is beside."""
    folder = Path("run/checkpoints")
    assert checkpoint.step_of(checkpoint.newest_good(folder)) == step
    assert not list(folder.glob(".*"))
    checkpoint.verify(folder / "best")


def assert_same(run, whole):
    for name in ("metrics.jsonl", "results.json", "model/weights.safetensors"):
        assert Path(run, name).read_bytes() == Path(whole, name).read_bytes()


@pytest.fixture
def refusal(transfer, tmp_path):
    """Return how to run what is refused and leaves nothing; gives the line that it says."""

    def call(*words):
        line = transfer(*words).refusal()
        assert [path.name for path in tmp_path.iterdir() if path.name != "in.txt"] == []
        return line

    return call


# --- at the start ------------------------------------------------------------------------------


def test_a_place_without_the_right_to_write(refusal, deep_words, monkeypatch):
    """In /proc not even root may write."""
    line = refusal(*deep_words, "run.dir=/proc/run")
    assert "run.dir: /proc/run cannot be written: " in line
    line = refusal(*deep_words, "run.root=/proc")
    assert "run.root: /proc/pretrain cannot be written: " in line
    monkeypatch.setenv("TRANSFER_CACHE", "/proc/cache")
    line = refusal(*deep_words, "run.dir=run")
    assert "Cannot write the cache in /proc/cache" in line


def test_no_space_for_the_first_files(transfer, refusal, deep_words, files_up_to):
    transfer("prepare", *deep_words[1:5], "tokenizer.size=300").ok()

    files_up_to(1000)
    line = refusal(*deep_words, "run.dir=run")

    assert "cannot be written: File too large. Free some space there" in line


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_space_for_the_output(refusal, finetuned, tmp_path, command):
    (tmp_path / "in.txt").write_text("Who ?\n")
    words = (f"run={finetuned}", "output=/dev/full", "device=cpu")

    line = refusal(command, *words, *(["input=in.txt"] if command == "predict" else []))

    assert "/dev/full cannot be written: No space left on device" in line
    assert Path("/dev/full").is_char_device()


# --- full --------------------------------------------------------------------------------------


def test_no_space_for_the_first_checkpoint(transfer, words, files_up_to, read_json):
    transfer(*words, "run.dir=whole").ok()

    files_up_to(Path("whole/model/weights.safetensors").stat().st_size + 1000)
    ended = transfer(*words)
    files_up_to(None)

    assert ended.refusal().startswith("transfer pretrain: run/checkpoints")
    assert not list(Path("run/checkpoints").glob("*step*"))
    assert read_json("run/status.json")["status"] == "failed"
    transfer(*words).ok()
    assert_same("run", "whole")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["train_state.pt", "weights.safetensors", "metrics.jsonl"])
def test_a_disk_that_fills_up_costs_no_more_than_the_steps_since_the_last_save(
    transfer, spoilt, words, files_up_to, what
):
    if what == "metrics.jsonl":
        words = (*words, "optimizer.lr=1e-30")  # no better weights are found, which would be larger
    transfer(*words, "run.dir=whole").ok()
    sizes = {
        "train_state.pt": Path("whole/model/weights.safetensors").stat().st_size + 1000,
        "weights.safetensors": Path("whole/metrics.jsonl").stat().st_size + 8000,
        "metrics.jsonl": Path("whole/config.yaml").stat().st_size // 4,
    }

    ended = spoilt(4, lambda: files_up_to(sizes[what]), *words)
    files_up_to(None)

    place = {"metrics.jsonl": "run/metrics.jsonl"}.get(what, "run/checkpoints")
    ended.refusal(place, "cannot be written", "Free some space there")
    assert_intact(3)
    resumed = transfer(*words).ok()
    assert "going on after step 3" in resumed.err
    assert_same("run", "whole")


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_very_end_costs_no_step(
    transfer, spoilt, words, files_up_to, monkeypatch
):
    transfer(*words, "run.dir=whole").ok()
    from transfer_cli.training.checkpoints import CheckpointWriter

    write = CheckpointWriter.write_model

    def fill(job, *args):
        files_up_to(5000)
        write(job, *args)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointWriter, "write_model", fill)
        ended = transfer(*words)
    files_up_to(None)

    ended.refusal("run/model cannot be written")
    assert_intact(8)
    assert not list(Path("run/model").glob(".*"))
    resumed = transfer(*words).ok()
    assert "going on after step 8" in resumed.err
    assert_same("run", "whole")


# --- read-only ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_that_becomes_read_only_while_a_run_trains(transfer, spoilt, words, monkeypatch):
    transfer(*words, "run.dir=whole").ok()
    mkdir = Path.mkdir

    def refuse(self, *args, **kwargs):
        if self.name.startswith(".step"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        mkdir(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        ended = spoilt(4, lambda: patch.setattr(Path, "mkdir", refuse), *words)

    assert ended.refusal() == (
        "transfer pretrain: run/checkpoints/step-00000006 cannot be written: Read-only file "
        "system. Choose another place"
    )
    assert_intact(3)
    transfer(*words).ok()
    assert_same("run", "whole")


def test_a_run_in_a_read_only_folder_is_not_resumed(transfer, words, monkeypatch):
    transfer(*words, "loop.steps=3").ok()
    before = sorted((path, path.stat().st_mtime_ns) for path in Path("run").rglob("*"))
    system = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_RDWR and Path(path).name == ".lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return system(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    ended = transfer(*words)

    ended.refusal("resume: run cannot be written: Read-only file system")
    assert ended.err.count("\n") == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in Path("run").rglob("*")) == before


def test_a_folder_without_the_right_to_write(transfer, words):
    transfer(*words, "loop.steps=3").ok()
    Path("run/.lock").unlink()
    Path("run").chmod(0o500)
    if os.access("run", os.W_OK):
        pytest.skip("this user may write everywhere")

    ended = transfer(*words)

    Path("run").chmod(0o700)
    ended.refusal("resume: run cannot be written: Permission denied")


# --- gone --------------------------------------------------------------------------------------


def test_a_text_that_has_vanished_is_named(transfer, words, text):
    transfer(*words, "loop.steps=3").ok()
    content = text.read_bytes()
    text.unlink()

    ended = transfer(*words)

    ended.refusal(str(text))
    assert ended.err.count("\n") == 1
    assert_intact(3)
    assert json.loads(Path("run/status.json").read_text()) == {"status": "finished"}
    text.write_bytes(content)
    transfer(*words).ok()


def test_a_start_that_has_vanished_is_named(transfer, adapting, deep, tmp_path):
    base = shutil.copytree(deep, tmp_path / "base")
    words = ("finetune", *adapting("full"), *LOOP, f"init_from={base}")
    transfer(*words, "loop.steps=3").ok()
    base.rename(tmp_path / "elsewhere")

    ended = transfer(*words)

    ended.refusal(f"init_from: there is no folder {base}")
    assert ended.err.count("\n") == 1
    assert_intact(3)
    (tmp_path / "elsewhere").rename(base)
    transfer(*words).ok()
