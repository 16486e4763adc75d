"""`optimizer=muon`: adaptations train with it."""

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.functional


@pytest.mark.parametrize(
    ("preset", "moving"),
    [("frozen", 0), ("lora", 0), ("gradual_unfreezing", 2), ("l2_sp", 2)],
)
def test_adaptations_train_with_it_and_what_is_frozen_stays(
    transfer, adapting, deep, preset, moving
):
    words = adapting(preset, "optimizer=muon", "optimizer.lr=0.01", "loop.evaluate_every=12 steps")
    ended = transfer("finetune", *words, "run.dir=run")

    assert ended.code == 0, ended.err
    # Where a run stores what it trained, the rest is what it started from.
    found = load_file("run/model/weights.safetensors")
    start = load_file(deep / "model/weights.safetensors")
    inner = [name for name in start if name.endswith("feed_forward.inner.weight")]
    moved = [name for name in inner if not torch.equal(found.get(name, start[name]), start[name])]
    assert len(inner) == 2
    assert len(moved) == moving
    lora = [name for name in found if ".lora." in name]
    assert bool(lora) == (preset == "lora")
    assert all(found[name].abs().max() > 0 for name in lora)
