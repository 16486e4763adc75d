"""Pretraining decides on the embedded sample: fails when anything between objective, checkpoint and
head is broken (a model not really loaded, a shuffled vocabulary, the wrong direction, ...).

The quick suite takes seed 0; `pytest -m slow` takes the others.
"""

import pytest

LOSS_WHEN_READ = {"pretrain": 1.8, "pretrain_mlm": 4.6}
"""Validation loss in nats a target that says the text was learnt; measured 1.41 and 4.36."""

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.functional
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("experiment", list(LOSS_WHEN_READ))
def test_pretraining_decides_on_the_embedded_sample(
    transfer, read_json, tmp_path, experiment, seed
):
    def accuracy(name, *words):
        run = tmp_path / name
        ended = transfer("finetune", *words, f"seed={seed}", f"run.dir={run}")
        assert ended.code == 0, ended.err
        return read_json(run / "results.json")["measures"]["test"]["accuracy"]

    source = tmp_path / "pretrained"
    ended = transfer(
        "pretrain", f"experiment=sample/{experiment}", f"seed={seed}", f"run.dir={source}"
    )
    assert ended.code == 0, ended.err
    loss = read_json(source / "results.json")["measures"]["validation"]["loss"]
    start = f"init_from={source}"
    full = accuracy("full", "experiment=sample/finetune", start)
    frozen = accuracy("frozen", "experiment=sample/frozen", start)
    scratch = accuracy("scratch", "experiment=sample/finetune", start, "init=scratch")

    print(f"{experiment} seed {seed}: {loss=:.3f} {full=:.3f} {frozen=:.3f} {scratch=:.3f}")
    assert loss <= LOSS_WHEN_READ[experiment]
    assert full >= 0.90
    assert frozen >= 0.90
    assert scratch <= 0.45
