"""`loop.minutes`: a run ends by the clock, with its rate decayed."""

import json

import pytest

from tests.records import read_metrics

pytestmark = pytest.mark.functional

SECONDS = 1.5


@pytest.fixture
def bounded(transfer, corpus, tiny, loop, tmp_path):
    """Train by the clock; return the run directory."""
    words = (
        "data=text",
        f"data.train={corpus}",
        *tiny,
        *loop,
        "optimizer.lr=1e-3",
        "schedule=linear",
        "schedule.warmup=0",
    )
    ended = transfer(
        "pretrain", *words, "loop.steps=1000000", f"loop.minutes={SECONDS / 60}", "run.dir=run",
        "loop.evaluate_every=1000 steps", "checkpoint.every=1000 steps",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    return tmp_path / "run"


def rates(run):
    records = [each for each in read_metrics(run / "metrics.jsonl") if each["kind"] == "train"]
    return [each[next(name for name in each if name.startswith("rate/"))] for each in records]


def seconds(run):
    return json.loads((run / "timing.json").read_text())["seconds"]


@pytest.mark.slow
def test_a_run_by_the_clock_ends_in_time_at_the_end_of_its_rate(bounded):
    found = rates(bounded)

    assert SECONDS <= seconds(bounded) < 10 * SECONDS
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.3 * found[0]
    assert json.loads((bounded / "status.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_resume_goes_on_with_the_time_that_is_left(transfer, bounded):
    steps = len(rates(bounded))

    nothing_left = transfer("pretrain", f"resume={bounded}")
    more = transfer("pretrain", f"resume={bounded}", f"loop.minutes={2 * SECONDS / 60}")

    assert nothing_left.code == 2
    assert "is finished" in nothing_left.err
    assert "loop.minutes" in nothing_left.err
    assert more.code == 0, more.err
    assert seconds(bounded) >= 2 * SECONDS
    # Half of the time is used when it goes on.
    assert rates(bounded)[steps] <= 0.51e-3
