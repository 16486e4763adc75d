"""`optimizer=muon`: runs that are stopped go on bit for bit, and adaptations train with it."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.functional


def test_a_stopped_run_ends_as_one_that_was_not(transfer, corpus, tiny, loop):
    words = ("data=text", f"data.train={corpus}", *tiny, *loop, "optimizer=muon", "loop.steps=4")
    assert transfer("pretrain", *words, "checkpoint.keep=0", "run.dir=whole").code == 0
    # What a run that was killed in its third step has left.
    shutil.copytree("whole", "cut")
    shutil.rmtree("cut/checkpoints/step-00000004")
    Path("cut/status.json").write_text('{"status": "stopped"}')

    resumed = transfer("pretrain", "resume=cut")

    assert resumed.code == 0, resumed.err
    assert "going on after step 2" in resumed.err
    for file in ("model/weights.safetensors", "metrics.jsonl", "results.json"):
        assert (Path("cut") / file).read_bytes() == (Path("whole") / file).read_bytes(), file


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
