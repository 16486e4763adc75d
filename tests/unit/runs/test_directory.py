import json
from datetime import datetime

import pytest

from transfer_cli.errors import CheckpointError, RunError
from transfer_cli.runs import directory
from transfer_cli.runs.directory import RunDirectory, find_model, write_json, write_text


def started(path):
    run = RunDirectory.create(path)
    run.start("pretrain", "seed: 0\n", ["seed=0"], {"data": "text"}, {"torch": "2"})
    return run


# Making one.


@pytest.mark.parametrize("there", [True, False])
def test_a_run_directory_is_made_in_an_empty_or_a_new_folder(tmp_path, there):
    path = tmp_path if there else tmp_path / "runs" / "first"

    RunDirectory.create(path)

    assert not list(path.iterdir())


def test_a_folder_with_a_run_is_refused_with_how_to_go_on(tmp_path):
    started(tmp_path)

    with pytest.raises(RunError, match=f"already holds a run; go on with it by resume={tmp_path}"):
        RunDirectory.create(tmp_path)


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(RunError, match="is not empty"):
        RunDirectory.create(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").touch()

    with pytest.raises(RunError, match="is not a folder"):
        RunDirectory.create(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(RunError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "run")


def test_new_runs_of_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    class Noon(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12, 0, 0, tzinfo=tz)

    monkeypatch.setattr(directory, "datetime", Noon)

    made = [RunDirectory.create_new(tmp_path, "text-clm").path.name for _ in range(3)]

    stamp = "2026-01-02_12-00-00-text-clm"
    assert made == [stamp, f"{stamp}-2", f"{stamp}-3"]


def test_a_root_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(RunError, match=r"run\.root: .* cannot be written"):
        RunDirectory.create_new(tmp_path / "file", "text")


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


@pytest.mark.parametrize(("name", "message"), [("none", "there is no folder"), (".", "is no run")])
def test_what_is_no_run_cannot_be_opened(tmp_path, name, message):
    with pytest.raises(CheckpointError, match=f"resume: .*{message}"):
        RunDirectory.open(tmp_path / name, "resume")


def test_a_discarded_run_leaves_nothing(tmp_path):
    run = started(tmp_path / "run")

    run.discard()

    assert not run.path.exists()


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


def test_a_folder_with_a_pickle_is_refused_by_its_name(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()

    with pytest.raises(CheckpointError, match=r"init_from: .*pytorch_model\.bin is a pickle"):
        find_model(tmp_path, "init_from")


@pytest.mark.parametrize(
    ("name", "message"), [("none", "there is no folder"), (".", "is neither a run directory")]
)
def test_what_holds_no_model_is_refused(tmp_path, name, message):
    with pytest.raises(CheckpointError, match=f"init_from: .*{message}"):
        find_model(tmp_path / name, "init_from")


# Files.


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    write_json(path, {"name": "Zoë"})

    assert json.loads(path.read_text(encoding="utf-8")) == {"name": "Zoë"}
    assert list(tmp_path.iterdir()) == [path]
