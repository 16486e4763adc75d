"""Who hears nothing of another process for too long says so, and ends."""

import os
import threading
from types import SimpleNamespace

import pytest

from transfer_cli.engine.distributed import watch


class Store(dict):
    """A shared dictionary, as torch's is asked."""

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key):
        return self[key].encode()


@pytest.fixture
def clock(monkeypatch):
    """Return what the module takes for the time, to be set."""
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(watch.time, "monotonic", lambda: time.now)
    return time


def heartbeats(rank, world_size=3):
    group = SimpleNamespace(rank=rank, world_size=world_size)
    return watch.Heartbeats(group, threading.Event())


def test_the_first_process_misses_one_that_says_nothing_new(clock):
    store, first = Store(), heartbeats(0)
    for clock.now in range(10):
        store["alive/0"] = store["alive/2"] = str(clock.now)
        store["alive/1"] = str(min(clock.now, 2))
        first._read(store)
        first._heard[0] = clock.now

    assert first.silent_processes(7.5) == ""
    assert first.silent_processes(6.5) == "process 1 of 3"


def test_one_that_never_came_is_missed_from_the_start(clock):
    store, first = Store(), heartbeats(0, world_size=2)
    clock.now = 10.0
    first._read(store)
    first._heard[0] = clock.now

    assert first.silent_processes(11) == ""
    assert first.silent_processes(9) == "process 1 of 2"


def test_the_others_miss_the_place_where_all_meet(clock):
    other = heartbeats(1)
    clock.now = 10.0

    assert other.silent_processes(11) == ""
    assert other.silent_processes(9) == "process 0, over which all talk,"


def test_the_others_do_not_look_after_each_other(clock):
    other = heartbeats(1)
    clock.now = 10.0
    other._heard[1] = clock.now

    assert other.silent_processes(9) == ""


@pytest.mark.parametrize("launcher", ["alive", "gone"])
def test_a_process_ends_when_its_launcher_is_gone_before_it_looks(monkeypatch, launcher):
    number = os.getppid() if launcher == "alive" else os.getppid() + 1
    monkeypatch.setattr(watch.os, "getpid", lambda: number)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", watch.new_run_id())
    ends, over = [], threading.Event()
    monkeypatch.setattr(watch.os, "_exit", ends.append)
    over.set()

    watch._watch_launcher(over)

    assert ends == ([] if launcher == "alive" else [1])
