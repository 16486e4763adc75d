import json
import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_cli.errors import CheckpointError
from transfer_cli.runs import checkpoint
from transfer_cli.runs.checkpoint import META, STATE, Checkpoint, find_all, prune, read_state

STATE_OF_A_RUN = {
    "step": {"optimizer": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "betas": (0.9, 0.99)}},
    "progress": {"step": 7, "best": None, "measures": {"loss": float("inf")}},
}


def weights(content="weights"):
    return lambda folder: (folder / "weights.safetensors").write_text(content)


def written(folder, step=7, state=STATE_OF_A_RUN):
    path = folder / checkpoint.name(step)
    checkpoint.write(path, step, weights(), state)
    return Checkpoint(path, step)


class Evil:
    """What runs code when it is read from a pickle."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


# Writing.


def test_a_state_is_read_as_it_was_written(tmp_path):
    found = read_state(written(tmp_path))

    assert found["progress"] == STATE_OF_A_RUN["progress"]
    optimizer = found["step"]["optimizer"]
    assert torch.equal(optimizer["state"][0]["exp_avg"], torch.arange(3.0))
    assert optimizer["betas"] == (0.9, 0.99)


def test_a_checkpoint_of_weights_alone_has_no_state(tmp_path):
    found = written(tmp_path, state=None)

    assert sorted(path.name for path in found.path.iterdir()) == [META, "weights.safetensors"]


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path):
    checkpoint.write(tmp_path / "best", 1, weights("old"), None)

    checkpoint.write(tmp_path / "best", 2, weights("new"), None)

    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert (tmp_path / "best" / "weights.safetensors").read_text() == "new"
    assert json.loads((tmp_path / "best" / META).read_text())["step"] == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_that_fails_leaves_the_old_checkpoint_and_nothing_else(tmp_path, moment):
    checkpoint.write(tmp_path / "best", 1, weights("old"), None)

    def fail(folder):
        if moment == "after":
            weights("half")(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoint.write(tmp_path / "best", 2, fail, None)

    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert (tmp_path / "best" / "weights.safetensors").read_text() == "old"


def test_a_checkpoint_that_is_being_written_is_not_there_yet(tmp_path):
    seen = []

    checkpoint.write(
        tmp_path / checkpoint.name(7), 7, lambda folder: seen.extend(find_all(tmp_path)), None
    )

    assert not seen
    assert find_all(tmp_path) == [Checkpoint(tmp_path / "step-00000007", 7)]


# Finding and removing.


@given(st.lists(st.integers(0, 10**8 - 1), min_size=2, unique=True))
def test_names_sort_as_their_steps_do(steps):
    assert sorted(steps) == [int(name[5:]) for name in sorted(map(checkpoint.name, steps))]


def test_complete_checkpoints_are_found_oldest_first(tmp_path):
    for step in (10, 2, 300):
        written(tmp_path, step)
    (tmp_path / "step-00000400").mkdir()  # a crash of the file system
    checkpoint.write(tmp_path / "best", 2, weights(), None)

    assert [found.step for found in find_all(tmp_path)] == [2, 10, 300]


def test_a_folder_that_is_not_there_holds_none(tmp_path):
    assert find_all(tmp_path / "none") == []


@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3]), (1, [3]), (2, [2, 3]), (9, [1, 2, 3])])
def test_pruning_keeps_the_newest_and_the_best(tmp_path, keep, left):
    for step in (1, 2, 3):
        written(tmp_path, step)
    checkpoint.write(tmp_path / "best", 1, weights(), None)

    prune(tmp_path, keep)

    assert [found.step for found in find_all(tmp_path)] == left
    assert (tmp_path / "best" / META).exists()


# Reading what is not right.


def test_a_state_with_code_in_it_is_refused_and_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = written(tmp_path)
    torch.save({"step": Evil()}, found.path / STATE)

    with pytest.raises(CheckpointError, match="damaged or holds more than plain values"):
        read_state(found)

    assert not (tmp_path / "pwned").exists()


def test_a_bare_pickle_with_code_in_it_is_refused_and_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = written(tmp_path)
    (found.path / STATE).write_bytes(pickle.dumps(Evil(), protocol=2))

    with pytest.raises(CheckpointError, match="damaged or holds more than plain values"):
        read_state(found)

    assert not (tmp_path / "pwned").exists()


def test_a_later_format_is_refused(tmp_path):
    found = written(tmp_path)
    (found.path / META).write_text(json.dumps({"format": checkpoint.FORMAT + 1, "step": 7}))

    with pytest.raises(CheckpointError, match="was written by a later version"):
        read_state(found)


@pytest.mark.parametrize("name", [STATE, META])
def test_a_missing_file_is_named(tmp_path, name):
    found = written(tmp_path)
    (found.path / name).unlink()

    with pytest.raises(CheckpointError, match=str(found.path)):
        read_state(found)


@settings(max_examples=25)
@given(share=st.floats(0, 0.99))
def test_a_state_that_was_cut_off_is_refused(tmp_path_factory, share):
    found = written(tmp_path_factory.mktemp("cut"))
    content = (found.path / STATE).read_bytes()
    (found.path / STATE).write_bytes(content[: int(share * len(content))])

    with pytest.raises(CheckpointError, match="is damaged"):
        read_state(found)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "3", '{"format": "new"}'])
def test_a_damaged_meta_file_is_refused(tmp_path, content):
    found = written(tmp_path)
    (found.path / META).write_text(content)

    with pytest.raises(CheckpointError, match="is damaged"):
        read_state(found)
