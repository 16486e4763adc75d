import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.sweeping import Recorder
from transfer_cli.config.flags import parse_request
from transfer_cli.errors import DivergedError, PrunedError, StoppedError
from transfer_cli.runs.environment import num_processes, visible_gpus
from transfer_cli.runs.sweep import JobState, SweepDirectory, SweepJob
from transfer_cli.sweeps import processes
from transfer_cli.sweeps.jobs import Jobs
from transfer_cli.sweeps.processes import OUTCOMES, SideBySide, job_environment


@pytest.fixture
def _driver(tmp_path, monkeypatch):
    """Let the driver's command say that there are three GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize(
    ("given", "gpus"),
    [(None, ["0", "1", "2"]), ("2,0", ["2", "0"]), ("GPU-5ab", ["GPU-5ab"]), ("", []), ("-1", []),
     ("2,-1,0", ["2"])],
)  # fmt: skip
def test_the_gpus_are_those_that_were_chosen_or_that_the_driver_names(monkeypatch, given, gpus):
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)

    assert visible_gpus() == gpus


def test_a_driver_that_fails_means_no_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/false")

    assert visible_gpus() == []


@pytest.mark.parametrize(
    ("slot", "gpus_each", "mine"),
    [(0, 1, "a"), (1, 1, "b"), (2, 1, "c"), (3, 1, "a"), (0, 2, "a,b"), (1, 2, "c,a")],
)
def test_each_worker_has_gpus_of_its_own_as_far_as_there_are_any(slot, gpus_each, mine):
    assert job_environment(slot, 4, ["a", "b", "c"], gpus_each)["CUDA_VISIBLE_DEVICES"] == mine


def test_an_exit_code_says_what_became_of_a_job():
    assert {
        0: JobState.DONE, PrunedError.exit_code: JobState.PRUNED,
        StoppedError.exit_code: JobState.STOPPED, 130: JobState.STOPPED,
    } == OUTCOMES  # fmt: skip
    assert OUTCOMES.get(DivergedError.exit_code, JobState.FAILED) == JobState.FAILED


def test_a_job_has_its_threads_whoever_runs_beside_it(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")

    assert job_environment(0, 2, [], 1)["OMP_NUM_THREADS"] == "2"


@pytest.mark.slow
def test_a_job_whose_launcher_is_gone_is_waited_for(tmp_path, monkeypatch):
    """Its process holds the job as long as it lives."""
    first = SweepDirectory(tmp_path)
    first.write_job(SweepJob(0, ("seed=1",), ("seed=1",), outcome=JobState.RUNNING))
    with first.claim(0) as claim:
        orphan = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(1.5)"], pass_fds=(claim,)
        )
    start = processes.subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess, "Popen", lambda words, **named: start(["true"], **named)
    )

    side = side_of(tmp_path)
    side.run(first.jobs())

    assert orphan.poll() == 0
    assert [job.outcome for job in side.jobs.done] == [JobState.DONE]


def test_what_jobs_warn_of_is_said_once_and_their_output_kept(tmp_path, monkeypatch, caplog):
    start = processes.subprocess.Popen
    said = "begun\nwarning: warmup: too long\nwarning: warmup: too long\nloss 1\n"

    def speaking(command, **named):
        number = len(SweepDirectory(tmp_path).jobs()) - 1
        text = said + f"warning: data: {number} rows left out\n"
        return start([sys.executable, "-c", f"print({text!r}, end='')"], **named)

    monkeypatch.setattr(processes.subprocess, "Popen", speaking)
    caplog.set_level("INFO")
    side = side_of(tmp_path)

    side.run([SweepJob(n, (f"seed={n}",), (f"seed={n}",)) for n in range(3)])

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "job 0: warmup: too long", "job 0: data: 0 rows left out", "job 1: data: 1 rows left out",
        "job 2: data: 2 rows left out",
    ]  # fmt: skip
    assert side.jobs.warned["warmup: too long"] == [0, 1, 2]
    assert said in (tmp_path / "job-1.log").read_text()
    assert "loss" not in caplog.text


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL; "), (40, "signal 40")])
def test_what_killed_a_job_is_named(tmp_path, number, name):
    ended = processes._Running(None, None, 0, tmp_path / "gone", 0, None)

    assert processes._reason(ended, -number).startswith(f"killed by {name}")


def test_a_job_whose_log_cannot_be_written_is_given_up(tmp_path):
    side = side_of(tmp_path)
    (tmp_path / "job-0.log").mkdir()

    with pytest.raises(OSError, match=r"job-0\.log") as kept:
        side.run([SweepJob(0, ("seed=1",), ("seed=1",))])

    assert kept.tb is not None  # as a notebook keeps it
    assert not side.jobs.directory.is_claimed(0)


def side_of(folder):
    """Return what runs the jobs of a sweep, one at a time."""
    jobs = Jobs(
        "pretrain", Recorder(), parse_request([]), print, lambda config: (), print, makes_runs=True,
        sweep_dir=folder,
    )  # fmt: skip
    return SideBySide(jobs, workers=1, gpus=[], gpus_each=1, threads=1, stop_on_error=False)


def stopped(folder, monkeypatch, tell):
    """Run one job, which knows nothing of signals, and return what became of it.

    `tell` is called in the moment in which the process of the job has started.
    """
    start = processes.subprocess.Popen

    def deaf(command, **named):
        code = "import signal, time; signal.signal(2, signal.SIG_DFL); time.sleep(30)"
        started = start([sys.executable, "-c", code], **named)
        tell()
        return started

    monkeypatch.setattr(processes.subprocess, "Popen", deaf)
    side = side_of(folder)
    with pytest.raises((KeyboardInterrupt, StoppedError), match="stopped with 0 jobs not begun"):
        side.run([SweepJob(0, ("seed=1",), ("seed=1",))])
    return [job.outcome for job in SweepDirectory(folder).jobs()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_is_told_to_stop_before_it_can_hear_was_stopped(tmp_path, monkeypatch, number):
    """Until a job has set its handlers, a signal ends it without a word."""

    def tell():
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()

    assert stopped(tmp_path, monkeypatch, tell) == [JobState.STOPPED]


def test_a_job_that_starts_while_its_sweep_is_told_to_stop_is_told(tmp_path, monkeypatch):
    def tell():
        os.kill(os.getpid(), signal.SIGTERM)

    assert stopped(tmp_path, monkeypatch, tell) == [JobState.STOPPED]


@pytest.mark.parametrize(
    ("devices", "device", "gpus", "expected"),
    [("auto", "auto", "0,1,2", 3), ("auto", "cuda", "0,1", 2), ("auto", "auto", "", 1),
     ("auto", "cpu", "0,1", 1), ("auto", "cuda:1", "0,1", 1), (4, "auto", "0,1", 4)],
)  # fmt: skip
def test_auto_is_a_process_for_each_visible_gpu(monkeypatch, devices, device, gpus, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)

    assert num_processes(devices, device) == expected
