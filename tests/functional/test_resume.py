"""`resume=RUN`: a run that was stopped ends as one that was not."""

import json
import logging
import pickle
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml

from transfer_cli.runs.records import read_metrics

pytestmark = pytest.mark.functional

KINDS = {
    "clm": ("pretrain", "data=text", "data.train={corpus}", "objective=clm"),
    "mlm": ("pretrain", "data=text", "data.train={corpus}", "objective=mlm"),
    "full": ("finetune", "data=sample_questions", "init_from={pretrained}"),
    "frozen": ("finetune", "data=sample_questions", "init_from={pretrained}", "adaptation=frozen"),
}


class StopAt(logging.Handler):
    """Sends this process a signal once a step is validated, as a cluster or Ctrl-C would."""

    def __init__(self, step, number=signal.SIGTERM):
        super().__init__()
        self._line = f"step {step} validation"
        self._number = number

    def emit(self, record):
        if record.getMessage().startswith(self._line):
            signal.raise_signal(self._number)


@pytest.fixture
def stopped(transfer):
    """Return how to run a command that is told to stop at a step; gives the ended command."""

    def call(step, *words, number=signal.SIGTERM):
        log, stop = logging.getLogger("transfer_cli.commands.job"), StopAt(step, number)
        log.addHandler(stop)
        try:
            return transfer(*words)
        finally:
            log.removeHandler(stop)

    return call


@pytest.fixture
def words_of(corpus, pretrained, tiny, loop):
    """Return the command line of a kind of run."""

    def words(kind, *more):
        command, *rest = (word.format(corpus=corpus, pretrained=pretrained) for word in KINDS[kind])
        model = tiny if command == "pretrain" else ()
        return (command, *rest, *model, *loop, "schedule=constant", *more)

    return words


@pytest.fixture
def copied(short_run, tmp_path):
    """Return a copy of the short run that a test may change."""
    return shutil.copytree(short_run, tmp_path / "copied")


def weights(run, part="model"):
    return (Path(run) / part / "weights.safetensors").read_bytes()


def records(run):
    """Return all records, without the one number that depends on the clock."""
    found = read_metrics(Path(run) / "metrics.jsonl")
    return [{name: record[name] for name in record if "per_second" not in name} for record in found]


def results(run):
    found = json.loads((Path(run) / "results.json").read_text())
    timed = ("seconds", "per_second", "peak_memory_bytes")
    return {name: found[name] for name in found if name not in timed}


def status(run):
    return json.loads((Path(run) / "status.json").read_text())


def wait_for_records(process, run):
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 240
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- stopped and resumed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "step"), [("clm", 3), ("clm", 6), ("mlm", 3), ("full", 3), ("frozen", 3)]
)
def test_a_stopped_run_ends_as_one_that_was_not(transfer, stopped, words_of, kind, step):
    words = words_of(kind, "loop.steps=6")
    assert transfer(*words, "run.dir=whole").code == 0

    ended = stopped(step, *words, "run.dir=run")
    assert ended.code == 75
    assert f"stopped at step {step} with a checkpoint" in ended.err
    assert f"go on with transfer {words[0]} resume=run" in ended.err
    assert status("run")["status"] == "stopped"
    resumed = transfer(words[0], "resume=run")

    assert resumed.code == 0, resumed.err
    assert f"going on after step {step}" in resumed.err
    assert weights("run") == weights("whole")
    assert records("run") == records("whole")
    assert results("run") == results("whole")
    assert status("run")["status"] == "finished"


def test_a_killed_run_goes_on_from_its_last_checkpoint(transfer, words_of):
    words = words_of("clm", "loop.steps=7", "checkpoint.every=4 steps", "checkpoint.keep=0")
    assert transfer(*words, "run.dir=whole").code == 0

    # What a run that was killed in step 6 has left.
    shutil.copytree("whole", "run")
    shutil.rmtree("run/checkpoints/step-00000007")
    shutil.rmtree("run/checkpoints/best")
    shutil.copytree("run/checkpoints/step-00000004", "run/checkpoints/best")
    Path("run/results.json").unlink()
    Path("run/model/weights.safetensors").unlink()
    Path("run/status.json").write_text('{"status": "running"}')
    lines = Path("whole/metrics.jsonl").read_text().splitlines(keepends=True)
    Path("run/metrics.jsonl").write_text("".join(lines[:6]) + lines[6][:20])
    resumed = transfer("pretrain", "resume=run")

    assert resumed.code == 0, resumed.err
    assert "going on after step 4" in resumed.err
    assert weights("run", "checkpoints/step-00000007") == weights(
        "whole", "checkpoints/step-00000007"
    )
    assert records("run") == records("whole")


def test_a_run_killed_before_its_first_checkpoint_begins_again(transfer, words_of):
    words = words_of("clm", "loop.steps=2")
    assert transfer(*words, "run.dir=whole").code == 0
    shutil.copytree("whole", "run")
    shutil.rmtree("run/checkpoints")
    Path("run/results.json").unlink()
    Path("run/status.json").write_text('{"status": "running"}')

    resumed = transfer("pretrain", "resume=run")

    assert resumed.code == 0, resumed.err
    assert "no checkpoint yet: starting from the beginning" in resumed.err
    assert weights("run") == weights("whole")
    assert records("run") == records("whole")


def test_a_run_that_gave_up_does_not_go_on_training(transfer, stopped, words_of):
    words = words_of("clm", "loop.steps=60", "optimizer.lr=1e-30", "loop.patience=1")

    assert stopped(6, *words, "run.dir=run").code == 75
    resumed = transfer("pretrain", "resume=run")
    again = transfer("pretrain", "resume=run")

    assert resumed.code == 0, resumed.err
    assert results("run")["seen"]["steps"] == 6
    assert again.code == 2
    assert "loop.patience" in again.err


def test_ctrl_c_saves_too(stopped, words_of):
    words = words_of("clm", "loop.steps=6", "run.dir=run")

    ended = stopped(3, *words, number=signal.SIGINT)

    assert ended.code == 130
    assert "stopped at step 3 with a checkpoint" in ended.err
    assert "Traceback" not in ended.err
    assert status("run")["status"] == "stopped"
    assert Path("run/checkpoints/step-00000003/train_state.pt").exists()


def test_a_signal_from_the_shell_stops_a_run_with_a_checkpoint(shell, words_of, tmp_path):
    words = words_of("clm", "loop.steps=100000", "loop.evaluate_every=10 epochs")
    codes = {signal.SIGTERM: 75, signal.SIGINT: 130}
    runs = {number: tmp_path / number.name for number in codes}
    started = {number: shell(*words, f"run.dir={run}") for number, run in runs.items()}

    for number, process in started.items():
        wait_for_records(process, runs[number])
        process.send_signal(number)
        _, err = process.communicate(timeout=120)

        assert process.returncode == codes[number], err
        assert "Traceback" not in err
        assert err.splitlines()[-1].startswith("transfer pretrain: stopped at step ")
        assert status(runs[number])["status"] == "stopped"


# --- extended ----------------------------------------------------------------------------------


def test_a_run_that_is_made_longer_ends_as_one_that_was_long_from_the_start(transfer, words_of):
    words = words_of("clm", "checkpoint.keep=0")
    assert transfer(*words, "loop.steps=9", "run.dir=long").code == 0
    assert transfer(*words, "loop.steps=3", "run.dir=run").code == 0

    resumed = transfer("pretrain", "resume=run", "loop.steps=9")

    assert resumed.code == 0, resumed.err
    assert weights("run") == weights("long")
    last = "checkpoints/step-00000009"
    assert weights("run", last) == weights("long", last)
    assert results("run")["seen"] == results("long")["seen"]
    assert yaml.safe_load(Path("run/config.yaml").read_text())["loop"]["steps"] == 9
    assert transfer("pretrain", "resume=run").code == 2


def test_what_was_typed_for_the_run_may_be_typed_again(transfer, copied):
    words = ("objective=clm", "model=tiny", "model.width=32", "seed=0", "schedule=constant")

    ended = transfer("pretrain", f"resume={copied}", *words, "loop.steps=3")

    assert ended.code == 0, ended.err


# --- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("seed=1", "resume: seed=1 contradicts the run's seed=0"),
        ("model.width=64", "resume: model.width=64 contradicts the run's model.width=32"),
        ("optimizer.lr=1", "resume: optimizer.lr=1 contradicts the run's optimizer.lr=0.00025"),
        ("loop.batch=16", "resume: loop.batch=16 contradicts the run's loop.batch=8"),
        ("model=small", "resume: model=small contradicts the run's model=tiny"),
        ("objective=mlm", "resume: objective=mlm contradicts the run's objective=clm"),
        ("data=sample_text", "resume: data=sample_text contradicts the run's data=text"),
        ("+objective@losses.lm=clm", "resume: +objective@losses.lm=clm would change the run"),
    ],
)
def test_what_contradicts_the_run_is_refused_by_name(transfer, copied, typed, message):
    ended = transfer("pretrain", f"resume={copied}", "loop.steps=4", typed)

    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert status(copied)["status"] == "finished"


def test_a_finished_run_is_not_resumed(transfer, copied):
    before = sorted((path, path.stat().st_mtime_ns) for path in copied.rglob("*"))

    ended = transfer("pretrain", f"resume={copied}")

    assert ended.code == 2
    assert f"resume: {copied} is finished after 2 steps" in ended.err
    assert "loop.steps=4" in ended.err
    assert sorted((path, path.stat().st_mtime_ns) for path in copied.rglob("*")) == before


def test_a_run_of_another_command_is_not_resumed(transfer, copied):
    ended = transfer("finetune", f"resume={copied}")

    assert ended.code == 2
    assert f"{copied} is a run of pretrain: type transfer pretrain resume={copied}" in ended.err


@pytest.mark.parametrize(
    ("place", "message"),
    [("nothing", "resume: there is no folder nothing"), (".", "resume: . is no run directory")],
)
def test_what_is_no_run_is_not_resumed(transfer, place, message):
    ended = transfer("pretrain", f"resume={place}")

    assert ended.code == 2
    assert message in ended.err


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "presets.json", "environment.json", "checkpoints/step-00000002/train_state.pt",
     "checkpoints/step-00000002/weights.safetensors"],
)  # fmt: skip
def test_a_damaged_run_is_refused_by_the_name_of_the_file(transfer, copied, name):
    (copied / name).write_bytes(b"{: \x00")

    ended = transfer("pretrain", f"resume={copied}", "seed=0", "loop.steps=4")

    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert name.rpartition("/")[2] in ended.err or name == "environment.json"


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return Path.touch, (self._marker,)


@pytest.mark.parametrize("as_torch_does", [True, False])
def test_code_in_a_checkpoint_is_not_run(transfer, copied, tmp_path, as_torch_does):
    marker = tmp_path / "marker"
    file = copied / "checkpoints" / "step-00000002" / "train_state.pt"
    if as_torch_does:
        torch.save(Bomb(marker), file)
    else:
        file.write_bytes(pickle.dumps(Bomb(marker), protocol=2))

    ended = transfer("pretrain", f"resume={copied}", "loop.steps=4")

    assert ended.code == 2
    assert "train_state.pt is damaged or holds more than plain values" in ended.err
    assert not marker.exists()
