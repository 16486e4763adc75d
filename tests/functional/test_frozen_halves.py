"""Frozen matrices in bf16: half the memory, the same run."""

import re
from pathlib import Path

import pytest
import torch

from tests.published import publish
from transfer_cli.assembly import run as assembly
from transfer_cli.model.weights import read_weights

pytestmark = pytest.mark.functional

WORDS = (
    "data=sample_questions", "adaptation=lora", "precision=bf16", "device=cpu", "loop.steps=6",
    "loop.batch=8", "loop.evaluate_every=3 steps", "checkpoint.every=3 steps",
)  # fmt: skip


@pytest.fixture
def finetune(transfer, pretrained, read_json):
    """Return how to adapt the sample's model; gives measures and stored tensors."""

    def call(name, *words):
        ended = transfer("finetune", f"init_from={pretrained}", f"run.dir={name}", *WORDS, *words)
        assert ended.code == 0, ended.err
        results = read_json(Path(name) / "results.json")
        return results["measures"], read_weights(Path(name) / "model")

    return call


@pytest.mark.slow
def test_a_run_is_the_same_to_the_last_bit(finetune, monkeypatch):
    kept = {}
    halve = assembly.halve

    def watch(model, names):
        halve(model, names)
        kept.update({name: p.dtype for name, p in model.named_parameters()})

    monkeypatch.setattr(assembly, "halve", watch)
    measures, tensors = finetune("halved")
    monkeypatch.setattr(assembly, "halve", lambda model, names: None)
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
    monkeypatch.setattr(assembly, "halve", lambda model, names: asked.append(names))

    finetune("run", *words)

    assert asked == [set()]


def test_a_plan_counts_them_half(transfer, tmp_path):
    publish(tmp_path, "llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=2)

    def weights(*words):
        ended = transfer(
            "plan", "finetune", f"init_from={tmp_path}", *WORDS, *words, "plan.steps=0"
        )
        assert ended.code == 0, ended.err
        return ended.out.partition("memory: ")[2]

    halved, whole = weights(), weights("precision=fp32")

    assert "frozen matrices in bf16" in halved
    assert "bf16" not in whole
    sizes = [float(re.search(r"\(weights (\d+) MiB", out)[1]) for out in (halved, whole)]
    assert 0.45 < sizes[0] / sizes[1] < 0.7
