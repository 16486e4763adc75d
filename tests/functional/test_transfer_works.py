"""Pretraining decides on the embedded sample: fails when anything between objective, checkpoint and
head is broken (a model not really loaded, a shuffled vocabulary, the wrong direction, ...).
"""

import pytest

LOSS_WHEN_READ = {"pretrain": 1.8, "pretrain_mlm": 4.6}
"""Validation loss in nats a target that says the text was learnt; measured 1.41 and 4.36."""


@pytest.fixture
def results(transfer, read_json, tmp_path):
    """Return how to run a command under a name; gives what it wrote down of its results."""

    def call(command, name, *words):
        run = tmp_path / name
        transfer(command, *words, f"run.dir={run}").ok()
        return read_json(run / "results.json")

    return call


def accuracy(result):
    return result["measures"]["test"]["accuracy"]


@pytest.mark.slow
def test_half_a_pretraining_decides_already(results, tmp_path):
    pretrained = results("pretrain", "pretrained", "experiment=sample/pretrain", "loop.steps=250")
    start = f"init_from={tmp_path / 'pretrained'}"
    short = ("experiment=sample/finetune", start, "loop.epochs=10")

    full = results("finetune", "full", *short)
    frozen = results("finetune", "frozen", "experiment=sample/frozen", start, "loop.epochs=40")
    scratch = results("finetune", "scratch", *short, "init=scratch")

    assert pretrained["measures"]["validation"]["loss"] <= 2.4  # measured 2.15
    assert accuracy(full) >= 0.95
    assert accuracy(frozen) >= 0.90
    assert accuracy(scratch) <= 0.45


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("experiment", ["pretrain", "pretrain_mlm"])
def test_pretraining_decides_on_the_embedded_sample(results, tmp_path, experiment, seed):
    source = results("pretrain", "pretrained", f"experiment=sample/{experiment}", f"seed={seed}")
    start = (f"init_from={tmp_path / 'pretrained'}", f"seed={seed}")
    adapt = ("experiment=sample/finetune", *start)

    def forgotten(name, *words):
        asked = ("forgetting.data=source", "forgetting.blocks=40")
        result = results("finetune", name, *adapt, *words, *asked)
        assert accuracy(result) >= 0.90
        return result["forgetting"]["after"]["loss"] - result["forgetting"]["before"]["loss"]

    def untuned(name):
        words = ("data=sample_questions", *start, "loop.epochs=20", f"adaptation={name}")
        return accuracy(results("finetune", f"untuned-{name}", *words))

    full = forgotten("full")
    held = {
        name: forgotten(name, f"adaptation={name}", f"adaptation.penalty.strength={strength}")
        for name, strength in (("l2_sp", 1), ("ewc", 10))
    }
    frozen = results("finetune", "frozen", "experiment=sample/frozen", *start)
    scratch = results("finetune", "scratch", *adapt, "init=scratch")

    print(f"{experiment} {seed}, forgotten in nats a target: {full=:.3f} {held=}")
    assert source["measures"]["validation"]["loss"] <= LOSS_WHEN_READ[experiment]
    assert untuned("frozen") >= 0.80
    for name in ("lora", "full", "adapters", "gradual_unfreezing"):
        assert untuned(name) >= 0.90
    assert accuracy(frozen) >= 0.90
    # What pulls back to the start forgets less, in nats a target.
    assert full > 0
    assert all(0 < value < 0.5 * full for value in held.values())
    assert accuracy(scratch) <= 0.45
