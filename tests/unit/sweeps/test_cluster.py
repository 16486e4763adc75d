"""Jobs that submitit runs, with a stand-in for it that carries each to a copy of the sweep."""

import copy
import signal
import sys
from types import SimpleNamespace

import pytest

from tests.sweeping import run
from transfer_cli.config.flags import parse_request
from transfer_cli.errors import ConfigError
from transfer_cli.runs.sweep import JobState, SweepDirectory, SweepJob
from transfer_cli.sweeps import processes
from transfer_cli.sweeps.cluster import JobThere
from transfer_cli.sweeps.jobs import Jobs

WORDS = ["-m", "seed=1,2,3", "run.dir=mine", "hydra/launcher=submitit_slurm"]


@pytest.fixture
def submitit(monkeypatch, tmp_path):
    """Have jobs run by a command that fails where the seed is 2; return what was asked for."""
    monkeypatch.chdir(tmp_path)
    asked = SimpleNamespace(started=[], commands=[], made=None, settings=None, lost=False)
    start = processes.subprocess.Popen

    def popen(words, **named):
        asked.started.append(words[words.index("transfer_cli") + 1 :])
        usual = ["false" if "seed=2" in words else "true"]
        return start(asked.commands.pop(0) if asked.commands else usual, **named)

    monkeypatch.setattr(processes.subprocess, "Popen", popen)

    class AutoExecutor:
        def __init__(self, **named):
            asked.made = named

        def update_parameters(self, **named):
            asked.settings = named

        def map_array(self, function, jobs):
            copies = [copy.deepcopy((function, job)) for job in jobs]
            if not asked.lost:
                for function, job in copies:
                    function(job)
            error = RuntimeError("Job not requeued\nits machine has gone") if asked.lost else None
            return [SimpleNamespace(exception=lambda: error) for _ in jobs]

    class DelayedSubmission:
        def __init__(self, function, *arguments):
            self.again = function, arguments

    stand_in = SimpleNamespace(
        AutoExecutor=AutoExecutor, helpers=SimpleNamespace(DelayedSubmission=DelayedSubmission)
    )
    monkeypatch.setitem(sys.modules, "submitit", stand_in)
    return asked


def words_of(asked):
    return [" ".join(words) for words in asked.started]


def test_each_job_is_a_command_of_its_own_there_and_leaves_word_in_its_file(submitit):
    _, jobs, _ = run([*WORDS, "loop.batch=3"])

    assert [job.outcome for job in jobs.done] == [JobState.DONE, JobState.FAILED, JobState.DONE]
    assert [job.overrides for job in jobs.done] == [("seed=1",), ("seed=2",), ("seed=3",)]
    assert SweepDirectory(jobs.sweep_dir).job(1).reason == "ended with exit code 1"
    first = words_of(submitit)[0]
    assert first.startswith("pretrain --job ")
    assert first.endswith("seed=1 loop.batch=3 sweep.isolate=False run.dir='mine/0' resume=auto")


def test_the_words_of_the_launcher_are_those_of_submitit(submitit):
    words = ["gpus_per_node=8", "max_num_timeout=5", "partition=long"]
    more = "+hydra.launcher.additional_parameters.qos=high"
    run([*WORDS, *(f"hydra.launcher.{word}" for word in words), more])

    assert submitit.made == {
        "folder": "mine/.submitit/%j", "cluster": "slurm", "slurm_max_num_timeout": 5,
    }  # fmt: skip
    assert submitit.settings["gpus_per_node"] == 8
    assert submitit.settings["timeout_min"] == 60
    assert submitit.settings["slurm_partition"] == "long"
    assert submitit.settings["slurm_additional_parameters"] == {"qos": "high"}
    assert "slurm_qos" not in submitit.settings


def test_a_command_without_run_directories_can_be_run_there(submitit):
    _, jobs, _ = run(
        ["-m", "run=x", "split=test,train", "hydra.sweep.dir=there",
         "hydra/launcher=submitit_local"], "evaluate",
    )  # fmt: skip

    assert submitit.made["cluster"] == "local"
    assert words_of(submitit)[0].endswith("run=x split=test")
    assert [job.outcome for job in jobs.done] == [JobState.DONE] * 2


def test_a_job_that_was_lost_has_failed(submitit):
    submitit.lost = True

    _, jobs, _ = run(WORDS)

    assert {job.reason for job in jobs.done} == {"its machine has gone"}
    assert {job.outcome for job in jobs.done} == {JobState.FAILED}


def test_a_job_whose_time_is_up_is_saved_and_begun_again(submitit, monkeypatch, tmp_path):
    jobs = Jobs("pretrain", print, parse_request([]), lambda *_: "", list, print, makes_runs=True,
                sweep_dir=tmp_path / "mine", on_cluster=True)  # fmt: skip
    job, there, again = SweepJob(0, ("seed=2",), ("seed=2",)), JobThere(jobs), []
    submitit.commands = [["sleep", "60"], ["true"]]

    def time_is_up(number, frame):
        again.append(there.checkpoint(job).again)
        sys.exit()

    before = signal.signal(signal.SIGALRM, time_is_up)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(SystemExit):
            there(job)
    finally:
        signal.signal(signal.SIGALRM, before)
    outcomes = [jobs.directory.job(0).outcome]
    [(function, arguments)] = again
    function(*arguments)

    assert [*outcomes, jobs.directory.job(0).outcome] == [JobState.STOPPED, JobState.DONE]
    assert submitit.started[-1][-2:] == [f"run.dir='{tmp_path / 'mine/0'}'", "resume=auto"]


def test_a_config_may_choose_the_cluster(submitit, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "there.yaml").write_text(
        "defaults:\n  - pretrain\n  - override hydra/launcher: submitit_slurm\n  - _self_\n"
        "hydra: {launcher: {timeout_min: 7}}\n"
    )

    run([*WORDS[:-1], "--config-dir", "own", "--config-name", "there"])

    assert submitit.settings["timeout_min"] == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [(["hydra/launcher=submitit_slurm", "hydra.launcher.gpus=8"], "gpus"),
     (["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=x"], "a whole number"),
     (["hydra/launcher=joblib"], "hydra/launcher=joblib: no such option")],
)  # fmt: skip
def test_a_wrong_word_for_the_launcher_is_refused_before_anything_is_written(
    submitit, tmp_path, words, said
):
    with pytest.raises(ConfigError) as caught:
        run([*WORDS[:-1], *words])

    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_submitit_one_is_told_how_to_install_it(submitit, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)

    with pytest.raises(ConfigError, match=r"hydra/launcher: .* need submitit: pip install"):
        run(WORDS)
    assert list(tmp_path.iterdir()) == []
