import errno
import fcntl
import io
import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from datetime import datetime

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import ODD_VALUES, altered, damaged, fuzz, tried
from tests.records import read_metrics
from transfer_cli.errors import CheckpointError, RunError
from transfer_cli.runs import atomic, checkpoint, directory, locks
from transfer_cli.runs.atomic import (
    append_json,
    as_run_error,
    new_folder,
    replaced_file,
    replaced_folder,
    truncate_file,
    write_text,
)
from transfer_cli.runs.checkpoint import newest_good, read_state
from transfer_cli.runs.directory import RunDirectory, model_folders
from transfer_cli.runs.locks import Lock, holder_of, is_held, is_shared
from transfer_cli.runs.sweep import (
    JobState,
    SweepDirectory,
    SweepJob,
    SweepRequest,
    keys_in_sweep,
    name_in_sweep,
)
from transfer_cli.safe_files import UnreadableError


def started(path):
    run = RunDirectory.create(path)
    run.write_start("pretrain", "seed: 0\n", ["seed=0"], {"data": "text"}, {"torch": "2"})
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


HOLD = """
import sys
from pathlib import Path
from transfer_cli.runs.directory import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
run.lock("run.dir")
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_another_command_is_free_when_it_was_killed(tmp_path):
    run = started(tmp_path / "run")
    run.unlock()
    words = [sys.executable, "-c", HOLD, str(run.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as other:
        assert other.stdout.readline() == "held\n"

        with pytest.raises(RunError, match=r"resume: another command is writing to .*run; wait"):
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


@pytest.mark.parametrize(
    ("is_marked", "names"),
    [
        (True, []),
        (True, ["model", "overrides.txt"]),
        (True, [".config.yaml.123"]),
        (False, [".lock", ".status.json.4711"]),
    ],
)
def test_what_a_command_left_that_was_killed_before_its_run_is_no_hindrance(
    tmp_path, is_marked, names
):
    if is_marked:
        RunDirectory.create(tmp_path).unlock()
    for name in names:
        (tmp_path / name).mkdir() if name == "model" else (tmp_path / name).touch()

    RunDirectory.create(tmp_path)

    assert {entry.name for entry in tmp_path.iterdir()} == {".lock", "status.json"}


def test_a_directory_that_cannot_even_be_marked_is_not_left_behind(tmp_path, monkeypatch):
    def refuse(path, content):
        raise RunError("full")

    monkeypatch.setattr(directory, "write_json", refuse)
    with pytest.raises(RunError, match="full"):
        RunDirectory.create(tmp_path / "run")

    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mark", [None, "running", "starting"])
@pytest.mark.parametrize("place", ["model/thesis.tex", "thesis.tex"])
def test_a_users_own_folder_is_never_taken_for_a_leftover(tmp_path, mark, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    if place == "thesis.tex" and mark == "starting":  # among what a killed command has left
        (tmp_path / ".lock").touch()
    if mark is not None:
        (tmp_path / "status.json").write_text(json.dumps({"status": mark}))
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(RunError, match="is not empty"):
        RunDirectory.create(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before


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
    run = RunDirectory(tmp_path)
    assert run.read_status() == "unknown"

    run.set_status("failed", "no space")
    assert json.loads(run.status.read_text()) == {"status": "failed", "reason": "no space"}
    run.set_status("finished")
    assert json.loads(run.status.read_text()) == {"status": "finished"}


@pytest.mark.parametrize("others", [[], ["thesis.tex"]])
def test_a_discarded_run_leaves_nothing_but_what_is_not_of_it(tmp_path, others):
    run = started(tmp_path / "run")
    for folder in (run.tensorboard, run.analyses):
        folder.mkdir()
        (folder / "something").touch()
    for name in ("metrics.jsonl", *others):
        (run.path / name).touch()

    run.discard()

    assert [path.name for path in run.path.glob("*")] == others
    assert run.path.exists() == bool(others)


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


def test_a_model_is_found_from_the_run_its_model_folder_and_its_checkpoints(tmp_path):
    run = started(tmp_path / "run")
    run.model.mkdir()
    (run.model / "model.json").touch()
    run.best.mkdir(parents=True)

    assert model_folders(run.path, "init_from") == (run.model, run.model)
    assert model_folders(run.model, "init_from") == (run.model, run.model)
    assert model_folders(run.best, "init_from") == (run.best, run.model)


# --- locks ---------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.4)


@pytest.fixture(params=["no locks", "local locks"])
def shared(request, monkeypatch, quick):
    """Make every disk one that several machines share."""

    def refuse(*given):
        raise OSError(errno.ENOLCK, "No locks available")

    if request.param == "no locks":
        monkeypatch.setattr(fcntl, "flock", refuse)
    else:
        monkeypatch.setattr(fcntl, "flock", lambda *given: None)  # as if it were another machine's
    monkeypatch.setattr(locks, "is_shared", lambda path: True)


@pytest.fixture
def elsewhere(monkeypatch):
    """Return how to be another machine."""
    return lambda name: monkeypatch.setattr(locks, "_machine", lambda: name)


def test_on_a_disk_of_this_machine_the_system_locks_and_nothing_else_is_there(tmp_path):
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")

    assert first.take()
    assert not second.take()
    assert is_held(tmp_path / "lock")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    first.release()
    assert not is_held(tmp_path / "lock")
    assert second.take()
    second.release()


def test_one_of_two_machines_has_a_lock(tmp_path, shared, elsewhere):
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    elsewhere("one")
    assert first.take()

    elsewhere("two")
    assert not second.take()  # after the first has shown that it lives
    assert is_held(tmp_path / "lock")
    first.release()
    assert not is_held(tmp_path / "lock")
    assert second.take()
    second.release()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_who_has_waited_for_a_lock_shows_that_it_lives(tmp_path, shared, elsewhere):
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    elsewhere("one")
    assert first.take()
    elsewhere("two")
    assert not second.take()
    first.release()

    assert second.take()

    holder = holder_of(tmp_path / "lock")
    taken, deadline = holder.stat().st_mtime, time.monotonic() + 10
    while holder.stat().st_mtime == taken:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    second.release()


def test_the_lock_of_a_machine_that_died_is_free_after_a_while(tmp_path, shared, elsewhere):
    elsewhere("two")
    holder_of(tmp_path / "lock").write_text("one 1 1 1")
    began = time.monotonic()

    lock = Lock(tmp_path / "lock")
    assert lock.take()

    assert time.monotonic() - began >= 0.4
    lock.release()


@pytest.mark.parametrize("shared", ["no locks"], indirect=True)
def test_a_holder_that_has_not_yet_written_its_name_is_not_robbed(tmp_path, shared):
    holder_of(tmp_path / "lock").write_text("")
    threading.Timer(0.1, holder_of(tmp_path / "lock").write_text, ("one 1 1 1",)).start()

    assert not Lock(tmp_path / "lock").take()


@pytest.mark.parametrize("shared", ["no locks"], indirect=True)
def test_of_many_that_find_a_holder_of_this_machine_that_died_one_gets_the_lock(tmp_path, shared):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder_of(tmp_path / "lock").write_text(f"{locks._machine()} {ended.pid} 1 1")
    attempts, start = [], threading.Barrier(8)

    def take():
        lock = Lock(tmp_path / "lock")
        start.wait()
        attempts.append((lock.take(), lock))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken for taken, _ in attempts) == 1
    for _, lock in attempts:
        lock.release()


@pytest.mark.parametrize(
    ("mounts", "wanted"),
    [
        ("1 0 8:1 / / rw - ext4 /dev/a rw\n", False),
        ("1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {0} rw - nfs4 there:/ rw\n", True),
        ("2 1 0:9 / {0} rw - nfs4 there:/ rw\n1 0 8:1 / / rw - ext4 /dev/a rw\n", True),
        ("1 0 0:9 / / rw - nfs4 there:/ rw\n2 1 8:1 / {0} rw - xfs /dev/a rw\n", False),
        ("1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {0}x rw - nfs4 there:/ rw\n", False),
        ("1 0 8:1 / / rw shared:1 - fuse.sshfs a rw\n", True),
    ],
)
def test_a_network_disk_is_known_by_its_kind(tmp_path, monkeypatch, mounts, wanted):
    table = tmp_path / "mounts"
    table.write_text(mounts.format(tmp_path))
    monkeypatch.setattr(locks, "MOUNTS", table)

    assert is_shared(tmp_path / "run" / ".lock") is wanted


@pytest.mark.parametrize("name", ["a b", "größer", "数据", "\udcff"])
def test_a_network_disk_may_have_any_name(tmp_path, monkeypatch, name):
    table, disk = tmp_path / "mounts", tmp_path / name
    line = f"2 1 0:9 / {disk} rw - nfs4 there:/ rw\n".replace("a b", r"a\040b")
    table.write_text(line, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(locks, "MOUNTS", table)

    assert is_shared(disk / ".lock")
    assert not is_shared(tmp_path)


@pytest.mark.parametrize("shared", ["no locks"], indirect=True)
def test_who_has_lost_a_lock_learns_of_it_and_leaves_the_other_s_file_alone(
    tmp_path, shared, caplog
):
    lock = Lock(tmp_path / "lock")
    assert lock.take()
    holder = holder_of(tmp_path / "lock")

    holder.write_text("another 1 1 1")
    deadline = time.monotonic() + 10
    while "held by another process by now" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    touched = holder.stat().st_mtime
    time.sleep(0.2)
    lock.remove()
    lock.release()

    assert holder.read_text() == "another 1 1 1"
    assert holder.stat().st_mtime == touched


# --- atomic --------------------------------------------------------------------------------------


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_in(written):
    """Begin to write a file, or to fill a folder, and come to no end."""
    with written as temporary:
        (temporary / "half" if temporary.is_dir() else temporary).write_text("half")
        raise ZeroDivisionError


# Files.


def test_a_file_is_replaced_whole_or_stays_the_old_one(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError):
        fail_in(replaced_file(path))
    assert path.read_text() == "old"
    with replaced_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"

    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["a"]


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(names_in(tmp_path)))

    write_text(tmp_path / "a", "text")

    [[temporary], after] = flushed  # the file, then the folder's list
    assert re.fullmatch(r"\.a\.\d+", temporary)
    assert after == ["a"]


def test_a_device_is_written_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    write_text(tmp_path / "pipe", "text")

    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_disk_whose_folders_cannot_be_flushed_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)

    write_text(tmp_path / "a", "text")

    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize(
    ("number", "cure"), [(errno.ENOSPC, "Free some space there"), (errno.EROFS, "another place")]
)
def test_what_the_disk_says_becomes_one_line_with_a_cure(tmp_path, number, cure):
    said = f"a cannot be written: {os.strerror(number)}. .*{cure}"

    with pytest.raises(RunError, match=said), as_run_error(tmp_path / "a"):
        raise OSError(number, os.strerror(number))


# Folders.


def test_a_folder_is_replaced_whole_or_stays_the_old_one(tmp_path):
    folder = tmp_path / "inside" / "a"
    with replaced_folder(folder) as made:
        (made / "old").touch()

    with pytest.raises(ZeroDivisionError):
        fail_in(replaced_folder(folder))
    assert names_in(folder) == ["old"]
    with replaced_folder(folder) as made:
        (made / "new").touch()
        assert names_in(folder) == ["old"]

    assert names_in(folder) == ["new"]
    assert names_in(folder.parent) == ["a"]


@pytest.mark.parametrize("there", [True, False])
def test_a_new_folder_appears_whole_or_not_at_all(tmp_path, there):
    folder = tmp_path / "above" / "a"
    if there:
        folder.mkdir(parents=True)

    with pytest.raises(ZeroDivisionError):
        fail_in(new_folder(folder))
    assert [path for path in tmp_path.rglob("*") if path not in (folder, folder.parent)] == []
    assert folder.exists() == folder.parent.exists() == there
    with new_folder(folder) as made:
        (made / "below").mkdir()
        (made / "below" / "file").touch()

    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == [
        "below",
        "below/file",
    ]
    assert names_in(tmp_path) == ["above"]


def test_the_folder_that_one_stands_in_is_filled_and_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with new_folder(tmp_path.relative_to(tmp_path)) as made:
        (made / "file").touch()

    assert os.listdir() == ["file"]  # noqa: PTH208 - of the folder itself, whatever its name is now


def test_a_folder_that_holds_something_is_no_new_one(tmp_path):
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path):
        pass

    assert names_in(tmp_path) == ["thesis.tex"]


def test_records_are_read_as_they_were_appended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": float("inf")}]

    for record in records:
        append_json(path, record)

    # JSON has no infinity.
    assert read_metrics(path) == [records[0], {"step": 2, "loss": None}]


def test_a_file_is_cut_to_the_size_that_it_had_and_never_made_longer(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_json(path, {"step": 1})
    before = path.read_bytes()
    append_json(path, {"step": 2})

    truncate_file(path, len(before))
    assert path.read_bytes() == before

    truncate_file(path, 10**6)
    truncate_file(tmp_path / "none", 3)
    assert path.read_bytes() == before
    assert not (tmp_path / "none").exists()


# --- fuzz runs -----------------------------------------------------------------------------------


STATE = {
    "step": {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}},
    "progress": {"step": 2},
}
SMALL = {"command": "pretrain", "status": "finished", "data": "text"}


def written(state) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def texts(values) -> st.SearchStrategy[bytes]:
    """Return altered values, or damaged text of them, as JSON."""
    whole = json.dumps(values).encode()
    return altered(values).map(json.dumps).map(str.encode) | damaged(whole)


@fuzz(150)
@given(content=damaged(written(STATE)))
def test_fuzz_training_states(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train_state.pt").write_bytes(content)
    (folder / "meta.json").write_text('{"format": 1, "step": 2}')

    def read():
        assert isinstance(read_state(folder), dict)

    tried(read, CheckpointError)


@pytest.mark.slow
@fuzz(100)
@given(data=st.data())
def test_fuzz_lists_of_a_checkpoints_files(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz") / "checkpoints"
    checkpoint.write(folder / "step-00000002", 2, lambda _: None, STATE)
    meta = folder / "step-00000002" / "meta.json"
    meta.write_bytes(data.draw(texts(json.loads(meta.read_text()))))
    try:
        newest = newest_good(folder)
    except CheckpointError:
        return
    assert newest is None or newest.name == "step-00000002"


@fuzz(150)
@given(content=texts(SMALL) | st.sampled_from(ODD_VALUES).map(json.dumps).map(str.encode))
def test_fuzz_small_files(tmp_path_factory, content):
    run = RunDirectory(tmp_path_factory.mktemp("fuzz"))
    for path in (run.environment, run.presets, run.status):
        path.write_bytes(content)

    assert isinstance(run.read_command(), str)
    assert isinstance(run.read_status(), str)
    try:
        presets = run.read_presets()
    except CheckpointError:
        return
    assert all(isinstance(option, str) for option in presets.values())


# --- sweep ---------------------------------------------------------------------------------------


REQUEST = SweepRequest("finetune", ("seed=0,1",), "2026-01-01T10:00:00+00:00")


@pytest.fixture
def sweep(tmp_path):
    folder = SweepDirectory(tmp_path / "sweep")
    folder.write_request(REQUEST)
    return folder


def test_the_file_of_a_job_holds_plain_words(sweep):
    """Earlier versions wrote the same, so a sweep that they began goes on."""
    job = SweepJob(4, ("seed=1",), ("data=trec6", "seed=1"), JobState.FAILED, "no memory", 2.5)

    sweep.write_job(job)

    assert json.loads((sweep.path / "job-4.json").read_text()) == {
        "number": 4, "overrides": ["seed=1"], "words": ["data=trec6", "seed=1"],
        "outcome": "failed", "reason": "no memory", "seconds": 2.5, "value": None,
    }  # fmt: skip
    assert (sweep.jobs(), sweep.read_request()) == ([job], REQUEST)


def test_a_job_is_called_by_what_varies(sweep, tmp_path):
    sweep.write_job(SweepJob(0, ("optimizer.lr=1e-3", "+data.world=1"), ("data=trec6",)))

    assert name_in_sweep(sweep.run(0)) == "optimizer.lr=1e-3 +data.world=1"
    assert keys_in_sweep(sweep.run(0)) == ["optimizer.lr", "data.world"]
    assert keys_in_sweep(tmp_path / "0") == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"overrides": []}',
        json.dumps({"number": 1, "overrides": 5}),
        json.dumps({"number": "1", "overrides": []}),
        json.dumps({"number": 1, "outcome": []}),
        json.dumps({"number": 1, "outcome": "lost"}),
        json.dumps({"number": 1, "seconds": "long"}),
    ],
)
def test_a_damaged_file_of_a_job_is_passed_over(sweep, content):
    sweep.write_job(SweepJob(0, ("seed=0",)))
    (sweep.path / "job-1.json").write_text(content)

    assert [job.number for job in sweep.jobs()] == [0]


@pytest.mark.parametrize("content", ["{", "{}", '{"command": "x", "words": 3, "began": ""}'])
def test_a_damaged_request_is_an_error(sweep, content):
    (sweep.path / "sweep.json").write_text(content)

    with pytest.raises(UnreadableError):
        sweep.read_request()


def test_a_job_is_had_by_one_at_a_time(sweep):
    with sweep.claim(0) as first, sweep.claim(0) as second, sweep.claim(1) as other:
        assert first is not None
        assert other is not None
        assert second is None
        assert sweep.is_claimed(0)
    with sweep.claim(0) as again:
        assert again is not None
    assert not sweep.is_claimed(0)


def test_a_job_that_nobody_runs_any_more_was_stopped(sweep):
    sweep.write_job(SweepJob(0, (), outcome=JobState.RUNNING))
    sweep.write_job(SweepJob(1, (), outcome=JobState.RUNNING))
    sweep.write_job(SweepJob(2, ()))
    with sweep.claim(0):
        outcomes = {job.number: job.outcome for job in sweep.jobs()}

    assert outcomes == {0: JobState.RUNNING, 1: JobState.STOPPED, 2: JobState.LEFT}


def test_a_claim_lasts_as_long_as_the_process_that_inherited_it(sweep):
    with sweep.claim(0) as handle:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(handle,)
        )
    try:
        assert sweep.is_claimed(0)
    finally:
        child.communicate(os.linesep.encode(), timeout=60)
    assert not sweep.is_claimed(0)
