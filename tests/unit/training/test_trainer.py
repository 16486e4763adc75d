"""A run at work: which weights it scores, what it writes, how it ends and goes on."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests import configs
from tests.records import read_metrics
from transfer_cli.assembly import datasets
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.batch import size
from transfer_cli.config.build import build
from transfer_cli.config.stored import read_stored
from transfer_cli.data.labelled import TaskData
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, FinishedError
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.runs.checkpoint import newest_good, read_state
from transfer_cli.runs.directory import RunDirectory

CPU = Precision("fp32", torch.device("cpu"))
TOO_FAST = {"optimizer__lr": 1.0, "loop__steps": 6}
"""The loss goes down and up again."""


def results(run):
    return json.loads(run.results.read_text())


def records(run, kind):
    return [record for record in read_metrics(run.metrics) if record["kind"] == kind]


@pytest.fixture(scope="module")
def jumping(tmp_path_factory, pretrained):
    """Return a run whose best weights are not its last ones."""
    folder = tmp_path_factory.mktemp("jumping")
    config = configs.following(pretrained, folder, checkpoint__keep=0,
                               checkpoint__every="2 steps", **TOO_FAST)  # fmt: skip
    return configs.run(config, "finetune", folder / "run")


def test_a_run_stores_the_micro_batch_that_there_was_memory_for(tmp_path, monkeypatch):
    whole = CausalLM.loss_sums

    def hungry(self, model, batch, encoded):
        if model.training and size(batch) > 3:
            raise torch.OutOfMemoryError
        return whole(self, model, batch, encoded)

    monkeypatch.setattr(CausalLM, "loss_sums", hungry)

    run = configs.run(configs.config("pretrain", tmp_path), "pretrain", tmp_path / "run")

    assert read_stored(run.config, "pretrain", "run").loop.micro_batch == 2


def test_a_run_is_scored_and_kept_at_its_best_weights_and_not_at_its_last(jumping):
    losses = {record["step"]: record["loss"] for record in records(jumping, "validation")}
    best = min(losses, key=losses.get)
    assert best != max(losses)
    assert losses[max(losses)] > losses[best] + 0.01

    found = results(jumping)

    assert found["best_step"] == best
    assert found["measures"]["validation"]["loss"] == pytest.approx(losses[best], rel=1e-6)
    kept, stored = (
        load_file(folder / "weights.safetensors") for folder in (jumping.best, jumping.model)
    )
    assert all(torch.equal(kept[name], stored[name]) for name in stored)


@pytest.mark.parametrize(("rows", "measure"), [(98, "loss"), (100, "error_rate")])
def test_a_measure_decides_where_validation_is_large_enough_for_it(tmp_path, rows, measure):
    data = configs.table(tmp_path, rows, "own")  # with half as many for validation
    config = configs.config("finetune", tmp_path, data=data, loop__steps=1)

    run = configs.run(config, "finetune", tmp_path / "run")

    noted = read_state(newest_good(run.checkpoints))["progress"]
    validation = results(run)["measures"]["validation"]
    assert validation["loss"] != validation["error_rate"]
    assert (noted["best"], noted["best_loss"]) == (validation[measure], validation["loss"])


def test_of_little_validation_the_last_weights_are_kept_where_the_rate_falls(tmp_path):
    falling = {"_target_": "transfer_cli.optim.schedules.Linear"}
    config = configs.config("finetune", tmp_path, schedule=falling, optimizer__lr=1e-30,
                            loop__evaluate_every="1 steps", loop__steps=11)  # fmt: skip

    run = configs.run(config, "finetune", tmp_path / "run")

    assert results(run)["best_step"] == 11


def test_weights_of_the_first_tenth_are_said_to_be_that(tmp_path, caplog):
    config = configs.config("finetune", tmp_path, optimizer__lr=1e-30, loop__steps=10,
                            loop__evaluate_every="1 steps")  # fmt: skip

    run = configs.run(config, "finetune", tmp_path / "run")

    assert results(run)["best_step"] == 1
    said = [record.message for record in caplog.records if "loop.monitor=auto" in record.message]
    assert len(said) == 1
    assert "step 1 of 10" in said[0]


def test_the_stored_model_has_the_scores_that_were_written_down(jumping):
    trained = open_trained(str(jumping.path), CPU)
    folder = jumping.path.parent
    labelled = build(configs.table(folder), "data", TaskData).load(folder, 0)
    shape, tokenizer = trained.model.backbone.shape, trained.start.tokenizer
    splits = datasets.task(labelled, None, tokenizer, shape).splits

    for name in ("validation", "test"):
        scores = evaluate(trained.model, trained.objective, splits[name], batch=8, precision=CPU)
        assert results(jumping)["measures"][name] == pytest.approx(scores.measures, rel=1e-6)
    (tested,) = records(jumping, "test")
    assert tested["step"] == 6
    assert tested["loss"] == pytest.approx(results(jumping)["measures"]["test"]["loss"], rel=1e-6)


def test_results_say_what_was_trained_and_what_was_seen(jumping):
    found = results(jumping)

    assert found["command"] == "finetune"
    assert found["labels"] == ["number", "place"]
    assert found["stages"] == [{"begin": 0, "end": 6}]
    stored = load_file(jumping.model / "weights.safetensors")
    total = sum(tensor.numel() for tensor in stored.values())
    assert found["parameters"] == {"total": total, "trainable": total}
    assert found["stored_bytes"] == (jumping.model / "weights.safetensors").stat().st_size
    assert found["seen"]["steps"] == 6
    assert found["seen"]["examples"] == 2 * 20
    assert found["seen"]["skipped_steps"] == 0
    assert json.loads(jumping.status.read_text())["status"] == "finished"


def test_each_example_of_validation_and_test_is_noted(jumping):
    items = [json.loads(line) for line in jumping.items.read_text().splitlines()]

    assert [item["split"] for item in items] == ["validation"] * 10 + ["test"] * 10
    right = sum(item["predicted"] == item["label"] for item in items[10:]) / 10
    assert results(jumping)["measures"]["test"]["accuracy"] == pytest.approx(right)
    table = results(jumping)["tables"]["test"]["confusion"]
    assert sum(table[n][n] for n in range(2)) == 10 * right
    assert sum(map(sum, table)) == 10


def test_a_stage_that_trains_a_part_counts_that_part_alone(tmp_path, pretrained):
    heads = {"_target_": f"{configs.PLANS}.Only", "train": ["head.*"]}

    run = configs.run(
        configs.following(pretrained, tmp_path, adaptation__plan=heads),
        "finetune",
        tmp_path / "run",
    )

    stored = load_file(run.model / "weights.safetensors")
    head = sum(tensor.numel() for name, tensor in stored.items() if name.startswith("heads."))
    assert results(run)["parameters"]["trainable"] == head
    before = load_file(pretrained / "model" / "weights.safetensors")
    assert all(
        torch.equal(stored[name], before[name]) for name in stored if name.startswith("backbone.")
    )


def test_a_classifier_that_learnt_nothing_is_called_failed(tmp_path, pretrained):
    config = configs.following(pretrained, tmp_path, optimizer__lr=1e-9, loop__steps=1)

    run = configs.run(config, "finetune", tmp_path / "run")

    assert "is no better than always answering" in results(run)["failed"]
    assert json.loads(run.status.read_text())["status"] == "finished"


# --- forgetting --------------------------------------------------------------------------------


def test_forgetting_compares_the_best_weights_with_the_pretrained_ones(tmp_path, pretrained):
    config = configs.following(pretrained, tmp_path, forgetting__data="source", **TOO_FAST)

    run = configs.run(config, "finetune", tmp_path / "run")

    found = results(run)["forgetting"]
    first = json.loads((pretrained / "results.json").read_text())["measures"]["validation"]
    assert found["before"]["loss"] == pytest.approx(first["loss"], rel=1e-5)
    assert found["after"]["loss"] > found["before"]["loss"]
    (noted,) = records(run, "forgetting")
    assert noted["loss"] == pytest.approx(found["after"]["loss"], rel=1e-6)


# --- going on ----------------------------------------------------------------------------------

SAME = ("results.json", "metrics.jsonl", "items.jsonl", "model/weights.safetensors")


def cut_back(run, path, step):
    """Return a copy of a finished run as a kill would have left it after a step.

    Its best weights may be of a later one.
    """
    shutil.copytree(run.path, path)
    cut = RunDirectory(path)
    for folder in cut.checkpoints.glob("step-*"):
        if int(folder.name[5:]) > step:
            shutil.rmtree(folder)
    cut.status.write_text('{"status": "running"}')
    cut.results.unlink()
    return cut


@pytest.mark.parametrize("step", [0, 2, 4, 6])
def test_a_run_that_was_killed_goes_on_to_the_same_files(jumping, tmp_path, pretrained, step):
    cut = cut_back(jumping, tmp_path / "cut", step)

    configs.run(configs.following(pretrained, tmp_path), "finetune", cut.path)

    for name in SAME:
        assert (cut.path / name).read_bytes() == (jumping.path / name).read_bytes(), name


@pytest.mark.slow
def test_adam_stages_and_patience_go_on_as_if_nothing_had_been(tmp_path, pretrained):
    thaw = {"_target_": f"{configs.PLANS}.ChainThaw", "every": "2 steps", "patience": 1}
    config = configs.following(
        pretrained, tmp_path, adaptation__plan=thaw, loop__steps=10, loop__patience=9,
        optimizer={"_target_": "torch.optim.AdamW", "lr": 0.05},
        checkpoint__every="1 steps", checkpoint__keep=0,
    )  # fmt: skip
    whole = configs.run(config, "finetune", tmp_path / "whole")
    third = results(whole)["stages"][2]
    assert third["end"] > third["begin"] + 1

    cut = cut_back(whole, tmp_path / "cut", third["begin"] + 1)
    configs.run(configs.following(pretrained, tmp_path), "finetune", cut.path)

    for name in SAME:
        assert (cut.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_patience_ends_a_run_early_and_a_resume_finds_it_finished(tmp_path, pretrained):
    config = configs.following(
        pretrained, tmp_path, loop__patience=1, loop__steps=50, optimizer__lr=8.0, loop__clip=None,
        loop__max_bad_steps=99,
    )  # fmt: skip

    run = configs.run(config, "finetune", tmp_path / "run")

    losses = [record["loss"] for record in records(run, "validation")]
    assert results(run)["seen"]["steps"] == len(losses) < 50
    assert not losses[-1] < min(losses[:-1])
    with pytest.raises(FinishedError, match=r"finished after .*loop\.patience=null"):
        configs.run(configs.following(pretrained, tmp_path), "finetune", run.path)


def test_trained_weights_are_put_on_no_other_backbone(tmp_path, pretrained):
    lora = {"lora": {"_target_": f"{configs.EDITS}.LoRA", "rank": 2}}
    new = {"_target_": f"{configs.PLANS}.NewWeights"}
    base = tmp_path / "base"
    shutil.copytree(pretrained, base)
    run = configs.run(
        configs.following(base, tmp_path, adaptation__edits=lora, adaptation__plan=new,
                          adaptation__store="trained", checkpoint__every="1 steps",
                          checkpoint__keep=0),
        "finetune", tmp_path / "run",
    )  # fmt: skip
    cut = cut_back(run, tmp_path / "cut", 2)
    other = configs.run(
        configs.config("pretrain", tmp_path, seed=5), "pretrain", tmp_path / "other"
    )
    shutil.rmtree(base)
    shutil.copytree(other.path, base)

    with pytest.raises(CheckpointError, match="put the original back"):
        configs.run(configs.following(base, tmp_path), "finetune", cut.path)
