"""Frozen backbones: states that runs share through the cache, matrices in half of the memory."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.published import publish
from tests.records import read_metrics
from transfer_cli.assembly import run as assembly
from transfer_cli.model.weights import read_weights

# --- states --------------------------------------------------------------------------------------

SAME = ("metrics.jsonl", "results.json", "items.jsonl", "model/weights.safetensors")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Have a cache of this test's own."""
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


@pytest.fixture
def frozen(transfer, adapting, cache):
    """Return how to fine-tune with a frozen backbone; gives what the command said."""

    def call(name, *more):
        words = adapting("frozen", "schedule=constant", *more)
        ended = transfer("finetune", *words, f"run.dir={name}").ok()
        return ended.err

    return call


def entries(cache):
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


def assert_same(run, other):
    for name in SAME:
        assert Path(run, name).read_bytes() == Path(other, name).read_bytes(), name


def test_a_second_run_takes_the_states_of_the_first_and_gives_the_same(frozen, cache, tmp_path):
    first, second = frozen("first"), frozen("second")
    shutil.rmtree(cache)
    (tmp_path / "cache" / "features").write_text("no folder")
    alone = frozen("alone")

    assert "features: kept for further runs" in first
    assert "features: taken from the cache" in second
    assert "features: in this run's memory alone" in alone
    assert alone.count("cannot be kept") == 1
    assert_same("second", "first")
    assert_same("alone", "first")


def test_without_cached_features_nothing_is_kept(frozen, cache):
    said = frozen("first", "loop.cache_features=false")

    assert "features:" not in said
    assert not cache.exists()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_of_a_run_and_two_runs_at_once_share_the_states(
    shell, transfer, adapting, cache
):
    assert os.environ["TRANSFER_CACHE"] == str(cache.parent)
    chosen = ("schedule=constant", "loop.bucket=true", "objective.dropout=0")
    words = ("finetune", *adapting("frozen", *chosen))
    both = [shell(*words, f"run.dir={name}") for name in ("one", "other")]
    said = [process.communicate(timeout=240)[1] for process in both]

    assert [process.returncode for process in both] == [0, 0], said
    assert "features: kept for further runs" in said[0] + said[1]
    assert_same("one", "other")
    assert len(entries(cache)) == 2

    together = shell(*words, "run.dir=two", "devices=2")
    _, err = together.communicate(timeout=240)
    assert together.returncode == 0, err
    assert "features: taken from the cache" in err
    assert len(entries(cache)) == 2
    measures = [
        json.loads(Path(name, "results.json").read_text())["measures"]["validation"]
        for name in ("one", "two")
    ]
    assert measures[1] == pytest.approx(measures[0], rel=1e-4)


# --- matrices in bf16 ----------------------------------------------------------------------------

WORDS = (
    "data=sample_questions", "adaptation=lora", "precision=bf16", "device=cpu", "loop.steps=6",
    "loop.batch=8", "loop.evaluate_every=3 steps", "checkpoint.every=3 steps",
)  # fmt: skip


@pytest.fixture
def finetune(transfer, pretrained, read_json):
    """Return how to adapt the sample's model; gives measures and stored tensors."""

    def call(name, *words):
        transfer("finetune", f"init_from={pretrained}", f"run.dir={name}", *WORDS, *words).ok()
        results = read_json(Path(name) / "results.json")
        return results["measures"], read_weights(Path(name) / "model")

    return call


@pytest.mark.slow
def test_a_run_is_the_same_to_the_last_bit(finetune, monkeypatch):
    kept = {}
    cast_to_bf16 = assembly.cast_to_bf16

    def watch(model, names):
        cast_to_bf16(model, names)
        kept.update({name: p.dtype for name, p in model.named_parameters()})

    monkeypatch.setattr(assembly, "cast_to_bf16", watch)
    measures, tensors = finetune("halved")
    monkeypatch.setattr(assembly, "cast_to_bf16", lambda model, names: None)
    expected, others = finetune("whole")

    halved = {name for name, kind in kept.items() if kind == torch.bfloat16}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in halved} == {
        "packed", "output", "inner"
    }  # fmt: skip
    assert not halved & tensors.keys()
    assert measures == expected
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@pytest.mark.parametrize("words", [["adaptation.store=merged"], ["precision=fp32"]])
def test_what_is_stored_or_computed_as_it_is_stays(finetune, monkeypatch, words):
    asked = []
    monkeypatch.setattr(assembly, "cast_to_bf16", lambda model, names: asked.append(names))

    finetune("run", *words)

    assert asked == [set()]


def test_a_plan_counts_them_half(transfer, tmp_path):
    publish(tmp_path, "llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=2)

    def weights(*words):
        ended = transfer(
            "plan", "finetune", f"init_from={tmp_path}", *WORDS, *words, "plan.steps=0"
        ).ok()
        return ended.out.partition("memory: ")[2]

    halved, whole = weights(), weights("precision=fp32")

    assert "frozen matrices in bf16" in halved
    assert "bf16" not in whole
    sizes = [float(re.search(r"\(weights (\d+) MiB", out)[1]) for out in (halved, whole)]
    assert 0.45 < sizes[0] / sizes[1] < 0.7


# --- solved, not trained -------------------------------------------------------------------------


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

    outcome = results("run")
    assert outcome["parameters"]["trainable"] == 2 * 16 + 2
    first, *_ = read_metrics(Path("run/metrics.jsonl"))
    assert first["loss"] == pytest.approx(math.log(2), abs=0.05)
    # 'Who built' and 'Where is' tell the labels.
    assert outcome["by_words"] == {
        "split": "validation", "right": 3, "scored": 3, "trained_on": 27, "of": 27,
    }  # fmt: skip
    said = " ".join(ended.out.split())
    assert "always saying 'person' gets 67 right, a linear model on words 100" in said
    assert ("more than this model" in said) == (outcome["measures"]["validation"]["accuracy"] < 1)


def test_the_minimum_is_the_same_in_any_portions_and_without_cached_features(quick):
    one = "optimizer.weight_decay=1e-2"
    quick("run", one, "loop.steps=1")
    quick("portions", one, "loop.steps=2", "loop.micro_batch=5", "loop.cache_features=false")

    weights = load_file("portions/model/weights.safetensors")
    for key, tensor in load_file("run/model/weights.safetensors").items():
        assert weights[key].allclose(tensor, atol=5e-3), key


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
