import errno
import json
import logging
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_cli.errors import CheckpointError, RunError
from transfer_cli.runs import checkpoint
from transfer_cli.runs.checkpoint import (
    META,
    STATE,
    clear_leftovers,
    find_all,
    newest_good,
    prune,
    read_state,
    restore_best,
    verify,
    whole_best,
    write_best,
)

WEIGHTS = "weights.safetensors"

STATE_OF_A_RUN = {
    "step": {"optimizer": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "betas": (0.9, 0.99)}},
    "progress": {"step": 7, "best": None, "measures": {"loss": float("inf")}},
}


def weights(content="weights"):
    return lambda folder: (folder / "weights.safetensors").write_text(content)


def written(folder, step=7, state=STATE_OF_A_RUN, best=None):
    path = folder / checkpoint.folder_name(step)
    checkpoint.write(path, step, weights(f"weights {step}"), state, best)
    return path


def flip(file):
    """Change one bit, as an ageing disk does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


class Killed(BaseException):
    """Stands for a kill: nothing but `finally` runs after it, and what that does is undone."""


# Writing.


def test_a_state_is_read_as_it_was_written(tmp_path):
    state = read_state(written(tmp_path))

    assert state["progress"] == STATE_OF_A_RUN["progress"]
    optimizer = state["step"]["optimizer"]
    assert torch.equal(optimizer["state"][0]["exp_avg"], torch.arange(3.0))
    assert optimizer["betas"] == (0.9, 0.99)


def test_writing_best_weights_again_replaces_them_and_leaves_nothing_else(tmp_path):
    write_best(tmp_path / "best", 1, weights("old"))

    write_best(tmp_path / "best", 2, weights("new"))

    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert {path.name for path in (tmp_path / "best").iterdir()} == {META, WEIGHTS}
    assert (tmp_path / "best" / WEIGHTS).read_text() == "new"
    assert json.loads((tmp_path / "best" / META).read_text())["step"] == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_that_fails_leaves_the_old_checkpoint_and_nothing_else(tmp_path, moment):
    write_best(tmp_path / "best", 1, weights("old"))

    def fail(folder):
        if moment == "after":
            weights("half")(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_best(tmp_path / "best", 2, fail)

    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert (tmp_path / "best" / "weights.safetensors").read_text() == "old"


def test_a_checkpoint_that_is_being_written_is_not_there_yet(tmp_path):
    seen = []

    checkpoint.write(
        tmp_path / checkpoint.folder_name(7), 7, lambda folder: seen.extend(find_all(tmp_path)), {}
    )

    assert not seen
    assert find_all(tmp_path) == [tmp_path / "step-00000007"]


# Finding and removing.


@given(st.lists(st.integers(0, 10**8 - 1), min_size=2, unique=True))
def test_names_sort_as_their_steps_do(steps):
    assert sorted(steps) == [int(name[5:]) for name in sorted(map(checkpoint.folder_name, steps))]


def steps_in(folder):
    return [checkpoint.step_of(path) for path in find_all(folder)]


def test_complete_checkpoints_are_found_oldest_first(tmp_path):
    for step in (10, 2, 300):
        written(tmp_path, step)
    (tmp_path / "step-00000400").mkdir()  # a crash of the file system
    write_best(tmp_path / "best", 2, weights())
    for other in ("step-two", "step-00000003.bak", "step-3"):
        shutil.copytree(tmp_path / checkpoint.folder_name(2), tmp_path / other)

    assert steps_in(tmp_path) == [2, 10, 300]


@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3]), (1, [3]), (2, [2, 3]), (9, [1, 2, 3])])
def test_pruning_keeps_the_newest_and_the_best(tmp_path, keep, left):
    for step in (1, 2, 3):
        written(tmp_path, step)
    write_best(tmp_path / "best", 1, weights())

    prune(tmp_path, keep, newest=3)

    assert steps_in(tmp_path) == left
    assert (tmp_path / "best" / META).exists()


@pytest.mark.parametrize(
    ("harm", "damaged", "keep", "left"),
    [
        (cut, 2, 2, [1, 3]),
        (Path.unlink, 2, 2, [1, 3]),
        (flip, 4, 1, [3]),  # sizes do not show it: the run was resumed from before it
    ],
)
def test_pruning_does_not_count_a_damaged_one(tmp_path, harm, damaged, keep, left):
    for step in (1, 2, 4, 3):
        written(tmp_path, step)
    harm(tmp_path / checkpoint.folder_name(damaged) / WEIGHTS)

    prune(tmp_path, keep, newest=3)

    assert steps_in(tmp_path) == left


# The best weights.


def test_a_checkpoint_takes_the_best_weights_along(tmp_path):
    write_best(tmp_path / "best", 3, weights("best of 3"))
    folder = written(tmp_path, 4, best=tmp_path / "best")
    write_best(tmp_path / "best", 5, weights("best of 5"))
    listed = json.loads((folder / META).read_text())["files"]

    restore_best(folder, tmp_path / "best", 3)

    assert set(listed) == {WEIGHTS, STATE, f"best/{WEIGHTS}"}
    assert (tmp_path / "best" / WEIGHTS).read_text() == "best of 3"
    assert json.loads((tmp_path / "best" / META).read_text())["step"] == 3
    verify(tmp_path / "best")
    verify(folder)


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_best_weights_that_are_damaged_or_gone_come_back_from_the_checkpoint(tmp_path, harm):
    write_best(tmp_path / "best", 3, weights("best of 3"))
    folder = written(tmp_path, 4, best=tmp_path / "best")
    path = tmp_path / "best" / WEIGHTS
    harm(path)

    restore_best(folder, tmp_path / "best", 3)

    assert path.read_text() == "best of 3"
    assert not path.samefile(folder / "best" / WEIGHTS)


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_no_two_that_are_needed_share_a_file_of_the_best_weights(tmp_path, keep):
    for step in range(1, 13):
        if step % 4 == 1:
            write_best(tmp_path / "best", step, weights(f"best of {step}"))
        written(tmp_path, step, best=tmp_path / "best")
        prune(tmp_path, keep, newest=step)

        holders = [tmp_path, *find_all(tmp_path)]
        inode, *others = [(holder / "best" / WEIGHTS).stat().st_ino for holder in holders]
        assert inode not in others
        assert len(set(others[-2:])) == len(others[-2:])
        assert len(set(others)) <= 2 * (step // 4 + 1)  # of one best, two copies are enough


@pytest.mark.parametrize("victim", ["best", "step-00000003", "step-00000004"])
def test_one_damaged_file_leaves_enough_to_go_on(tmp_path, victim, caplog):
    write_best(tmp_path / "best", 1, weights("best"))
    for step in (2, 3, 4):
        written(tmp_path, step, best=tmp_path / "best")
        prune(tmp_path, 2, newest=step)

    flip(tmp_path / victim.replace("best", "") / "best" / WEIGHTS)

    whole = whole_best(tmp_path)
    assert (whole / WEIGHTS).read_text() == "best"
    folder = newest_good(tmp_path)
    assert checkpoint.step_of(folder) == (3 if victim == "step-00000004" else 4)
    restore_best(folder, tmp_path / "best", 1)
    verify(tmp_path / "best")
    said = {
        "best": "taking their copy in",
        "step-00000003": "",
        "step-00000004": "trying step 3, with 0 more left",
    }
    assert said[victim] in caplog.text


def test_best_weights_of_which_every_copy_is_damaged_are_refused(tmp_path):
    write_best(tmp_path / "best", 1, weights("best of another step"))
    written(tmp_path, 2, best=tmp_path / "best")
    write_best(tmp_path / "best", 3, weights("best of 3"))
    for folder in (tmp_path, written(tmp_path, 4, best=tmp_path / "best")):
        flip(folder / "best" / WEIGHTS)

    with pytest.raises(CheckpointError, match=r"best/weights.* is damaged.* no checkpoint holds"):
        whole_best(tmp_path)


@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_a_checkpoint_takes_nothing_that_was_cut_or_lost(tmp_path, harm):
    write_best(tmp_path / "best", 1, weights("best"))
    for step in (2, 3):
        written(tmp_path, step, best=tmp_path / "best")
    harm(tmp_path / checkpoint.folder_name(2) / "best" / WEIGHTS)

    last = written(tmp_path, 4, best=tmp_path / "best")
    verify(last)
    harm(tmp_path / "best" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"best.* is damaged"):
        written(tmp_path, 5, best=tmp_path / "best")
    assert newest_good(tmp_path) == last


def test_where_files_cannot_be_shared_they_are_copied(tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write_best(tmp_path / "best", 3, weights("best of 3"))
    for step in (4, 5, 6):
        folder = written(tmp_path, step, best=tmp_path / "best")

    verify(folder)
    assert (folder / "best" / WEIGHTS).stat().st_nlink == 1


def test_best_weights_are_hashed_once_a_checkpoint_takes_them_along(tmp_path):
    def listed():
        return json.loads((tmp_path / "best" / META).read_text())["files"]

    write_best(tmp_path / "best", 3, weights())
    assert listed() is None

    written(tmp_path, 4, best=tmp_path / "best")

    assert listed().keys() == {WEIGHTS}
    verify(tmp_path / "best")
    flip(tmp_path / "best" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"best/weights\.safetensors is damaged"):
        verify(tmp_path / "best")


# Damage.


@pytest.mark.parametrize("name", [WEIGHTS, STATE, f"best/{WEIGHTS}"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_whatever_is_damaged_is_found_and_named(tmp_path, name, harm):
    write_best(tmp_path / "best", 3, weights())
    folder = written(tmp_path, best=tmp_path / "best")
    verify(folder)

    harm(folder / name)

    with pytest.raises(CheckpointError, match="damaged") as refused:
        verify(folder)
    assert str(folder) in str(refused.value)
    assert name.rpartition("/")[2] in str(refused.value)


def test_the_one_before_a_damaged_one_is_used_and_that_is_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for step in (1, 2, 3, 4):
        written(tmp_path, step)
    flip(tmp_path / checkpoint.folder_name(4) / WEIGHTS)
    (tmp_path / checkpoint.folder_name(3) / STATE).unlink()

    assert newest_good(tmp_path) == tmp_path / checkpoint.folder_name(2)

    first, second = caplog.messages
    assert "step-00000004/weights.safetensors is damaged" in first
    assert first.endswith("trying step 3, with 2 more left")
    assert "step-00000003 is damaged: train_state.pt is missing" in second
    assert second.endswith("trying step 2, with 1 more left")


def test_where_all_are_damaged_nothing_is_made_up_and_whole_best_weights_are_named(tmp_path):
    assert newest_good(tmp_path / "checkpoints") is None
    for step in (1, 2):
        flip(written(tmp_path, step) / STATE)

    with pytest.raises(CheckpointError, match=r"step-00000001.*is damaged.* no other .* is whole"):
        newest_good(tmp_path)
    write_best(tmp_path / "best", 1, weights("best"))
    flip(written(tmp_path, 3, best=tmp_path / "best") / STATE)
    with pytest.raises(CheckpointError, match=rf"init_from={tmp_path / 'best'}, or remove"):
        newest_good(tmp_path)


def test_a_later_format_is_not_taken_for_damage(tmp_path):
    written(tmp_path, 1)
    path = written(tmp_path, 2) / META
    path.write_text(json.dumps({"format": checkpoint.FORMAT + 1}))

    with pytest.raises(CheckpointError, match="was written by a later version"):
        newest_good(tmp_path)
    with pytest.raises(CheckpointError, match="was written by a later version"):
        read_state(path.parent)


def test_a_list_that_names_files_elsewhere_opens_none_of_them(tmp_path):
    folder = written(tmp_path)
    meta = json.loads((folder / META).read_text())
    meta["files"]["../../../../../../dev/zero"] = {"bytes": 0, "blake2b": ""}
    (folder / META).write_text(json.dumps(meta))

    with pytest.raises(CheckpointError, match="is missing"):
        verify(folder)


# The list of a finished model.


def finished(folder):
    with checkpoint.listing_files(folder, [WEIGHTS, "model.json"]):
        weights()(folder)
        (folder / "model.json").write_text("{}")
    (folder / "notes.txt").write_text("not of the model")


@pytest.mark.parametrize("name", [WEIGHTS, "model.json"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_damage_to_a_listed_file_is_found_where_that_file_is_asked_for(tmp_path, name, harm):
    finished(tmp_path)
    verify(tmp_path)
    harm(tmp_path / name)

    with pytest.raises(CheckpointError, match="is damaged"):
        verify(tmp_path, [name])
    verify(tmp_path, {WEIGHTS, "model.json"} - {name})


def test_what_is_not_on_the_list_is_refused_and_while_files_change_there_is_none(tmp_path):
    finished(tmp_path)

    with pytest.raises(CheckpointError, match=r"does not list notes\.txt"):
        verify(tmp_path, ["notes.txt"])
    with checkpoint.listing_files(tmp_path, [WEIGHTS]):
        assert not (tmp_path / META).exists()
    assert (tmp_path / META).exists()


# A kill while one is written.


def operations(monkeypatch, killed_at):
    """Raise at one of the operations that change the disk, before it is done."""
    count = 0

    def counted(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count >= killed_at:  # and none of those that clean up is done either
                raise Killed
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (Path, "mkdir"), (Path, "rename"), (Path, "unlink"), (Path, "write_text"),
        (Path, "hardlink_to"), (torch, "save"), (shutil, "rmtree"), (os, "fsync"),
    ):  # fmt: skip
        counted(owner, name)


@pytest.mark.parametrize("again", [True, False])
def test_a_kill_at_any_moment_of_writing_leaves_the_old_one_or_the_new_one(tmp_path, again):
    moment = 0
    for moment in range(1, 100):
        folder = tmp_path / str(moment)
        write_best(folder / "best", 1, weights("best"))
        written(folder, 4, best=folder / "best")
        step = 4 if again else 5
        before = (folder / checkpoint.folder_name(4) / STATE).read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            operations(patch, moment)
            try:
                written(folder, step, {"progress": "later"}, folder / "best")
            except Killed:
                killed = True
            else:
                killed = False

        clear_leftovers(folder)

        newest = newest_good(folder)
        left = {path.name for path in folder.iterdir()}
        assert left in ({"best", "step-00000004"}, {"best", "step-00000004", newest.name})
        if (newest / STATE).read_bytes() != before:
            assert read_state(newest) == {"progress": "later"}
            assert checkpoint.step_of(newest) == step
        if not killed:
            assert read_state(newest) == {"progress": "later"}
            break

    assert moment > 15


def test_what_a_running_command_does_not_write_is_left_alone(tmp_path):
    for name in (".step-00000004", ".notes.1", "step-00000004.77", ".best.old.txt"):
        (tmp_path / name).mkdir()

    clear_leftovers(tmp_path)

    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_cannot_take_the_new_ones_place_leaves_the_old_one(tmp_path, monkeypatch):
    written(tmp_path, 4)
    rename = Path.rename

    def fail(self, target):
        if re.fullmatch(r"\.step-\d+\.\d+", self.name):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(RunError, match="cannot be written: Input/output error"):
        written(tmp_path, 4, {"progress": "later"})

    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.folder_name(4)]
    assert read_state(newest_good(tmp_path))["progress"] == STATE_OF_A_RUN["progress"]


# Reading what is not right.


@settings(max_examples=25)
@given(share=st.floats(0, 0.99))
def test_a_state_that_was_cut_off_is_refused(tmp_path_factory, share):
    folder = written(tmp_path_factory.mktemp("cut"))
    content = (folder / STATE).read_bytes()
    (folder / STATE).write_bytes(content[: int(share * len(content))])

    with pytest.raises(CheckpointError, match="is damaged"):
        read_state(folder)


@pytest.mark.parametrize("content", [None, "", "{", "{}", "[]", "3", '{"format": "new"}'])
@pytest.mark.parametrize("name", [STATE, META])
def test_a_missing_or_damaged_file_is_named(tmp_path, name, content):
    folder = written(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)

    with pytest.raises(CheckpointError, match=rf"{folder / name} is damaged"):
        read_state(folder)
