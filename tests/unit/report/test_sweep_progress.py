"""Tests of where a sweep stands."""

import os
import time

import pytest

from tests.fake_runs import write_sweep
from transfer_cli.report.collect import sweep_progress
from transfer_cli.runs.sweep import SweepDirectory, SweepJob
from transfer_cli.safe_files import UnreadableError


def stand(tmp_path, *jobs, trials=None):
    sweep = write_sweep(tmp_path / "sweep", *jobs, trials=trials)
    return sweep_progress(sweep, sweep.read_request(), jobs)


def done(number, seconds):
    return SweepJob(number, (f"seed={number}",), outcome="done", seconds=seconds)


def test_the_jobs_are_counted_and_the_failed_ones_named(tmp_path):
    failed = SweepJob(1, ("seed=1", "a=b"), outcome="failed", reason="out of memory")

    found = stand(
        tmp_path, done(0, 10.0), failed, SweepJob(2, ()), SweepJob(3, (), outcome="stopped")
    )

    assert (found.done, found.running, found.left, found.pruned) == (1, 0, 2, 0)
    assert found.failed == ((1, "seed=1 a=b", "out of memory"),)
    assert found.command == "transfer finetune -m adaptation=full,lora"


def test_what_is_left_takes_as_long_as_what_was_done(tmp_path):
    assert (
        stand(tmp_path, done(0, 10.0), done(1, 30.0), SweepJob(2, ()), SweepJob(3, ())).seconds_left
        == 40
    )


def test_jobs_side_by_side_share_what_is_left(tmp_path):
    running = [SweepJob(number, (), outcome="running") for number in (1, 2)]
    jobs = (done(0, 100.0), *running, *(SweepJob(number, ()) for number in (3, 4)))
    sweep = write_sweep(tmp_path / "sweep", *jobs)
    begun = time.time() - 60
    for job in running:
        os.utime(sweep.path / f"job-{job.number}.json", (begun, begun))

    found = sweep_progress(sweep, sweep.read_request(), jobs)

    assert found.seconds_left == pytest.approx((40 + 40 + 200) / 2, abs=20)


def test_a_job_that_takes_longer_than_others_has_nothing_left(tmp_path):
    jobs = (done(0, 1.0), SweepJob(1, (), outcome="running"))
    sweep = write_sweep(tmp_path / "sweep", *jobs)
    os.utime(sweep.path / "job-1.json", (1e9, 1e9))

    assert sweep_progress(sweep, sweep.read_request(), jobs).seconds_left == 0


def test_nothing_is_guessed_before_a_job_is_done_and_after_all_are(tmp_path):
    assert stand(tmp_path / "a", SweepJob(0, ()), SweepJob(1, ())).seconds_left is None
    assert stand(tmp_path / "b", done(0, 10.0)).seconds_left is None


def test_a_search_has_trials_left_that_are_not_known_yet(tmp_path):
    found = stand(tmp_path, done(0, 10.0), trials=5)

    assert (found.left, found.seconds_left) == (4, 40.0)


def test_numbers_of_another_kind_are_not_believed(tmp_path):
    sweep = write_sweep(tmp_path / "sweep", SweepJob(0, (), outcome="done", seconds="long"))
    text = (sweep.path / "sweep.json").read_text()
    (sweep.path / "sweep.json").write_text(text.replace('"trials": null', '"trials": "many"'))

    with pytest.raises(UnreadableError, match="trials"):
        sweep.read_request()
    (sweep.path / "sweep.json").write_text(text)
    found = sweep_progress(sweep, sweep.read_request(), SweepDirectory(sweep.path).jobs())

    # A file of which one value cannot be is no job's at all.
    assert (found.done, found.left, found.seconds_left) == (0, 0, None)
