"""Runs with stages, penalties, added modules and several streams, stopped and resumed."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from tests.records import read_metrics
from transfer_cli.cli import main
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.schema import FinetuneConfig
from transfer_cli.engine.step import TrainStep
from transfer_cli.errors import StoppedError
from transfer_cli.training.train import train

PRESETS = sorted(path.stem for path in (conf_dir() / "adaptation").glob("*.yaml"))


def config_of(run, **changes):
    """Return the config of a run with other values, which spares a test composing it again."""
    config = OmegaConf.load(run / "config.yaml")
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    return OmegaConf.merge(OmegaConf.structured(FinetuneConfig), config)


@pytest.fixture
def stop_after(monkeypatch):
    """Return how to have this process told to stop in the middle of a step; it saves and ends."""
    wanted, call = set(), TrainStep.__call__

    def step(self, batches, number):
        if number + 1 in wanted:
            signal.raise_signal(signal.SIGTERM)
        return call(self, batches, number)

    monkeypatch.setattr(TrainStep, "__call__", step)

    def choose(*steps):
        wanted.clear()
        wanted.update(steps)

    return choose


@pytest.fixture
def stopped_again_and_again(stop_after, tmp_path):
    """Return how to repeat a run that is stopped at each of some steps, and resumed each time."""

    def repeat(run, stops, **changes):
        again = tmp_path / "again"
        config = config_of(run, **{"run.dir": str(again), **changes})
        for stop in sorted(stops):
            stop_after(stop)
            with pytest.raises(StoppedError, match=f"stopped at step {stop} with a checkpoint"):
                train(config, "finetune")
            config = config_of(again, resume=str(again))
        stop_after()
        train(config, "finetune")
        return again

    return repeat


def weights(run, part="model"):
    return (Path(run) / part / "weights.safetensors").read_bytes()


def records(run):
    return read_metrics(Path(run) / "metrics.jsonl")


def results(run):
    """Return the results, without what a composed command alone knows."""
    document = json.loads((Path(run) / "results.json").read_text())
    return {name: document[name] for name in document if name != "presets"}


def assert_same(run, other):
    ours, others = (Path(folder) / "metrics.jsonl" for folder in (run, other))
    assert ours.read_bytes() == others.read_bytes()
    assert results(run) == results(other)
    assert weights(run) == weights(other)
    newest = max(path.name for path in (Path(other) / "checkpoints").glob("step-*"))
    for name in ("best", newest):
        assert weights(run, f"checkpoints/{name}") == weights(other, f"checkpoints/{name}")


# --- every preset ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_stopped_in_and_between_all_stages_it_ends_as_if_it_was_not(
    preset, adapted, stopped_again_and_again
):
    whole = adapted(preset)
    middles = {(span.begin + span.end) // 2 for span in whole.spans}
    ends = {span.end for span in whole.spans[:-1]}

    again = stopped_again_and_again(whole.run, middles | ends)

    assert_same(again, whole.run)


# --- stages with patience ----------------------------------------------------------------------

PATIENT = (
    "adaptation.plan.every=4 steps", "adaptation.plan.patience=2", "loop.evaluate_every=1 steps",
    "checkpoint.every=1 steps", "checkpoint.keep=0", "loop.steps=24", "optimizer=sgd",
    "optimizer.lr=12",
)  # fmt: skip


@pytest.fixture(scope="module")
def patient(adapting, tmp_path_factory):
    """Return a run of chain-thaw at so high a rate that stages end early."""
    run = tmp_path_factory.mktemp("patient") / "patient"
    assert main(["finetune", *adapting("chain_thaw"), *PATIENT, f"run.dir={run}"]) == 0
    return run


def losses_by_stage(run):
    """Return, for each stage, the validation loss after each of its steps, by step."""
    stages = {r["step"]: int(r["stage"]) for r in records(run) if r["kind"] == "train"}
    losses = {stage: {} for stage in stages.values()}
    for record in records(run):
        if record["kind"] == "validation":
            losses[stages[record["step"]]][record["step"]] = record["loss"]
    return losses


def tensors(run, step):
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")


@pytest.mark.slow
def test_a_stage_that_ends_goes_back_to_its_best_weights(patient):
    stages = losses_by_stage(patient)
    early = [stage for stage in stages if len(stages[stage]) < 4]
    went_back = []

    for stage in (1, 2, 3):  # what these train does not train in the next one
        losses = stages[stage]
        best = min(losses, key=losses.get)
        before, after = tensors(patient, best), tensors(patient, max(losses) + 1)
        last_of_stage = tensors(patient, max(losses))
        prefix = {1: "heads.", 2: "backbone.token_embedding", 3: "backbone.blocks.0."}[stage]
        names = [name for name in before if name.startswith(prefix)]
        assert names
        assert all(torch.equal(before[name], after[name]) for name in names)
        if any(not torch.equal(last_of_stage[name], after[name]) for name in names):
            went_back.append(stage)

    assert early
    assert went_back
    ends = [stage["end"] for stage in results(patient)["stages"]]
    assert ends[:-1] == [max(losses) for losses in list(stages.values())[:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("on_the_way", [True, pytest.param(False, id="at their boundaries")])
def test_stages_with_patience_are_resumed_exactly(patient, stopped_again_and_again, on_the_way):
    ends = [max(losses) for losses in losses_by_stage(patient).values()]

    again = stopped_again_and_again(patient, range(1, ends[-1], 3) if on_the_way else ends)

    assert_same(again, patient)


@pytest.mark.slow
def test_stages_with_patience_restore_a_heads_running_statistics(transfer, adapting, read_json):
    head = ("objective.hidden=[4]", "objective.batch_norm=true")

    transfer(
        "finetune", *adapting("chain_thaw"), *PATIENT, *head, "optimizer.lr=0.1", "run.dir=run"
    ).ok()

    run = Path("run")
    losses = losses_by_stage(run)[1]
    best, after = min(losses, key=losses.get), max(losses) + 1
    name = "heads.class.linear.weight"
    assert torch.equal(tensors(run, best)[name], tensors(run, after)[name])


# --- what else a run takes along ---------------------------------------------------------------


def test_a_resume_is_held_to_the_backbone_that_the_run_began_with(
    transfer, stop_after, adapting, deep, tmp_path
):
    base = shutil.copytree(deep, tmp_path / "base")
    stop_after(5)
    assert (
        transfer("finetune", *adapting("adapters"), f"init_from={base}", "run.dir=run").code == 75
    )
    stop_after()
    changed = load_file(base / "model" / "weights.safetensors")
    changed["backbone.token_embedding.weight"][0, 0] += 1
    save_file(changed, base / "model" / "weights.safetensors")
    (base / "model" / "meta.json").unlink()

    noted = transfer("finetune", "resume=run")
    Path("run/origins.json").unlink()  # as a run of an earlier version
    ended = transfer("finetune", "resume=run")

    assert noted.code == ended.code == 2
    assert "init_from: the weights in " in noted.err
    assert "hash" in ended.err
    assert ended.err.splitlines()[-1].startswith("transfer finetune: resume: run was trained on")


# --- made longer -------------------------------------------------------------------------------


@pytest.mark.slow
def test_stages_of_a_given_length_can_be_made_longer_exactly(transfer, adapting):
    words = adapting(
        "gradual_unfreezing", "adaptation.plan.every=3 steps", "schedule=constant",
        "checkpoint.keep=0",
    )  # fmt: skip
    transfer("finetune", *words, "loop.steps=16", "run.dir=long").ok()
    transfer("finetune", *words, "run.dir=run").ok()

    transfer("finetune", "resume=run", "loop.steps=16").ok()

    part = "checkpoints/step-00000016"
    assert weights("run", part) == weights("long", part)
    assert results("run")["stages"] == results("long")["stages"]


def test_stages_that_are_shares_of_a_run_are_not_said_to_have_been_others(transfer, adapting):
    words = adapting("gradual_unfreezing", "schedule=constant", "checkpoint.keep=0")
    transfer("finetune", *words, "run.dir=run").ok()

    over = transfer("finetune", "resume=run")
    ended = transfer("finetune", "resume=run", "loop.steps=16")

    assert "shares of its length; to go on, start a new run with init_from" in over.err
    # A longer run would have had its stages elsewhere. Either that is refused, or what is written
    # down is what happened.
    if ended.code == 2:
        assert "adaptation.plan" in ended.err
        return
    trained = [int(r["stage"]) for r in records("run") if r["kind"] == "train"]
    for number, stage in enumerate(results("run")["stages"]):
        assert set(trained[stage["begin"] : stage["end"]]) == {number + 1}


def test_a_run_whose_last_stage_gave_up_is_finished(transfer, adapting):
    words = ("optimizer.lr=1e-30", "loop.evaluate_every=1 steps", "adaptation.plan.patience=1")
    transfer("finetune", *adapting("chain_thaw"), *words, "run.dir=run").ok()
    assert results("run")["seen"]["steps"] < 12

    ended = transfer("finetune", "resume=run")

    assert ended.code == 2
    assert "is finished after 10 steps; its last stage ran out of patience" in ended.err
