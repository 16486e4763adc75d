"""`loop.average`: which weights a run keeps, and what else it changes: nothing."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.records import read_metrics
from transfer_cli.runs import checkpoint


def results(run):
    return json.loads((Path(run) / "results.json").read_text())


def state(run):
    return checkpoint.read_state(checkpoint.find_all(Path(run) / "checkpoints")[-1])


def plain_records(run):
    return [
        {name: value for name, value in record.items() if not name.startswith("averaged/")}
        for record in read_metrics(Path(run) / "metrics.jsonl")
    ]


def test_averaged_weights_are_kept_where_validation_finds_them_better(words_of, transfer):
    words = words_of("ema", "loop.steps=9", "loop.batch=2", "optimizer.lr=0.03")
    transfer(*words, "loop.average=null", "run.dir=plain").ok()

    ended = transfer(*words, "run.dir=averaged").ok()

    assert "best weights, averaged (loop.average), of step 9" in ended.out
    average, measured = results("averaged")["average"], results("averaged")["measures"]
    assert average["kept"] == "averaged"
    assert average["averaged"]["loss"] < average["plain"]["loss"]
    assert average["averaged"]["loss"] == measured["validation"]["loss"]
    transfer("evaluate", "averaged", "split=validation", "device=cpu", "output=scored.json").ok()
    scored = json.loads(Path("scored.json").read_text())["measures"]["validation"]
    assert scored["loss"] == pytest.approx(average["averaged"]["loss"], rel=1e-6)
    curves = EventAccumulator("averaged/tensorboard").Reload().Scalars("validation/averaged/loss")
    assert [point.step for point in curves] == [3, 6, 9]
    # Training is that of a run without an average, whose files say nothing of one.
    assert plain_records("averaged") == read_metrics(Path("plain/metrics.jsonl"))
    assert results("plain")["measures"]["validation"]["loss"] == average["plain"]["loss"]
    assert "average" not in results("plain").keys() | state("plain").keys()
