import contextlib
import itertools
import json
import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

import conf
from tests.sweeping import run
from transfer_cli.config.flags import parse_request
from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError, PrunedError, RunError, StoppedError
from transfer_cli.runs.sweep import JobState, SweepDirectory, SweepRequest
from transfer_cli.sweeps import jobs as working
from transfer_cli.sweeps.grid import log_data_changes
from transfer_cli.sweeps.local import Shares, settings_of
from transfer_cli.sweeps.multirun import latest_sweep


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSFER_DATA", raising=False)


def test_a_failed_run_keeps_its_error():
    with pytest.raises(ValueError, match=r"^no$"):
        run([], fails=lambda config: ValueError("no"))


def test_every_job_of_a_sweep_has_a_directory_of_its_own(tmp_path):
    configs, jobs, _ = run(["-m", "seed=1,2"])

    sweep = jobs.sweep_dir
    assert sweep.parent.as_posix() == "runs/sweeps/pretrain"
    assert [config.run.dir for config in configs] == [f"{sweep}/0", f"{sweep}/1"]


def test_a_job_does_not_look_at_all_others(monkeypatch):
    read, looked = SweepDirectory._read, []
    monkeypatch.setattr(
        SweepDirectory, "_read", lambda self, path: looked.append(path) or read(self, path)
    )

    run(["-m", "seed=range(6)"])

    assert len(looked) < 3 * 6


def test_sweeps_that_begin_in_the_same_second_have_directories_of_their_own(monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    monkeypatch.setattr("transfer_cli.runs.atomic.datetime", Stopped)

    _, first, _ = run(["-m", "seed=1,2"])
    _, second, _ = run(["-m", "seed=1,2"])

    assert second.sweep_dir == first.sweep_dir.with_name(f"{first.sweep_dir.name}-2")
    assert len(outcomes(first.sweep_dir)) == len(outcomes(second.sweep_dir)) == 2


def test_a_failed_job_does_not_stop_the_others():
    configs, jobs, reported = run(
        ["-m", "seed=range(1,4)"],
        fails=lambda config: ConfigError("bad") if config.seed == 2 else None,
    )

    assert [config.seed for config in configs] == [1, 2, 3]
    assert [(job.number, job.reason) for job in reported] == [(1, "job 1 is bad")]
    assert reported == [jobs.done[1]]


def test_a_job_that_another_command_has_taken_is_no_failure(monkeypatch):
    claim = SweepDirectory.claim
    monkeypatch.setattr(SweepDirectory, "claim", lambda self, number: (
        claim(self, number) if number else contextlib.nullcontext()
    ))  # fmt: skip

    configs, _, _ = run(["-m", "seed=1,2", "sweep.on_error=stop", "run.dir=mine"])

    assert [config.seed for config in configs] == [2]


def test_a_stopped_job_stops_the_sweep():
    configs, jobs, _ = run(["-m", "seed=1,2"], fails=lambda config: StoppedError("asked to"))

    assert len(configs) == 1
    assert str(jobs.stopped) == "asked to"


@pytest.mark.parametrize("key", ["run.dir", "run.root"])
def test_a_sweep_has_one_folder_which_can_be_read_and_written(key):
    with pytest.raises(ConfigError, match=rf"^{key}=a\(b: a value with special characters"):
        run(["-m", "seed=1,2", f"{key}=a(b"])
    with pytest.raises(ConfigError, match=rf"^{key}: .*one folder"):
        run(["-m", "seed=1,2", f"{key}=a,b"])
    Path("afile").touch()
    with pytest.raises(RunError, match=r"^.*afile.* cannot be written"):
        run(["-m", "seed=1,2", f"{key}=afile/x"])


@pytest.mark.parametrize(
    ("word", "place"),
    [("run.root=all/of them", "all/of them/sweeps/pretrain"), ("run.dir='a b'", "a b"),
     ("run.root='all/of them'", "all/of them/sweeps/pretrain"), ("hydra.sweep.dir='a b'", "a b")],
)  # fmt: skip
def test_folders_with_a_space_may_be_typed_in_quotes(word, place):
    _, jobs, _ = run(["-m", "seed=1,2", word])

    assert jobs.sweep_dir.as_posix().startswith(place)
    assert len(jobs.done) == 2


@pytest.mark.parametrize(
    ("typed", "lengths"),
    [("8,16", [8, 16]), ("choice(8,16)", [8, 16]), ("range(8,17,4)", [8, 12, 16]),
     ("shuffle(8,16)", [8, 16]), ("sort(16,8)", [8, 16]), ("tag(mine,choice(8,16))", [8, 16])],
)  # fmt: skip
def test_values_are_typed_as_hydra_has_them(typed, lengths):
    configs, _, _ = run(["-m", f"data.length={typed}"])

    assert sorted(config.data.length for config in configs) == lengths


def test_equal_values_are_one_job_which_is_said(caplog):
    configs, _, _ = run(["-m", "seed=0,1,0", "optimizer.lr=1e-3,0.001"])

    assert [config.seed for config in configs] == [0, 1]
    assert [record.getMessage().partition(":")[0] for record in caplog.records[:2]] == [
        "seed=0,1,0", "optimizer.lr=1e-3,0.001",
    ]  # fmt: skip


def test_a_pattern_stands_for_options_ours_and_ones_own(tmp_path):
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "tiniest.yaml").write_text(
        "# Mine\ndefaults:\n  - tiny\nwidth: 8\nheads: 1\n"
    )

    configs, _, _ = run(["-m", "model=glob(tin*)", "--config-dir", "own"])

    assert sorted(config.model.width for config in configs) == [8, 128]
    with pytest.raises(ConfigError, match=r"no option of model fits"):
        run(["-m", "model=glob(nothing*)"])


def test_commands_without_a_run_directory_can_be_swept():
    configs, _, _ = run(["-m", "run=x", "split=test,train"], "evaluate")

    assert [(config.run, config.split) for config in configs] == [("x", "test"), ("x", "train")]


# --- going on ----------------------------------------------------------------------------------


def outcomes(folder):
    return [job.outcome for job in SweepDirectory(Path(folder)).jobs()]


def test_a_sweep_writes_down_what_it_is_and_what_became_of_it(tmp_path):
    run(
        ["-m", "seed=1,2", "loop.batch=3", "run.dir=mine"],
        fails=lambda config: ConfigError("bad") if config.seed == 2 else None,
    )

    sweep = SweepDirectory(tmp_path / "mine")
    asked, jobs = sweep.read_request(), sweep.jobs()
    assert (asked.command, asked.words) == (
        "pretrain",
        ("seed=1,2", "loop.batch=3", "sweep.isolate=false"),
    )
    assert [job.overrides for job in jobs] == [("seed=1",), ("seed=2",)]
    assert [job.outcome for job in jobs] == [JobState.DONE, JobState.FAILED]
    assert jobs[1].reason == "job 1 is bad"
    assert jobs[0].seconds is not None


def test_only_what_is_missing_runs_again(tmp_path):
    words = ["-m", "seed=1,2,3", "run.dir=mine"]
    run(words, fails=lambda config: ConfigError("bad") if config.seed == 2 else None)

    configs, jobs, _ = run([*words, "resume=auto"])

    assert [config.seed for config in configs] == [2]
    assert [config.run.dir for config in configs] == ["mine/1"]
    assert [config.resume for config in configs] == ["auto"]
    assert outcomes("mine") == [JobState.DONE, JobState.DONE, JobState.DONE]
    assert len(jobs.done) == 3
    shutil.rmtree("mine/0")  # a run that was removed is run again
    assert [config.run.dir for config in run([*words, "resume=auto"])[0]] == ["mine/0"]


def test_a_wider_sweep_runs_what_is_new_under_new_numbers():
    run(["-m", "seed=1,2", "run.dir=mine"])

    words = ["-m", "seed=1,2,3", "loop.clip=1,2", "loop.log_every=5"]
    configs, _, _ = run([*words, "run.dir=mine", "resume=auto"])

    assert [(config.seed, config.loop.clip) for config in configs] == [
        (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2),
    ]  # fmt: skip
    assert [config.run.dir for config in configs] == [f"mine/{n}" for n in range(2, 8)]


def test_what_a_resume_may_change_makes_no_new_job():
    run(["-m", "seed=1,2", "run.dir=mine"], fails=lambda config: ConfigError("bad"))

    configs, _, _ = run(["-m", "seed=1,2", "loop.steps=7", "run.dir=mine", "resume=auto"])

    assert [config.run.dir for config in configs] == ["mine/0", "mine/1"]
    assert [config.loop.steps for config in configs] == [7, 7]


@pytest.mark.parametrize("other", [("seed=7", "loop.batch=2"), ("seed=1", "loop.batch=3")])
def test_what_a_resume_may_not_change_makes_new_jobs(other):
    words = ["-m", "loop.clip=1,2", "run.dir=mine", "resume=auto"]
    run([*words, "seed=1", "loop.batch=2"])

    configs, _, _ = run([*words, *other])

    assert [config.run.dir for config in configs] == ["mine/2", "mine/3"]


@pytest.mark.slow
def test_runs_that_get_longer_are_not_done():
    words = ["-m", "seed=1,2", "run.dir=mine", "resume=auto"]
    run([*words, "loop.steps=5"])

    watched, _, _ = run([*words, "loop.steps=5", "loop.log_every=3"])
    longer, _, _ = run([*words, "loop.steps=9"])
    again, _, _ = run([*words, "loop.steps=9"])

    assert (watched, again) == ([], [])
    assert [(config.run.dir, config.loop.steps) for config in longer] == [
        ("mine/0", 9), ("mine/1", 9),
    ]  # fmt: skip


def test_a_swept_length_tells_jobs_apart():
    configs, _, _ = run(["-m", "loop.steps=7,8", "run.dir=mine"])

    assert [config.run.dir for config in configs] == ["mine/0", "mine/1"]
    assert run(["-m", "loop.steps=7,8", "run.dir=mine", "resume=auto"])[0] == []


@pytest.mark.slow
def test_without_a_folder_the_latest_sweep_of_the_same_words_goes_on(monkeypatch):
    # A sweep knows the second in which it began.
    seconds = (datetime(2026, 1, 1, 12, 0, number) for number in itertools.count())
    monkeypatch.setattr(working, "datetime", SimpleNamespace(now=lambda: next(seconds)))
    _, first, _ = run(["-m", "seed=1,2"], fails=lambda config: StoppedError("asked to"))
    _, other, _ = run(["-m", "seed=1,2", "loop.batch=5"])

    configs, again, _ = run(["-m", "resume=auto", "seed=1,2"])

    assert again.sweep_dir == first.sweep_dir != other.sweep_dir
    assert [config.seed for config in configs] == [1, 2]


@pytest.mark.slow
def test_a_job_that_another_command_has_comes_last_and_is_waited_for():
    words = ["-m", "seed=1,2", "run.dir=mine"]
    run(words, fails=lambda config: ConfigError("bad"))
    claim = contextlib.ExitStack()
    claim.enter_context(SweepDirectory(Path("mine")).claim(0))

    # Released by the other job.
    configs, jobs, _ = run([*words, "resume=auto"], fails=lambda config: claim.close())

    assert [config.seed for config in configs] == [2, 1]
    assert [job.outcome for job in jobs.done] == [JobState.DONE, JobState.DONE]


def test_every_job_is_resumed_as_strictly_as_the_sweep():
    words = ["-m", "seed=1,2", "run.dir=mine"]
    run(words, fails=lambda config: StoppedError("asked to"))

    configs, _, _ = run([*words, "resume.strict=true", "resume=auto"])

    assert [config.resume_strict for config in configs] == [True, True]


@pytest.mark.slow
def test_a_sweep_that_goes_on_keeps_its_number_of_threads(monkeypatch):
    words = ["-m", "seed=1,2", "run.dir=mine"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run(words, fails=lambda config: StoppedError("asked to"))

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run([*words, "resume=auto"])

    assert SweepDirectory(Path("mine")).read_request().threads == 3


def test_an_interrupted_job_was_stopped_and_the_next_ones_are_left():
    def interrupt(config):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["-m", "seed=1,2", "run.dir=mine"], fails=interrupt)

    assert outcomes("mine") == [JobState.STOPPED, JobState.LEFT]


def test_a_pruned_job_is_no_failure():
    _, _, reported = run(
        ["-m", "seed=1,2", "run.dir=mine"], fails=lambda config: PrunedError("hopeless")
    )

    assert outcomes("mine") == [JobState.PRUNED, JobState.PRUNED]
    assert reported == []


def test_a_run_by_itself_that_is_pruned_ends_as_such():
    """The process of a job is one: its sweep knows by the exit code."""
    with pytest.raises(PrunedError, match="hopeless"):
        run(["run.dir=mine"], fails=lambda config: PrunedError("hopeless"))


def test_a_sweep_may_end_with_its_first_failure():
    configs, _, _ = run(
        ["-m", "seed=1,2,3", "sweep.on_error=stop", "run.dir=mine"],
        fails=lambda config: ConfigError("bad"),
    )

    assert len(configs) == 1
    assert outcomes("mine") == [JobState.FAILED, JobState.LEFT, JobState.LEFT]


# --- presets -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "jobs"), [("seeds", 5), ("lr", 7), ("few_label", 12), ("tutorial", 5)]
)
def test_a_preset_makes_a_sweep_of_a_command(preset, jobs):
    configs, _, _ = run([f"sweep={preset}"], "finetune")

    assert len({config.run.dir for config in configs}) == jobs


def test_what_is_typed_wins_over_a_preset():
    configs, _, _ = run(["sweep=few_label", "data.labelled=20,null", "seed=7"], "finetune")

    assert [(config.data.labelled, config.seed) for config in configs] == [(20, 7), (None, 7)]


def test_what_a_file_sweeps_may_be_a_list_and_presets_are_not_swept():
    configs, _, _ = run(["++sweep.over={seed:[0,1]}"], "finetune")

    assert [config.seed for config in configs] == [0, 1]
    with pytest.raises(ConfigError, match=r"^sweep: takes one preset"):
        run(["-m", "sweep=lr,seeds"], "finetune")


@pytest.mark.slow
def test_schemes_are_compared_each_at_its_own_rate_unless_one_is_typed():
    words = ["sweep=schemes", "adaptation=full,lora,gradual_unfreezing"]

    configs, _, _ = run(words, "finetune")
    fixed, _, _ = run([*words, "optimizer.lr=1e-3"], "finetune")

    assert len({config.optimizer.lr for config in configs}) == 3
    assert [config.optimizer.lr for config in fixed] == [1e-3] * 3


def test_a_preset_is_looked_at_without_a_sweep(capsys):
    request = parse_request(["sweep=lr", "--cfg", "job"])

    assert not request.multirun
    assert not parse_request(["sweep=lr", "--job", "word"]).multirun
    assert not parse_request(["sweep=null"]).multirun
    assert parse_request(["sweep=lr"]).multirun


# --- settings of a sweep -------------------------------------------------------------------------


def settings(**values):
    return settings_of(OmegaConf.merge(OmegaConf.structured(SweepConfig), values))


def test_the_defaults_are_fine():
    assert settings() == SweepConfig()


@pytest.mark.parametrize(
    ("workers", "devices", "threads"), [("auto", 1, 8), ("3", 1, 2), ("2", 2, 2), ("9", 1, 1)]
)
def test_jobs_share_the_cores(monkeypatch, workers, devices, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("transfer_cli.sweeps.local.available_cores", lambda: 8)

    assert Shares(settings(workers=workers), devices, gpus=[]).threads == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")  # what is typed is that of every job
    assert Shares(settings(workers=workers), devices, gpus=[]).threads == 5


def test_the_latest_sweep_of_the_same_words_goes_on(tmp_path):
    for name, began, words in (
        ("old", "2026-01-01T10:00:00+00:00", ("seed=0,1", "adaptation=lora")),
        ("new", "2026-01-02T10:00:00+02:00", ("adaptation=lora", "seed=0,1")),
        ("naive", "2026-01-01T08:00:00", ("adaptation=lora", "seed=0,1")),
        ("other", "2026-01-03T10:00:00+00:00", ("adaptation=full", "seed=0,1")),
    ):
        SweepDirectory(tmp_path / name).write_request(SweepRequest("finetune", words, began))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "sweep.json").write_text("{")
    (tmp_path / "undated").mkdir()
    (tmp_path / "undated" / "sweep.json").write_text(
        json.dumps({"command": "finetune", "words": ["seed=0,1"], "began": "soon"})
    )

    words = ("seed=0,1", "adaptation=lora")

    assert latest_sweep(tmp_path, "finetune", words) == tmp_path / "new"
    assert latest_sweep(tmp_path, "pretrain", words) is None
    assert latest_sweep(tmp_path, "finetune", ("seed=0,1",)) is None
    assert latest_sweep(tmp_path / "nowhere", "finetune", words) is None


# --- grids ---------------------------------------------------------------------------------------


def test_what_has_the_data_prepared_again_is_said_with_how_often(caplog):
    configs = [{"data": {"length": length}, "tokenizer": {"size": size}}
               for length in (32, 64) for size in (600, 700, 800)]  # fmt: skip
    caplog.set_level(logging.INFO)
    log_data_changes([{**configs[0], "seed": seed} for seed in (0, 1)])  # leaves the data alone
    log_data_changes(configs)

    assert caplog.messages == [
        "data.length, tokenizer.size change the data: it is prepared 6 times, once for all jobs "
        "that agree in this"
    ]


def refuse_ewc(config, command):
    """Refuse one scheme, as where a model's pretraining text is not known."""
    if "ewc" in str(config.adaptation.get("penalty")).lower():
        raise ConfigError("source: no text")


PRESETS = {path.stem for path in Path(conf.__file__).parent.glob("adaptation/*.yaml")}


def test_the_sweep_over_schemes_has_every_preset():
    text = (Path(conf.__file__).parent / "sweep" / "schemes.yaml").read_text(encoding="utf-8")

    listed = yaml.safe_load(text)["sweep"]["over"]["adaptation"]
    assert sorted(listed.split(",")) == sorted(PRESETS)


@pytest.mark.slow
def test_schemes_that_cannot_run_are_left_out_by_name(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    words = ["init_from=model", "data=sample_questions", "run.dir=all"]

    configs, _, _ = run(["sweep=schemes", *words], "finetune", try_out=refuse_ewc)

    named = {message.split()[0] for message in caplog.messages if "is left out" in message}
    assert len(configs) + len(named) == len(PRESETS)
    # These have no teachers, and ewc no text.
    assert named == {f"adaptation={name}" for name in ("distil", "ewc", "self_training")}


def test_a_scheme_that_was_typed_is_not_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    configs, _, _ = run(
        ["sweep=schemes", "adaptation=full,ewc", "init_from=model", "run.dir=two"], "finetune",
        try_out=refuse_ewc,
    )  # fmt: skip

    assert len(configs) == 2
