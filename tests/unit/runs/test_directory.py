import fcntl
import json
import subprocess
import sys
from datetime import datetime

import pytest

from transfer_cli.errors import RunError
from transfer_cli.runs import atomic, directory
from transfer_cli.runs.directory import RunDirectory, find_model


def started(path):
    run = RunDirectory.create(path)
    run.start("pretrain", "seed: 0\n", ["seed=0"], {"data": "text"}, {"torch": "2"})
    return run


# Making one.


@pytest.mark.parametrize("there", [True, False])
def test_a_run_directory_is_made_in_an_empty_or_a_new_folder(tmp_path, there):
    path = tmp_path if there else tmp_path / "runs" / "first"

    run = RunDirectory.create(path)

    assert {entry.name for entry in path.iterdir()} == {".lock", "status.json"}
    assert run.read_status() == "starting"


def test_new_runs_of_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    class Noon(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12, 0, 0, tzinfo=tz)

    monkeypatch.setattr(atomic, "datetime", Noon)

    made = [RunDirectory.create_new(tmp_path, "text-clm").path.name for _ in range(3)]

    stamp = "2026-01-02_12-00-00-text-clm"
    assert made == [stamp, f"{stamp}-2", f"{stamp}-3"]


def test_a_root_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(RunError, match=r"run\.root: .* cannot be written"):
        RunDirectory.create_new(tmp_path / "file", "text")


# Whose it is.


def test_a_run_is_written_by_one_command_at_a_time(tmp_path):
    run = started(tmp_path / "run")

    with pytest.raises(RunError, match=r"resume: another command is writing to .*run; wait"):
        RunDirectory(run.path).lock("resume")
    run.unlock()
    RunDirectory(run.path).lock("resume")


HOLD = """
import sys
from pathlib import Path
from transfer_cli.runs.directory import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
run.lock("run.dir")
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_killed_command_is_free_again(tmp_path):
    run = started(tmp_path / "run")
    run.unlock()
    words = [sys.executable, "-c", HOLD, str(run.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as other:
        assert other.stdout.readline() == "held\n"

        with pytest.raises(RunError, match="another command"):
            RunDirectory(run.path).lock("resume")
        other.kill()
        other.wait()

    RunDirectory(run.path).lock("resume")


def test_a_lock_that_was_removed_meanwhile_is_not_taken(tmp_path, monkeypatch):
    run = started(tmp_path / "run")
    run.unlock()
    flock = fcntl.flock

    def meanwhile(*args):
        (run.path / ".lock").unlink()
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    with pytest.raises(RunError, match="another command"):
        run.lock("resume")


def test_of_two_commands_that_begin_the_same_run_the_second_is_refused(tmp_path):
    first = RunDirectory.create(tmp_path / "run")

    with pytest.raises(RunError, match=r"run\.dir: another command is writing to"):
        RunDirectory.create(tmp_path / "run")

    first.unlock()
    RunDirectory.create(tmp_path / "run")


def test_a_command_that_was_slower_finds_the_run_of_the_other(tmp_path, monkeypatch):
    lock = RunDirectory.lock

    def meanwhile(run, key):
        monkeypatch.setattr(RunDirectory, "lock", lock)
        started(tmp_path / "run").unlock()
        lock(run, key)

    monkeypatch.setattr(RunDirectory, "lock", meanwhile)
    with pytest.raises(RunError, match="already holds a run"):
        RunDirectory.create(tmp_path / "run")

    assert RunDirectory(tmp_path / "run").read_command() == "pretrain"
    RunDirectory(tmp_path / "run").lock("resume")


@pytest.mark.parametrize("names", [(), ("model", "overrides.txt"), (".config.yaml.123",)])
def test_what_a_command_left_that_was_killed_before_its_run_is_no_hindrance(tmp_path, names):
    killed = RunDirectory.create(tmp_path / "run")
    killed.unlock()
    for name in names:
        (killed.path / name).mkdir() if name == "model" else (killed.path / name).touch()

    run = RunDirectory.create(tmp_path / "run")

    assert {entry.name for entry in run.path.iterdir()} == {".lock", "status.json"}


def test_a_directory_that_cannot_even_be_marked_is_not_left_behind(tmp_path, monkeypatch):
    def refuse(path, content):
        raise RunError("full")

    monkeypatch.setattr(directory, "write_json", refuse)
    with pytest.raises(RunError, match="full"):
        RunDirectory.create(tmp_path / "run")

    assert not (tmp_path / "run").exists()


def test_a_kill_before_the_mark_is_no_hindrance_either(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".status.json.4711").touch()

    RunDirectory.create(tmp_path)


@pytest.mark.parametrize("mark", [None, "running", "starting"])
def test_a_users_own_folder_is_never_taken_for_a_leftover(tmp_path, mark):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").touch()
    if mark is not None:
        (tmp_path / "status.json").write_text(json.dumps({"status": mark}))
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(RunError, match="is not empty"):
        RunDirectory.create(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before


def test_a_users_file_among_leftovers_is_kept(tmp_path):
    killed = RunDirectory.create(tmp_path / "run")
    killed.unlock()
    (killed.path / "thesis.tex").touch()

    with pytest.raises(RunError, match="is not empty"):
        RunDirectory.create(tmp_path / "run")

    assert (killed.path / "thesis.tex").exists()


def test_half_written_files_of_a_killed_command_are_removed(tmp_path):
    run = started(tmp_path / "run")
    run.model.mkdir()
    run.checkpoints.mkdir()
    left = [run.path / ".metrics.jsonl.12", run.model / ".weights.safetensors.12",
            run.checkpoints / ".model.json.12"]  # fmt: skip
    for path in left:
        path.mkdir() if path.parent == run.model else path.touch()
    (run.path / ".notes.12").touch()

    run.clear_leftovers()

    assert not any(path.exists() for path in left)
    assert (run.path / ".notes.12").exists()


# What is in one.


def test_a_started_run_says_what_it_is(tmp_path):
    run = started(tmp_path / "run")

    assert run.config.read_text() == "seed: 0\n"
    assert run.overrides.read_text() == "seed=0\n"
    assert run.read_presets() == {"data": "text"}
    assert run.read_command() == "pretrain"
    assert run.read_status() == "running"


def test_a_status_has_a_reason_where_there_is_one(tmp_path):
    run = started(tmp_path / "run")

    run.set_status("failed", "no space")

    assert json.loads(run.status.read_text()) == {"status": "failed", "reason": "no space"}
    run.set_status("finished")
    assert json.loads(run.status.read_text()) == {"status": "finished"}


def test_a_run_without_a_status_is_unknown(tmp_path):
    assert RunDirectory(tmp_path).read_status() == "unknown"


def test_a_run_is_opened_where_there_is_one(tmp_path):
    run = started(tmp_path / "run")

    assert RunDirectory.open(run.path, "resume").path == run.path


def test_a_discarded_run_leaves_nothing(tmp_path):
    run = started(tmp_path / "run")
    for folder in (run.tensorboard, run.analyses):
        folder.mkdir()
        (folder / "something").touch()
    run.metrics.touch()

    run.discard()

    assert not run.path.exists()


def test_discarding_a_run_leaves_what_is_not_of_it(tmp_path):
    run = started(tmp_path / "run")
    (run.path / "thesis.tex").touch()

    run.discard()

    assert [path.name for path in run.path.iterdir()] == ["thesis.tex"]


def test_a_kill_while_a_run_is_discarded_is_no_hindrance(tmp_path, monkeypatch):
    run = started(tmp_path / "run")
    run.model.mkdir()
    run.metrics.touch()

    class Killed(BaseException):
        pass

    def kill(path, **_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(directory, "remove", kill)
        with pytest.raises(Killed):
            run.discard()
    run.unlock()

    RunDirectory.create(run.path)


# Finding a model in one.


def with_model(tmp_path):
    run = started(tmp_path / "run")
    run.model.mkdir()
    (run.model / "model.json").touch()
    (run.checkpoints / "best").mkdir(parents=True)
    return run


def test_a_model_is_found_from_the_run_its_model_folder_and_its_checkpoints(tmp_path):
    run = with_model(tmp_path)

    assert find_model(run.path, "init_from") == (run.model, run.model)
    assert find_model(run.model, "init_from") == (run.model, run.model)
    assert find_model(run.best, "init_from") == (run.best, run.model)
