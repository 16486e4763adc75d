import json
import os
import subprocess
import sys

import pytest

from transfer_cli.runs.sweep import (
    JobState,
    SweepDirectory,
    SweepJob,
    SweepRequest,
    keys_in_sweep,
    name_in_sweep,
)
from transfer_cli.safe_files import UnreadableError


@pytest.fixture
def sweep(tmp_path):
    found = SweepDirectory(tmp_path / "sweep")
    found.write_request(SweepRequest("finetune", ("seed=0,1",), "2026-01-01T10:00:00+00:00"))
    return found


def test_what_is_written_is_read_again(sweep):
    job = SweepJob(3, ("seed=1",), ("data=trec6", "seed=1"), JobState.DONE, None, 12.5, 0.25)
    sweep.write_job(job)

    assert sweep.jobs() == [job]
    assert sweep.read_request() == SweepRequest(
        "finetune", ("seed=0,1",), "2026-01-01T10:00:00+00:00"
    )


def test_the_file_of_a_job_holds_plain_words(sweep):
    """Earlier versions wrote the same, so a sweep that they began goes on."""
    written = (
        '{"number": 4, "overrides": ["seed=1"], "words": ["data=trec6", "seed=1"], '
        '"outcome": "failed", "reason": "no memory", "seconds": 2.5, "value": null}'
    )
    (sweep.path / "job-4.json").write_text(written)

    [job] = sweep.jobs()
    assert (job.outcome, job.reason, job.seconds) == (JobState.FAILED, "no memory", 2.5)
    sweep.write_job(job)
    assert json.loads((sweep.path / "job-4.json").read_text()) == json.loads(written)


def test_a_job_is_called_by_what_varies(sweep, tmp_path):
    sweep.write_job(SweepJob(0, ("optimizer.lr=1e-3", "+data.world=1"), ("data=trec6",)))

    assert name_in_sweep(sweep.run(0)) == "optimizer.lr=1e-3 +data.world=1"
    assert keys_in_sweep(sweep.run(0)) == ["optimizer.lr", "data.world"]
    assert keys_in_sweep(tmp_path / "0") == []


def test_jobs_come_in_the_order_of_their_numbers(sweep):
    for number in (10, 9, 0):
        sweep.write_job(SweepJob(number, ()))

    assert [job.number for job in sweep.jobs()] == [0, 9, 10]


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
        found = {job.number: job.outcome for job in sweep.jobs()}

    assert found == {0: JobState.RUNNING, 1: JobState.STOPPED, 2: JobState.LEFT}


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
