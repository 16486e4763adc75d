import copy

import pytest

from transfer_cli.config import launch as launching
from transfer_cli.config.flags import parse
from transfer_cli.config.launch import launch
from transfer_cli.errors import ConfigError, PrunedError, RunError, StoppedError, SweepError
from transfer_cli.runs.sweep import RUNNING, SweepDirectory
from transfer_cli.sweep import plugins
from transfer_cli.sweep.folder import folder_of, settings_of
from transfer_cli.sweep.jobs import Jobs


class Recorder:
    """A command that remembers what it was run with."""

    def __init__(self, fails=lambda config: None):
        self.fails = fails
        self.configs = []

    def __call__(self, config):
        self.configs.append(config)
        error = self.fails(config)
        if error is not None:
            raise error


def run(words, command="pretrain", fails=lambda config: None):
    """Run jobs in this process; return their configs, what became of them, and what was said."""
    recorder, reported = Recorder(fails), []
    request = parse([*words, "sweep.isolate=false"] if command != "evaluate" else words)

    def report(job):
        reported.append(job)
        return f"job {job.number} is {job.error}"

    jobs = Jobs(
        command, recorder, request, lambda job: None, report, makes_runs=command != "evaluate"
    )
    settings = {}
    if request.multirun:
        plugins.register(jobs)
        settings = settings_of(jobs)
    launch(command, request, jobs.run, settings)
    if not jobs.done:
        jobs.read_copies(folder_of(request, settings))
    return recorder.configs, jobs, reported


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSFER_DATA", raising=False)


def test_a_failed_run_keeps_its_error():
    _, jobs, reported = run([], fails=lambda config: ValueError("no"))

    assert str(jobs.done[0].error) == "no"
    assert reported == []


def test_every_job_of_a_sweep_has_a_directory_of_its_own(tmp_path):
    configs, jobs, _ = run(["-m", "seed=1,2"])

    sweep = jobs.sweep_dir
    assert sweep.parent.as_posix() == "runs/sweeps/pretrain"
    assert [config.run.dir for config in configs] == [f"{sweep}/0", f"{sweep}/1"]
    assert not (tmp_path / sweep / "0").exists()


def test_a_sweep_may_have_a_directory_of_the_users():
    configs, _, _ = run(["-m", "seed=1,2", "run.dir=mine"])

    assert [config.run.dir for config in configs] == ["mine/0", "mine/1"]


def test_a_failed_job_does_not_stop_the_others():
    configs, jobs, reported = run(
        ["-m", "seed=range(1,4)"],
        fails=lambda config: ConfigError("bad") if config.seed == 2 else None,
    )

    assert [config.seed for config in configs] == [1, 2, 3]
    assert [job.number for job in jobs.done if job.error] == [1]
    assert reported == [jobs.done[1]]


def test_a_stopped_job_stops_the_sweep():
    configs, jobs, _ = run(["-m", "seed=1,2"], fails=lambda config: StoppedError("asked to"))

    assert len(configs) == 1
    assert str(jobs.stopped) == "asked to"


def test_a_mistake_in_any_job_is_found_before_the_first_starts():
    with pytest.raises(ConfigError, match="model=tinny: no such option"):
        run(["-m", "model=tiny,tinny"])


@pytest.fixture
def _elsewhere(monkeypatch):
    """Let Hydra run a copy, as it does where a launcher starts each job in another process."""
    call = launching._call_hydra

    def call_with_copy(words, command, task):
        call(words, command, copy.deepcopy(task.__self__).run)

    monkeypatch.setattr(launching, "_call_hydra", call_with_copy)


@pytest.mark.usefixtures("_elsewhere")
def test_jobs_that_ran_in_other_processes_are_reported():
    _, jobs, _ = run(
        ["-m", "seed=range(1,12)"],
        fails=lambda config: ConfigError("bad") if config.seed == 2 else None,
    )

    assert [job.number for job in jobs.done] == list(range(11))
    assert [job.overrides for job in jobs.done[:2]] == [("seed=1",), ("seed=2",)]
    assert [job.reason for job in jobs.done if job.outcome == "failed"] == ["job 1 is bad"]
    assert jobs.sweep_dir.parent.as_posix() == "runs/sweeps/pretrain"


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("typed", ["all/of them", "'all/of them'", '"all/of them"'])
def test_the_root_of_sweeps_may_be_typed_in_quotes(typed):
    _, jobs, _ = run(["-m", "seed=1,2", f"run.root={typed}"])

    assert jobs.sweep_dir.parent.as_posix() == "all/of them/sweeps/pretrain"


@pytest.mark.usefixtures("_elsewhere")
def test_a_sweep_elsewhere_may_have_a_directory_of_the_users(tmp_path):
    _, by_run, _ = run(["-m", "seed=1,2", "run.dir='a b'"])
    _, by_hydra, _ = run(["-m", "seed=1,2", "hydra.sweep.dir=there"])

    assert by_run.sweep_dir.as_posix() == "a b"
    assert len(by_run.done) == len(by_hydra.done) == 2


def test_a_sweep_elsewhere_of_which_nothing_is_heard_is_an_error(monkeypatch):
    monkeypatch.setattr(launching, "_call_hydra", lambda words, command, task: None)

    with pytest.raises(SweepError, match="no job has left word in lost"):
        run(["-m", "seed=1,2", "run.dir=lost"])


def test_commands_without_a_run_directory_can_be_swept():
    configs, _, _ = run(["-m", "run=x", "split=test,train"], "evaluate")

    assert [(config.run, config.split) for config in configs] == [("x", "test"), ("x", "train")]
