"""Runs, sweeps and the cache in a network folder: nothing is lost, all ends as on a disk of one."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

from tests.killing import CONTEXT, Commands, Moment
from tests.long.compare_runs import differences
from tests.network_folder import Disk
from transfer_cli.runs.sweep import JobState, SweepDirectory

pytestmark = pytest.mark.multiprocess

RHYTHM = ("loop.evaluate_every=2 steps", "checkpoint.every=3 steps", "loop.steps=7")

LOCKS = pytest.mark.parametrize("locks", ["own", pytest.param("none", marks=pytest.mark.slow)])
"""A disk on which each machine has its own locks, and one that knows none."""


@pytest.fixture
def disk(tmp_path, locks):
    """Return how a machine sees the network disk, which also holds the cache."""
    root = tmp_path / "disk"
    root.mkdir()

    def seen_from(machine):
        return Disk(root, machine, locks)

    return seen_from


@pytest.fixture(scope="module")
def words(deep_words):
    return (*deep_words, *RHYTHM)


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """Return a run on a disk of this machine."""
    folder = tmp_path_factory.mktemp("whole")
    ended = Commands().run(folder, words)
    assert ended.code == 0, ended.text
    return folder / "run"


@pytest.fixture
def on(disk):
    """Return how a machine runs commands on the disk."""
    return lambda machine: Commands(disk(machine).mount)


@LOCKS
def test_a_run_there_is_the_same(on, disk, words, whole):
    folder = disk("one").root

    ended = on("one").run(folder, words)

    assert ended.code == 0, ended.text
    assert differences(whole, folder / "run") == []


@pytest.mark.slow
@LOCKS
@pytest.mark.parametrize("machines", ["one two three", "one one one"])
def test_killed_and_taken_up_it_ends_the_same(on, disk, words, whole, machines):
    folder, (first, second, third) = disk("one").root, machines.split()
    moments = [
        Moment(under="metrics.jsonl", operation=7),
        Moment(under="model/.weights", operation=2),
    ]

    for machine, moment in zip((first, second), moments, strict=True):
        killed = on(machine).run(folder, words, moment)
        assert killed.code == -signal.SIGKILL, killed.text
    ended = on(third).run(folder, words)

    assert ended.code == 0, ended.text
    assert differences(whole, folder / "run") == []


@pytest.mark.slow
@LOCKS
def test_a_machine_that_saw_the_run_long_ago_ends_it_the_same(on, disk, words, whole):
    one, two = disk("one"), disk("two")
    killed = Commands(one.mount).run(one.root, words, Moment(under="metrics.jsonl", operation=7))
    assert killed.code == -signal.SIGKILL, killed.text
    one = dataclasses.replace(one, remembered=one.seen_now(), seconds=60.0)
    late = Moment(under="model/.weights", operation=2)
    killed = Commands(two.mount).run(two.root, words, late)
    assert killed.code == -signal.SIGKILL, killed.text

    ended = Commands(one.mount).run(one.root, words)

    assert ended.code == 0, ended.text
    assert differences(whole, one.root / "run") == []


@pytest.mark.slow
@LOCKS
def test_of_two_machines_that_begin_a_run_at_once_one_goes_on(on, disk, words, whole):
    folder = disk("one").root

    both = [on(machine).start(folder, words) for machine in ("one", "two")]
    for process in both:
        process.join(240)

    assert 0 in [process.exitcode for process in both]
    for process in both:
        said = (folder / f"output-{process.pid}").read_text()
        refused = ("is writing to", "already holds", "is not empty")
        assert process.exitcode == 0 or any(reason in said for reason in refused), said
    assert differences(whole, folder / "run") == []


@pytest.mark.slow
@LOCKS
def test_what_two_machines_need_at_once_is_made_once(on, disk, words, monkeypatch):
    root = disk("one").root
    monkeypatch.setenv("TRANSFER_CACHE", str(root / "cache"))
    (root / "a").mkdir()
    (root / "b").mkdir()

    both = [on("one").start(root / "a", words), on("two").start(root / "b", words)]
    for process in both:
        process.join(240)

    assert [process.exitcode for process in both] == [0, 0]
    entries = [path for path in (root / "cache").glob("*/*") if not path.name.startswith(".")]
    said = [file.read_text() for file in root.glob("*/output-*")]
    assert len(said) == 2
    assert sum(text.count("is made again") for text in said) == 0
    leftovers = [path for path in (root / "cache").rglob(".*") if not path.name.endswith(".lock")]
    assert entries
    assert leftovers == []


def work_on_sweep(disk, folder, words):
    os.chdir(folder)
    disk.mount()
    from transfer_cli.cli import main

    with Path(f"said-by-{disk.machine}").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        raise SystemExit(main(list(words)))


@pytest.mark.slow
@LOCKS
def test_two_machines_share_the_jobs_of_a_sweep(disk, words, tmp_path):
    root = disk("one").root
    typed = (
        words[0], "-m", *words[1:], "seed=range(4)", "run.dir=sweep", "sweep.isolate=false",
        "resume=auto",
    )  # fmt: skip
    (tmp_path / "local").mkdir()
    alone = CONTEXT.Process(
        target=work_on_sweep, args=(Disk(tmp_path / "nowhere"), tmp_path / "local", typed)
    )

    both = [
        CONTEXT.Process(target=work_on_sweep, args=(disk(machine), root, typed))
        for machine in ("one", "two")
    ]
    for process in (alone, *both):
        process.start()
    for process in (alone, *both):
        process.join(240)

    said = "".join(file.read_text() for file in root.glob("said-by-*"))
    assert [process.exitcode for process in both] == [0, 0], said
    jobs = SweepDirectory(root / "sweep").jobs()
    assert [job.outcome for job in jobs] == [JobState.DONE] * 4
    for number in range(4):
        run = root / "sweep" / str(number)
        assert differences(tmp_path / "local" / "sweep" / str(number), run) == []
        assert json.loads((run / "status.json").read_text())["status"] == "finished"
