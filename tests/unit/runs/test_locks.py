import errno
import fcntl
import subprocess
import sys
import threading
import time

import pytest

from transfer_cli.runs import locks
from transfer_cli.runs.locks import Lock, holder_of, is_held, is_shared


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


def test_the_lock_of_a_machine_that_died_is_free_after_a_while(tmp_path, shared, elsewhere):
    elsewhere("two")
    holder_of(tmp_path / "lock").write_text("one 1 1 1")
    began = time.monotonic()

    lock = Lock(tmp_path / "lock")
    assert lock.take()

    assert time.monotonic() - began >= 0.4
    lock.release()


@pytest.mark.parametrize("shared", ["no locks"], indirect=True)
def test_the_lock_of_a_process_of_this_machine_that_died_is_free_at_once(tmp_path, shared):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder_of(tmp_path / "lock").write_text(f"{locks._machine()} {ended.pid} 1 1")

    lock = Lock(tmp_path / "lock")
    assert lock.take()
    lock.release()


@pytest.mark.parametrize("shared", ["no locks"], indirect=True)
def test_a_holder_that_has_not_yet_written_its_name_is_not_robbed(tmp_path, shared):
    holder_of(tmp_path / "lock").write_text("")
    threading.Timer(0.1, holder_of(tmp_path / "lock").write_text, ("one 1 1 1",)).start()

    assert not Lock(tmp_path / "lock").take()


@pytest.mark.parametrize("shared", ["no locks"], indirect=True)
def test_of_many_that_find_a_dead_holder_one_gets_the_lock(tmp_path, shared):
    holder_of(tmp_path / "lock").write_text(f"{locks._machine()} {2**22 + 1} 1 1")
    found, start = [], threading.Barrier(8)

    def take():
        lock = Lock(tmp_path / "lock")
        start.wait()
        found.append((lock.take(), lock))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken for taken, _ in found) == 1
    for _, lock in found:
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
