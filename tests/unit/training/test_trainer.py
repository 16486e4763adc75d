"""A run at work: which weights it scores, what it writes, how it ends and goes on."""

import json
import shutil

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from safetensors.torch import load_file

from tests import configs, tiny
from tests.records import read_metrics
from transfer_cli.assembly import datasets
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.run import build_run
from transfer_cli.batch import batch_size
from transfer_cli.config.build import build
from transfer_cli.config.stored import read_stored
from transfer_cli.data.labelled import TaskData
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, RunError
from transfer_cli.model.weights import WEIGHTS, load_strictly, read_description, read_weights
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.runs import checkpoint
from transfer_cli.runs.checkpoint import newest_good, read_state
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training import process_group, train, workers
from transfer_cli.training.checkpoints import CheckpointWriter, describe_model
from transfer_cli.training.resume import course_change_text

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
        if model.training and batch_size(batch) > 3:
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

    outcome = results(jumping)

    assert outcome["best_step"] == best
    assert outcome["measures"]["validation"]["loss"] == pytest.approx(losses[best], rel=1e-6)
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
    splits = datasets.prepare_task(labelled, None, tokenizer, shape).splits

    for name in ("validation", "test"):
        scores = evaluate(trained.model, trained.objective, splits[name], batch=8, precision=CPU)
        stored = results(jumping)["measures"][name]
        assert {key: stored[key] for key in scores.measures} == pytest.approx(
            scores.measures, rel=1e-6
        )
    (tested,) = records(jumping, "test")
    assert tested["step"] == 6
    assert tested["loss"] == pytest.approx(results(jumping)["measures"]["test"]["loss"], rel=1e-6)


# --- forgetting --------------------------------------------------------------------------------


def test_forgetting_compares_the_best_weights_with_the_pretrained_ones(tmp_path, pretrained):
    config = configs.following(pretrained, tmp_path, forgetting__data="source", **TOO_FAST)

    run = configs.run(config, "finetune", tmp_path / "run")

    forgetting = results(run)["forgetting"]
    first = json.loads((pretrained / "results.json").read_text())["measures"]["validation"]
    assert forgetting["before"]["loss"] == pytest.approx(first["loss"], rel=1e-5)
    assert forgetting["after"]["loss"] > forgetting["before"]["loss"]
    (noted,) = records(run, "forgetting")
    assert noted["loss"] == pytest.approx(forgetting["after"]["loss"], rel=1e-6)


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


def test_the_rate_ahead_is_told_though_the_run_was_once_cut_short(jumping, tmp_path, pretrained):
    directory = RunDirectory(shutil.copytree(jumping.path, tmp_path / "cut"))
    *lines, _ = directory.config.read_text().replace("steps: 6\n", "steps: 3\n").splitlines()
    directory.config.write_text("\n".join(lines))  # without its hash
    longer = build_run(configs.following(pretrained, tmp_path, loop__steps=12), "finetune")

    text = course_change_text(directory, longer.blueprint)

    assert text.startswith("planned for 6 steps and now for 12: the rate, ")


def test_trained_weights_are_put_on_no_other_backbone(tmp_path, pretrained):
    base = shutil.copytree(pretrained, tmp_path / "base")
    config = configs.following(base, tmp_path, **configs.ONLY_LORA, adaptation__store="trained",
                               checkpoint__every="1 steps", checkpoint__keep=0)  # fmt: skip
    run = configs.run(config, "finetune", tmp_path / "run")
    cut = cut_back(run, tmp_path / "cut", 2)
    other = configs.run(
        configs.config("pretrain", tmp_path, seed=5), "pretrain", tmp_path / "other"
    )
    shutil.rmtree(base)
    shutil.copytree(other.path, base)

    with pytest.raises(CheckpointError, match="put the original back"):
        configs.run(configs.following(base, tmp_path), "finetune", cut.path)


# --- train ---------------------------------------------------------------------------------------


def test_a_directory_that_is_not_shared_is_refused_at_once(tmp_path, monkeypatch):
    place = str(tmp_path / "elsewhere")  # as the first process says to the second
    monkeypatch.setattr(train.distributed, "is_main", lambda: False)
    monkeypatch.setattr(train.distributed, "rank", lambda: 1)
    monkeypatch.setattr(train.distributed, "broadcast_text", lambda _: place)
    monkeypatch.setattr(train, "SECONDS_TO_APPEAR", 0.0)

    with pytest.raises(RunError, match=r"run\.dir: process 1 on .* does not see .*elsewhere"):
        train._share_directory(None)


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_the_signal_that_ended_a_process_is_named(number, name):
    error = workers._exit_error(-number, 1)

    assert (error.exit_code, str(error).partition(",")[0]) == (
        128 + number, f"process 1 was killed by {name}"
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["it's", 'say "hi"', "a,b=[c]", "tail\\", "two\nlines", "ü%$x"])
def test_started_processes_get_what_was_typed_and_the_directory_of_their_job(folder):
    typed = ["seed=1", "run.dir=all"]

    kept, word = workers.worker_overrides(typed, folder)

    assert (kept, word.partition("=")[0]) == ("seed=1", "run.dir")
    assert OverridesParser.create().parse_override(word).value() == folder
    assert workers.worker_overrides(typed, None) == typed


@pytest.mark.parametrize(("world", "wanted"), [(None, [False, True]), ("2", [False, False])])
def test_only_a_process_that_no_torchrun_has_started_starts_others(monkeypatch, world, wanted):
    monkeypatch.setattr(workers.distributed, "started_by_torchrun", lambda: world is not None)

    assert [workers.starts_workers(devices) for devices in (1, 2)] == wanted


def test_processes_with_other_configs_are_refused(monkeypatch):
    monkeypatch.setattr(workers.distributed, "all_gather_text", lambda text: [text, text])
    process_group._check_same_config("seed: 0")

    monkeypatch.setattr(workers.distributed, "all_gather_text", lambda text: [text, "another"])
    with pytest.raises(RunError, match=r"^process 1 of 2 has another config or version"):
        process_group._check_same_config("seed: 0")


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, pretrained):
    """Return how to build a run: with its directory and what keeps its weights."""

    def make(keep=0, **changes):
        config = configs.following(pretrained, tmp_path, **changes)
        run, directory = build_run(config, "finetune"), RunDirectory(tmp_path / "run")
        directory.model.mkdir(parents=True)
        describe_model(run, directory.model)
        return run, directory, CheckpointWriter(run, directory, keep)

    return make


def disturbed(model, seed=1):
    """Give the model other weights; return those that it had."""
    before = tiny.weights_of(model)
    tiny.lively(model, seed)
    return before


def state_of(run, step):
    return {"step": run.step.state_dict(), "progress": {"step": step}, "records": {}}


def test_the_best_weights_come_back_or_where_they_are_damaged_their_copy(kept, caplog):
    run, directory, keeping = kept()
    keeping.save_best(3)
    best = disturbed(run.model)
    keeping.load_best()
    assert tiny.same(run.model.state_dict(), best)

    keeping.save(3, state_of(run, 3), with_best=True)
    disturbed(run.model)
    content = (directory.best / WEIGHTS).read_bytes()
    (directory.best / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    keeping.load_best()

    assert tiny.same(run.model.state_dict(), best)
    assert "best/weights.safetensors is damaged" in caplog.text
    assert "taking their copy in" in caplog.text


def test_the_newest_checkpoint_is_found_and_old_ones_go(kept):
    run, directory, keeping = kept(keep=2)
    assert keeping.newest() is None
    keeping.save_best(1)
    for step in (1, 2, 10):
        keeping.save(step, state_of(run, step), with_best=step > 2)

    assert checkpoint.step_of(keeping.newest()) == 10
    names = sorted(path.name for path in directory.checkpoints.iterdir())
    assert names == ["best", "step-00000002", "step-00000010"]
    with_best = [(directory.checkpoints / name / "best").exists() for name in names[1:]]
    assert with_best == [False, True]


@pytest.mark.parametrize("store", ["all", "merged"])
def test_a_finished_model_computes_what_the_trained_one_did(kept, pretrained, tmp_path, store):
    run, directory, keeping = kept(**configs.ONLY_LORA, adaptation__store=store)
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
    edits = {} if merged else {"lora": configs.LORA}
    fresh = configs.following(pretrained, tmp_path, adaptation__edits=edits)
    model = build_run(fresh, "finetune").model.eval()
    model.load_state_dict(stored)
    with torch.inference_mode():
        states = model.backbone(batch["tokens"], batch["mask"])[-1]
    torch.testing.assert_close(states, wanted, rtol=1e-4, atol=1e-4)
    assert tiny.same(stored, {n: run.model.state_dict()[n] for n in stored})


def test_checkpoints_of_a_folded_model_keep_their_own_description(kept):
    run, directory, keeping = kept(**configs.ONLY_LORA, adaptation__store="merged")
    keeping.save(1, state_of(run, 1), with_best=False)
    stored = keeping.tensors()
    for _ in range(2):  # a run may finish twice: each time with the weights of a checkpoint
        run = build_run(run.blueprint.config, "finetune")
        load_strictly(run.model, stored, directory.path, frozenset())
        keeping = CheckpointWriter(run, directory, 0)
        keeping.write_model(keeping.tensors())

        assert list(read_description(directory.checkpoints).edits) == ["lora"]
        assert read_description(directory.model).edits == {}
