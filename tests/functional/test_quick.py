"""`experiment=quick` and `optimizer=lbfgs`: a head on frozen features, solved to its minimum."""

import json
import math
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.records import read_metrics


@pytest.fixture
def table(deep, few_questions):
    """Return the words of a run on a table: no further key is needed."""
    return ("data=table", f"data.train={few_questions}", f"init_from={deep}")


@pytest.fixture
def quick(transfer, table):
    """Return how to run `experiment=quick`; gives what the command said."""

    def call(name, *more):
        return transfer("finetune", "experiment=quick", *table, *more, f"run.dir={name}").ok()

    return call


def results(run):
    return json.loads(Path(run, "results.json").read_text())


def test_a_table_and_a_model_are_enough_and_it_ends_in_words(quick):
    ended = quick("run")

    found = results("run")
    assert found["parameters"]["trainable"] == 2 * 16 + 2
    first, *_ = read_metrics(Path("run/metrics.jsonl"))
    assert first["loss"] == pytest.approx(math.log(2), abs=0.05)
    # 'Who built' and 'Where is' tell the labels.
    assert found["by_words"] == {
        "split": "validation", "right": 3, "scored": 3, "trained_on": 27, "of": 27,
    }  # fmt: skip
    said = " ".join(ended.out.split())
    assert "always saying 'person' gets 67 right, a linear model on words 100" in said
    assert ("more than this model" in said) == (found["measures"]["validation"]["accuracy"] < 1)


def test_the_minimum_is_the_same_in_any_portions_and_without_cached_features(quick):
    one = "optimizer.weight_decay=1e-2"
    quick("run", one, "loop.steps=1")
    quick("portions", one, "loop.steps=2", "loop.micro_batch=5", "loop.cache_features=false")

    found = load_file("portions/model/weights.safetensors")
    for key, tensor in load_file("run/model/weights.safetensors").items():
        assert found[key].allclose(tensor, atol=5e-3), key


@pytest.mark.slow
def test_the_head_is_no_worse_than_one_that_was_trained_in_steps(quick, transfer, table):
    quick("solved", "optimizer.weight_decay=1e-4", "loop.steps=1", "loop.monitor=loss")
    words = ("adaptation=frozen", "objective.dropout=0", "optimizer.lr=0.03", "loop.epochs=60")
    transfer("finetune", *words, *table, "optimizer.weight_decay=0", "run.dir=stepped").ok()

    def train_loss(run):
        ended = transfer("evaluate", run, "split=train")
        return float(re.search(r"train\s+loss\s+(\S+)", ended.out)[1])

    assert train_loss("solved") <= train_loss("stepped") + 1e-3


def test_a_plan_tells_the_steps(transfer, table):
    ended = transfer("plan", "finetune", "experiment=quick", *table).ok()

    assert "11 steps of 27 sequences" in ended.out
    assert "for all 11, the frozen backbone being passed once" in " ".join(ended.out.split())


@pytest.mark.slow
def test_a_sweep_compares_strengths(transfer, table):
    words = ("optimizer.weight_decay=1e-1,1e-3", "loop.steps=1", "sweep.isolate=false")
    transfer("finetune", "-m", "experiment=quick", *table, *words, "run.dir=strengths").ok()

    losses = [results(f"strengths/{job}")["measures"]["validation"]["loss"] for job in (0, 1)]
    assert losses[0] != losses[1]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_find_the_same_minimum(quick, shell, table):
    quick("one", "optimizer.weight_decay=1e-2", "loop.steps=1")
    words = ("experiment=quick", *table, "optimizer.weight_decay=1e-2", "loop.steps=1")
    process = shell("finetune", *words, "devices=2", "run.dir=two")
    _, err = process.communicate(timeout=240)

    assert process.returncode == 0, err
    one, two = (load_file(f"{name}/model/weights.safetensors") for name in ("one", "two"))
    for key, tensor in one.items():
        assert two[key].allclose(tensor, atol=5e-3), key
