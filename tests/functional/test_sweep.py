"""`-m`: one run for each value; a failed one does not stop the others."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.fake_runs import write_sweep
from transfer_cli.cli import main
from transfer_cli.runs.sweep import SweepJob


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_sweep_with_failed_jobs_names_each_reason_and_ends_with_5(capsys):
    for name in ("one", "two"):  # a path at which there is nothing ends the command itself
        Path(name).mkdir()
    code = main(["evaluate", "-m", "run=one,two", "split=test"])

    out, err = capsys.readouterr()
    summary = out.splitlines()
    assert code == 5
    assert summary[0].startswith("sweep runs/sweeps/evaluate/")
    assert summary[1].startswith("  0  run=one  failed: ")
    assert summary[2].startswith("  1  run=two  failed: ")
    assert "job 0 failed: " in err
    assert "Traceback" not in err
    assert err.endswith("transfer evaluate: 2 of 2 jobs failed\n")


@pytest.mark.slow
def test_a_job_that_fails_for_our_own_fault_leaves_its_traceback(capfd, tmp_path):
    (tmp_path / "lab_of_mine.py").write_text(
        "from transfer_cli.data.text import TextData\n"
        "class Broken(TextData):\n"
        "    length = None\n"
        "    def splits(self, *given, **named):\n"
        "        raise ZeroDivisionError('a slip')\n"
    )
    (tmp_path / "own" / "data").mkdir(parents=True)
    (tmp_path / "own" / "data" / "broken.yaml").write_text(
        "# Broken\n_target_: lab_of_mine.Broken\n"
    )

    words = ["--plugin", "lab_of_mine", "--config-dir", "own", "data=broken", "device=cpu"]
    code = main(["pretrain", "-m", *words, "seed=1,2", "run.dir=sweep"])

    out, err = capfd.readouterr()
    assert code == 5
    assert "failed: ZeroDivisionError: a slip" in out
    assert "what a job says is in sweep/job-NUMBER.log" in err
    assert "Traceback" in Path("sweep/job-1.log").read_text()


# --- jobs of their own -------------------------------------------------------------------------


@pytest.fixture
def words(pretrained, loop):
    return (
        "finetune", "data=sample_questions", f"init_from={pretrained}", *loop, "loop.steps=4",
        "loop.evaluate_every=2 steps", "run.dir=sweep",
    )  # fmt: skip


def read(path):
    return json.loads(Path(path).read_text())


@pytest.mark.slow
def test_jobs_side_by_side_leave_what_single_runs_would(transfer, words):
    ended = transfer(*words, "-m", "seed=0,1", "sweep.workers=2")
    alone = transfer(*words, "seed=1", "run.dir=alone")

    assert (ended.code, alone.code) == (0, 0), ended.err
    lines = ended.out.splitlines()
    assert lines[:3] == ["sweep sweep", "  0  seed=0  done", "  1  seed=1  done"]
    assert lines[-1] == "compare: transfer report sweep"
    assert read("sweep/1/results.json") == read("alone/results.json")
    assert read("sweep/sweep.json")["command"] == "finetune"
    assert "done: 4 steps" in Path("sweep/job-0.log").read_text()
    assert read("sweep/job-1.json")["overrides"] == ["seed=1"]


def test_all_jobs_can_share_one_process_and_a_change_of_the_data_is_said(transfer, words):
    ended = transfer(*words, "-m", "data.length=16,24", "sweep.isolate=false").ok()

    assert ended.out.count("done: 4 steps") == 2
    assert [Path(f"sweep/{n}/results.json").exists() for n in (0, 1)] == [True, True]
    assert "data.length changes the data: it is prepared 2 times" in ended.err


@pytest.mark.slow
def test_what_a_config_of_ones_own_sweeps_is_swept(transfer, words, tmp_path):
    (tmp_path / "own" / "sweep").mkdir(parents=True)
    (tmp_path / "own" / "sweep" / "norms.yaml").write_text(
        "# @package _global_\n# Two norms\nhydra:\n  sweeper:\n    params:\n"
        "      loop.clip: 1,2\nsweep:\n  isolate: false\nloop:\n  steps: 2\n"
    )

    ended = transfer(*words[:-3], "run.dir=sweep", "--config-dir", "own", "sweep=norms").ok()

    assert ended.out.count("done: 2 steps") == 2


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on(shell, words, tmp_path):
    typed = [word for word in words if not word.startswith("loop.steps")]
    line = (*typed, "loop.steps=4000", "-m", "seed=0,1,2", "sweep.workers=2")
    job = shell(*line)
    deadline = time.monotonic() + 240
    while len({path.parts[-3] for path in tmp_path.glob("sweep/?/checkpoints/step-*")}) < 2:
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(job.pid, signal.SIGINT)
    out, err = job.communicate(timeout=240)

    assert job.returncode == 130, err
    assert "1 jobs not begun; go on with the same command and resume=auto" in err
    assert [line.split()[2] for line in out.splitlines()[1:3]] == ["stopped", "stopped"]
    assert [read(tmp_path / f"sweep/job-{n}.json")["outcome"] for n in range(3)] == [
        "stopped", "stopped", "left",
    ]  # fmt: skip
    # Those that were stopped are past that, and the third has that far to go.
    shorter = [word.replace("4000", "12") for word in line]
    again = shell(*shorter, "resume=auto")
    out, err = again.communicate(timeout=400)

    assert again.returncode == 0, err
    assert out.count("  done") == 3
    assert "going on after step" in (tmp_path / "sweep/job-0.log").read_text()


@pytest.mark.slow
def test_a_job_killed_for_memory_is_named(transfer, words, monkeypatch, tmp_path):
    """The system's own way to end a process leaves no word; the sweep has one for it."""
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "from transfer_cli.optim.schedules import Constant\n"
        "class Deadly(Constant):\n"
        "    def decay(self, step, warmup, total):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "own" / "schedule").mkdir(parents=True)
    (tmp_path / "own" / "schedule" / "deadly.yaml").write_text(
        "# Deadly\n_target_: deadly.Deadly\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    ended = transfer(
        *words, "-m", "schedule=linear,deadly", "--config-dir", "own", "--plugin", "deadly"
    )

    assert ended.code == 5
    assert "schedule=deadly  failed: killed by SIGKILL; it may have taken too much" in ended.out
    assert read("sweep/0/status.json")["status"] == "finished"


@pytest.mark.slow
def test_a_search_prunes_what_is_hopeless(transfer, words):
    pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")
    typed = [word for word in words if not word.startswith(("loop.steps", "loop.evaluate"))]

    ended = transfer(
        *typed, "loop.steps=6", "loop.evaluate_every=1 steps", "sweep=search", "sweep.trials=8",
        "optimizer.lr=1e-3,1e-12", "sweep.sampler=random", "sweep.isolate=false",
        "sweep.objective=validation/loss",
    ).ok()  # fmt: skip

    outcomes = [line.split()[2].rstrip(":") for line in ended.out.splitlines() if "lr=" in line]
    assert len(outcomes) == 8
    assert set(outcomes[:5]) == {"done"}
    # After six steps none is better than the commonest label.
    assert "of 8 trials" not in ended.err
    assert "no best run: no finished run learnt anything (" in ended.out
    assert list(Path("sweep").glob(".trial-*")) == []


@pytest.mark.slow
def test_two_commands_share_a_search(shell, words, tmp_path):
    pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")
    line = (*words, "sweep=search", "sweep.trials=4", "sweep.isolate=false", "resume=auto")

    both = [shell(*line), shell(*line)]
    ends = [process.communicate(timeout=400) for process in both]

    assert [process.returncode for process in both] == [0, 0], ends
    jobs = [read(path) for path in sorted(tmp_path.glob("sweep/job-?.json"))]
    assert [job["outcome"] for job in jobs] == ["done"] * 4
    assert len({tuple(job["overrides"]) for job in jobs}) == 4
    assert len(list(tmp_path.glob("sweep/?/results.json"))) == 4


# --- run of sweep --------------------------------------------------------------------------------


def sweep_of(run, folder, *, failed=None):
    """Write a sweep of two runs: one that learnt nothing, with no error, and a copy of `run`."""
    write_sweep(folder, *(SweepJob(n, (f"seed={n}",), outcome="done") for n in range(2)))
    for number, reason in enumerate(("no better than city", failed)):
        # One folder deeper than the run: what it refers to is found by its whole path.
        shutil.copytree(run, folder / str(number))
        file = folder / str(number) / "results.json"
        results = json.loads(file.read_text()) | {"failed": reason}
        if number == 0:
            results["measures"]["validation"] |= {"error_rate": 0.0, "word_perplexity": 1.0}
        file.write_text(json.dumps(results))
    return folder


@pytest.fixture
def adapted(finetuned, tmp_path):
    return sweep_of(finetuned, tmp_path / "my sweep")


COMMANDS = {
    "evaluate": ("evaluate", "{}", "device=cpu"),
    "evaluate run=": ("evaluate", "run={}", "split=validation", "device=cpu"),
    "predict": ("predict", "{}", "texts.txt", "device=cpu"),
    "predict of two": ("predict", "run=['{}','{}/1']", "input=texts.txt", "device=cpu"),
    "export": ("export", "{}", "out"),
    "diff": ("diff", "{}", "{}/0"),
    "inspect": ("inspect", "data=sample_questions", "init_from='{}'", "samples=0"),
    "plan": ("plan", "finetune", "experiment=sample/finetune", "init_from='{}'"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_sweep_is_its_best_run_and_that_is_said_once(transfer, adapted, words):
    Path("texts.txt").write_text("Who wrote it ?\n")

    ended = transfer(*(word.format("my sweep", "my sweep") for word in words)).ok()

    assert ended.err.count(": took my sweep/1, the best of 1 run of that sweep by ") == 1


@pytest.mark.parametrize("words", [("generate", "{}", "The"), ("fill", "{}", "The [MASK] .")])
def test_a_sweep_of_language_models_speaks_for_its_best(transfer, pretrained, tmp_path, words):
    sweep_of(pretrained, tmp_path / "lms")

    ended = transfer(*(word.format("lms") for word in words), "device=cpu")

    assert ": took lms/1, the best of 1 run of that sweep by validation/" in ended.err
    # The run is causal: it goes on with a text and fills no gap.
    assert ended.code == (0 if words[0] == "generate" else 2), ended.err


def test_a_run_that_begins_from_a_sweep_remembers_which_run_it_was(transfer, adapted, loop):
    transfer(
        "finetune", "data=sample_questions", "init_from='my sweep'", *loop, "loop.steps=1",
        "run.dir=next",
    ).ok()  # fmt: skip

    assert "init_from: my sweep/1\n" in Path("next/config.yaml").read_text()


@pytest.mark.parametrize("command", ["evaluate", "export", "generate", "diff"])
def test_a_sweep_without_a_best_run_is_refused_in_a_line(transfer, finetuned, tmp_path, command):
    sweep_of(finetuned, tmp_path / "none", failed="no better than person")
    more = {"export": ["out"], "generate": ["The"], "diff": ["none/0"]}.get(command, [])

    ended = transfer(command, "none", *more)

    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "none is a sweep without a best run: no finished run learnt anything (2 l" in ended.err
    assert not Path("out").exists()
