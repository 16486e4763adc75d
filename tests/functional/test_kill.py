"""`kill -9` at any moment, then the same command with `resume=auto`: as if nothing had happened."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests import tiny
from tests.killing import Commands, Moment
from tests.long.compare_runs import differences
from tests.records import read_metrics
from transfer_cli.runs import checkpoint

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a POSIX system"),
]

RHYTHM = ("loop.evaluate_every=2 steps", "checkpoint.every=3 steps", "loop.steps=7")
"""The best weights change between two checkpoints, and the last step is in neither rhythm."""


@pytest.fixture(scope="module")
def commands():
    return Commands()


@pytest.fixture(scope="module")
def words(deep_words):
    """Return the command line of a run whose loss falls at each evaluation."""
    return (*deep_words, *RHYTHM)


@pytest.fixture(scope="module")
def whole(commands, words, tmp_path_factory):
    """Return how the run ends if nobody disturbs it, and where it lies."""
    return undisturbed(commands, tmp_path_factory.mktemp("whole"), words)


def undisturbed(commands, folder, words):
    ended = commands.run(folder, words)
    assert ended.code == 0, ended.text
    return ended, folder / "run"


def assert_same(run, whole):
    assert differences(whole, run) == []
    for name in ("config.yaml", "overrides.txt", "status.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def killed_and_typed_again(commands, folder, words, *moments):
    """Kill a command at each moment in turn; then let it end. Return what it said at last."""
    folder.mkdir(exist_ok=True)
    for moment in moments:
        ended = commands.run(folder, words, moment)
        assert ended.code in (-signal.SIGKILL, -signal.SIGXFSZ), ended.text
    ended = commands.run(folder, words)
    assert ended.code == 0, ended.text
    return ended.text


# --- while it trains, saves and scores ---------------------------------------------------------


@pytest.mark.parametrize(
    "share", [0.6, 0.97, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 0.1, 0.35, 0.85))]
)
def test_killed_at_some_moment_it_ends_as_if_it_was_not(commands, words, whole, tmp_path, share):
    ended, run = whole
    moment = Moment(operation=1 + round(share * (ended.operations - 1)))

    killed_and_typed_again(commands, tmp_path, words, moment)

    assert_same(tmp_path / "run", run)


@pytest.mark.slow
@pytest.mark.parametrize(("average", "copies"), [("ema", ()), ("last_k", ("loop.average_last=2",))])
def test_killed_twice_its_average_is_as_if_it_was_not(commands, words, tmp_path, average, copies):
    words = (*words, f"loop.average={average}", *copies)
    (tmp_path / "whole").mkdir()
    ended, run = undisturbed(commands, tmp_path / "whole", words)
    moments = (Moment(operation=round(share * ended.operations)) for share in (0.6, 0.25))

    killed_and_typed_again(commands, tmp_path / "again", words, *moments)

    assert_same(tmp_path / "again" / "run", run)
    whole, again = (
        checkpoint.read_state(folder / "checkpoints" / "step-00000007")["average"]["copies"]
        for folder in (run, tmp_path / "again" / "run")
    )
    assert len(whole) == len(again) == 1 + len(copies)
    assert all(map(tiny.same, whole, again))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_any_moment_it_ends_as_if_it_was_not(commands, words, whole, tmp_path):
    ended, run = whole
    assert ended.operations > 80

    for operation in range(1, ended.operations + 1):
        folder = tmp_path / str(operation)
        killed_and_typed_again(commands, folder, words, Moment(operation=operation))
        assert_same(folder / "run", run)
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        Moment(under="model/.weights", operation=2),  # written, and not yet in its place
        Moment(under=".results.json", operation=1),
        Moment(under=".results.json", operation=3),  # in its place, and the run not yet finished
    ],
    ids=["model", "before results", "after results"],
)
def test_killed_after_its_last_step_it_scores_again(commands, words, whole, tmp_path, moment):
    text = killed_and_typed_again(commands, tmp_path, words, moment)

    assert "going on after step 7" in text
    assert_same(tmp_path / "run", whole[1])


@pytest.mark.slow
def test_killed_again_and_again_it_still_ends_the_same(commands, words, whole, tmp_path):
    moments = [
        Moment(under="metrics.jsonl", operation=5),
        Moment(under="checkpoints/.step", operation=4),
        Moment(under="metrics.jsonl", operation=6),
        Moment(under="checkpoints/.best", operation=4),
    ]

    killed_and_typed_again(commands, tmp_path, words, *moments)

    assert_same(tmp_path / "run", whole[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights.safetensors", "train_state.pt"])
def test_killed_in_the_middle_of_writing_a_file(commands, words, whole, tmp_path, name):
    (newest, *_) = sorted(whole[1].glob("checkpoints/step-*"), reverse=True)
    weights, wanted = ((newest / n).stat().st_size for n in ("weights.safetensors", name))
    size = weights // 2 if wanted == weights else (weights + wanted) // 2
    assert wanted > size

    killed_and_typed_again(commands, tmp_path, words, Moment(size_bytes=size))

    assert_same(tmp_path / "run", whole[1])


def test_killed_while_it_prepares_its_data(commands, words, whole, tmp_path):
    shutil.rmtree(os.environ["TRANSFER_CACHE"])

    killed = commands.run(tmp_path, words, Moment(size_bytes=10))

    assert killed.code == -signal.SIGXFSZ
    assert not (tmp_path / "run").exists()
    killed_and_typed_again(commands, tmp_path, words)
    assert_same(tmp_path / "run", whole[1])


STAGES = ("chain_thaw", "loop.evaluate_every=1 steps", "checkpoint.every=3 steps", "optimizer.lr=5",
          "adaptation.plan.every=4 steps", "adaptation.plan.patience=2", "optimizer=sgd",
          "loop.steps=24")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [STAGES, ("lora", "adaptation.store=merged", "loop.evaluate_every=5 steps"), ("frozen",)],
    ids=lambda chosen: chosen[0],
)
def test_fine_tuning_that_was_killed_ends_as_if_it_was_not(commands, adapting, tmp_path, chosen):
    words = ("finetune", *adapting(*chosen))
    (tmp_path / "whole").mkdir()
    _, whole = undisturbed(commands, tmp_path / "whole", words)
    moments = [
        Moment(under="metrics.jsonl", operation=9),
        Moment(under="checkpoints/.step", operation=7),
        *([Moment(under="checkpoints/.model.json", operation=2)] if "lora" in chosen else []),
        Moment(under="model/.weights", operation=2),
    ]

    killed_and_typed_again(commands, tmp_path / "killed", words, *moments)

    assert_same(tmp_path / "killed" / "run", whole)


@pytest.mark.slow
def test_a_command_killed_from_the_shell_goes_on_when_it_is_typed_again(shell, words, tmp_path):
    again = (*words, "loop.steps=2000", "loop.patience=null", "run.dir=run", "resume=auto")
    killed = shell(*again)
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob("run/checkpoints/step-*")):
        assert killed.poll() is None, killed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    newest = max(path.name for path in tmp_path.glob("run/checkpoints/step-*"))
    step = int(newest.removeprefix("step-"))

    resumed = shell(*again, f"loop.steps={step + 3}")
    _, err = resumed.communicate(timeout=240)

    assert killed.returncode == -signal.SIGKILL
    assert resumed.returncode == 0, err
    assert "going on after step" in err
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    trained = [record["step"] for record in records if record["kind"] == "train"]
    assert trained == list(range(1, step + 4))


# --- two at once -------------------------------------------------------------------------------


@pytest.fixture
def busy(commands, words, tmp_path):
    """Return the directory of a run that another process is training."""
    process = commands.start(tmp_path, (*words, "loop.steps=100000", "loop.log_every=1"))
    run, deadline = tmp_path / "run", time.monotonic() + 120
    while not list(run.glob("checkpoints/step-*")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield run
    process.kill()
    process.join()


@pytest.mark.parametrize(
    "how",
    ["resume=auto", *(pytest.param(h, marks=pytest.mark.slow) for h in ("resume={run}", "anew"))],
)
def test_a_second_command_in_a_run_directory_is_refused(transfer, words, busy, how):
    typed = () if how == "anew" else (how.format(run=busy), "loop.steps=100000")
    if how != f"resume={busy}":
        typed = (*words, "loop.steps=100000", f"run.dir={busy}", *typed)

    ended = transfer("pretrain", *typed[1:] if typed[0] == "pretrain" else typed)

    assert ended.code == 2
    assert ended.err.count("\n") == 1
    wanted = "already holds a run" if how == "anew" else "another command is writing to"
    assert wanted in ended.err
    assert json.loads((busy / "status.json").read_text()) == {"status": "running"}


def test_of_two_commands_that_begin_a_run_at_once_one_goes_on(commands, words, whole, tmp_path):
    both = [commands.start(tmp_path, words) for _ in range(2)]
    for process in both:
        process.join(240)

    # The slower one was refused, or found the run finished.
    assert 0 in [process.exitcode for process in both]
    assert_same(tmp_path / "run", whole[1])
    for process in both:
        said = (tmp_path / f"output-{process.pid}").read_text()
        if process.exitcode != 0:
            assert "is writing to" in said or "already holds a run" in said
    assert sorted(path.name for path in Path(tmp_path / "run").glob(".*")) == [".lock"]
