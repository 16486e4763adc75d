"""What of a model is stored, and what comes back into it."""

import pytest
import torch

from tests import configs, tiny
from transfer_cli.assembly.run import build_run
from transfer_cli.errors import CheckpointError
from transfer_cli.model.weights import WEIGHTS, load_strictly, read_description, read_weights
from transfer_cli.runs import checkpoint
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training.checkpoints import CheckpointWriter, describe

LORA = {"lora": {"_target_": f"{configs.EDITS}.LoRA", "rank": 2}}
NEW_WEIGHTS = {"_target_": f"{configs.PLANS}.NewWeights"}


@pytest.fixture
def kept(tmp_path, pretrained):
    """Return how to build a run: with its directory and what keeps its weights."""

    def make(keep=0, **changes):
        config = configs.following(pretrained, tmp_path, **changes)
        run, directory = build_run(config, "finetune"), RunDirectory(tmp_path / "run")
        directory.model.mkdir(parents=True)
        describe(run, directory.model)
        return run, directory, CheckpointWriter(run, directory, keep)

    return make


def disturbed(model, seed=1):
    """Give the model other weights; return those that it had."""
    before = tiny.weights_of(model)
    tiny.lively(model, seed)
    return before


def state_of(run, step):
    return {"step": run.step.state_dict(), "progress": {"step": step}, "records": {}}


def test_the_best_weights_come_back_and_not_the_last_ones(kept):
    run, _, keeping = kept()
    keeping.save_best(3)
    best = disturbed(run.model)

    keeping.take_best()

    assert tiny.same(run.model.state_dict(), best)


def test_better_weights_take_the_place_of_the_best_so_far(kept):
    run, directory, keeping = kept()
    keeping.save_best(3)
    disturbed(run.model)
    keeping.save_best(4)
    better = disturbed(run.model, seed=2)

    keeping.take_best()

    assert tiny.same(run.model.state_dict(), better)
    assert [path.name for path in directory.checkpoints.iterdir()] == ["best"]


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_in_place_of_damaged_best_weights_the_copy_in_the_checkpoint_is_taken(kept, caplog):
    run, directory, keeping = kept()
    keeping.save_best(3)
    keeping.save(3, state_of(run, 3), with_best=True)
    best = disturbed(run.model)
    flip(directory.best / WEIGHTS)

    keeping.take_best()

    assert tiny.same(run.model.state_dict(), best)
    assert "best/weights.safetensors is damaged" in caplog.text
    assert "taking their copy in" in caplog.text


def test_best_weights_of_which_every_copy_is_damaged_are_refused(kept):
    run, directory, keeping = kept()
    keeping.save_best(3)
    keeping.save(3, state_of(run, 3), with_best=True)
    for folder in (directory.best, directory.checkpoints / checkpoint.name(3) / "best"):
        flip(folder / WEIGHTS)

    with pytest.raises(CheckpointError, match="no checkpoint holds a whole copy"):
        keeping.take_best()


def test_a_checkpoint_brings_weights_optimizer_and_stage_back(kept):
    adam = {"_target_": "torch.optim.AdamW", "lr": 0.1}
    run, _, keeping = kept(optimizer=adam)
    step = run.step
    batches = [{"main": run.data.splits["train"].data.batch(range(8))}]
    for number in range(2):
        step(batches, number)
    keeping.save(2, state_of(run, 2), with_best=False)
    moments = step.optimizer.state_dict()["state"]
    step(batches, 2)
    wanted = tiny.weights_of(run.model)

    newest = keeping.newest()
    keeping.fill(newest, checkpoint.read_state(newest))

    assert checkpoint.step_of(newest) == 2
    again = step.optimizer.state_dict()["state"]
    for number, averages in moments.items():
        assert float(again[number]["step"]) == 2
        assert averages.keys() == again[number].keys()
    step(batches, 2)
    assert tiny.same(run.model.state_dict(), wanted)


def test_the_newest_checkpoint_is_found_and_old_ones_go(kept):
    run, directory, keeping = kept(keep=2)
    assert keeping.newest() is None
    keeping.save_best(1)
    for step in (1, 2, 10):
        keeping.save(step, state_of(run, step), with_best=step > 1)

    assert checkpoint.step_of(keeping.newest()) == 10
    names = sorted(path.name for path in directory.checkpoints.iterdir())
    assert names == ["best", "step-00000002", "step-00000010"]
    assert (directory.checkpoints / "step-00000010" / "best" / WEIGHTS).exists()


def test_a_checkpoint_takes_the_best_weights_along_only_if_there_are_some(kept):
    run, directory, keeping = kept()
    keeping.save_best(1)

    keeping.save(2, state_of(run, 2), with_best=False)

    assert not (directory.checkpoints / "step-00000002" / "best").exists()


def test_weights_that_never_train_are_not_stored_again(kept):
    run, directory, keeping = kept(adaptation__edits=LORA, adaptation__plan=NEW_WEIGHTS,
                               adaptation__store="trained")  # fmt: skip

    names = set(keeping.tensors())

    assert names
    assert all(".lora." in name or name.startswith("heads.") for name in names)
    assert read_description(directory.model).base.hash == run.base_hash

    keeping.save_best(1)
    keeping.save(1, state_of(run, 1), with_best=True)
    assert set(read_weights(directory.best)) == names
    assert set(read_weights(directory.checkpoints / checkpoint.name(1))) == names

    own = {n: t for n, t in disturbed(run.model).items() if n in names}
    keeping.take_best()
    assert tiny.same({n: t for n, t in run.model.state_dict().items() if n in names}, own)


def test_all_weights_are_stored_unless_asked_otherwise(kept):
    run, directory, keeping = kept(adaptation__edits=LORA, adaptation__plan=NEW_WEIGHTS)

    assert set(keeping.tensors()) == set(run.model.state_dict())
    assert read_description(directory.model).base is None


@pytest.mark.parametrize("store", ["all", "merged"])
def test_a_finished_model_computes_what_the_trained_one_did(kept, pretrained, tmp_path, store):
    run, directory, keeping = kept(adaptation__edits=LORA, adaptation__plan=NEW_WEIGHTS,
                               adaptation__store=store)  # fmt: skip
    tiny.lively(run.model)
    batch = run.data.splits["train"].data.batch(range(4))
    run.model.eval()
    keeping.save(1, state_of(run, 1), with_best=False)
    with torch.inference_mode():
        wanted = run.model.backbone(batch["tokens"], batch["mask"])[-1]

    keeping.write_model(keeping.tensors())

    stored = read_weights(directory.model)
    merged = store == "merged"
    assert any(".lora." in name for name in stored) is not merged
    assert ("lora" in read_description(directory.model).edits) is not merged
    edits = {} if merged else LORA
    fresh = configs.following(pretrained, tmp_path, adaptation__edits=edits)
    model = build_run(fresh, "finetune").model.eval()
    model.load_state_dict(stored)
    with torch.inference_mode():
        found = model.backbone(batch["tokens"], batch["mask"])[-1]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert tiny.same(stored, {n: run.model.state_dict()[n] for n in stored})


def parts_config(directory, pretrained):
    return configs.following(
        pretrained, directory.path.parent, adaptation__edits=LORA, adaptation__plan=NEW_WEIGHTS,
        adaptation__store="merged",
    )  # fmt: skip


def test_checkpoints_of_a_folded_model_keep_their_own_description(kept, pretrained):
    run, directory, keeping = kept(adaptation__edits=LORA, adaptation__plan=NEW_WEIGHTS,
                               adaptation__store="merged")  # fmt: skip
    keeping.save(1, state_of(run, 1), with_best=False)
    stored = keeping.tensors()
    for _ in range(2):  # a run may finish twice: each time with the weights of a checkpoint
        run = build_run(parts_config(directory, pretrained), "finetune")
        load_strictly(run.model, stored, directory.path, frozenset())
        keeping = CheckpointWriter(run, directory, 0)
        keeping.write_model(keeping.tensors())

        assert list(read_description(directory.checkpoints).edits) == ["lora"]
        assert read_description(directory.model).edits == {}
