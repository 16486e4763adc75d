import copy

import pytest
from omegaconf import OmegaConf

from transfer_cli.config import launch as launching
from transfer_cli.config.flags import parse
from transfer_cli.config.launch import Jobs, compose, launch
from transfer_cli.errors import ConfigError, StoppedError, SweepError


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
    recorder = Recorder(fails)
    announced, reported = [], []
    request = parse(words)

    def report(job):
        reported.append(job)
        return f"job {job.number} is {job.error}"

    jobs = Jobs(command, recorder, request.multirun, announced.append, report)
    launch(request, jobs)
    return recorder.configs, jobs, reported


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSFER_DATA", raising=False)


def test_a_command_gets_the_config_with_overrides_and_interpolations():
    [config], jobs, _ = run(["loop.batch=3", "run.dir=runs/${seed}", "seed=7"])

    assert config.loop.batch == 3
    assert config.run.dir == "runs/7"
    assert config.data_dir == "~/.cache/transfer"
    assert jobs.done[0].error is None


def test_the_data_folder_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", "/some/where")

    [config], _, _ = run([])

    assert config.data_dir == "/some/where"


def test_a_run_writes_nothing_of_hydras(tmp_path):
    run([])

    assert list(tmp_path.iterdir()) == []


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
    assert [str(job.error) for job in jobs.done if job.error] == ["job 1 is bad"]
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

    _, again, _ = run(["-m", "seed=1,2,3", "run.dir='a b'"])
    _, fewer, _ = run(["-m", "seed=1,2", "run.dir='a b'"])

    assert [len(each.done) for each in (by_run, again, fewer)] == [2, 3, 2]
    assert by_run.sweep_dir.as_posix() == "a b"
    assert len(by_run.done) == len(by_hydra.done) == 2


def test_a_sweep_elsewhere_of_which_nothing_is_heard_is_an_error(monkeypatch):
    monkeypatch.setattr(launching, "_call_hydra", lambda words, command, task: None)

    with pytest.raises(SweepError, match="no job has left word in lost"):
        run(["-m", "seed=1,2", "run.dir=lost"])


def test_commands_without_a_run_directory_can_be_swept():
    configs, _, _ = run(["-m", "run=x", "split=test,train"], "evaluate")

    assert [(config.run, config.split) for config in configs] == [("x", "test"), ("x", "train")]


def test_process_settings_are_as_before(monkeypatch):
    import os
    import sys

    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before = list(sys.argv)

    run([])

    assert sys.argv == before
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_own_configs_extend_ours(tmp_path):
    own = tmp_path / "own"
    (own / "model").mkdir(parents=True)
    (own / "model" / "mine.yaml").write_text("# Mine\ndefaults:\n  - tiny\nwidth: 64\n")
    (own / "start.yaml").write_text(
        "# Mine\ndefaults:\n  - pretrain\n  - override model: mine\n  - _self_\nloop: {batch: 5}\n"
    )

    [by_option], _, _ = run(["--config-dir", str(own), "model=mine"])
    [by_primary], _, _ = run(["--config-dir", str(own), "--config-name", "start"])

    assert by_option.model.width == 64
    assert (by_primary.model.width, by_primary.loop.batch) == (64, 5)


def test_further_losses_are_added_under_their_name():
    [config], _, _ = run(["+objective@losses.lm=clm", "losses.lm.weight=0.5"], "finetune")

    assert OmegaConf.to_container(config.losses) == {
        "lm": {"_target_": "transfer_cli.objectives.causal_lm.CausalLM", "weight": 0.5}
    }


def test_composing_to_look_leaves_open_values_open():
    config = compose("evaluate", parse([]))

    assert OmegaConf.is_missing(config, "run")
