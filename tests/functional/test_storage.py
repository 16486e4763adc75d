"""What a run keeps of its weights: all, what trained with a reference, or all in a plain form."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.model.weights import backbone_hash, read_description

LARGER = ("loop.steps=4", "schedule=constant", "loop.evaluate_every=2 steps")


def stored(run, part="model"):
    return load_file(Path(run) / part / "weights.safetensors")


def size(run, part="model"):
    return (Path(run) / part / "weights.safetensors").stat().st_size


@pytest.fixture
def base(deep, tmp_path):
    """Return a copy of the pretrained run that a test may change or move."""
    return shutil.copytree(deep, tmp_path / "base")


@pytest.fixture
def run_on(transfer, adapting):
    """Return how to fine-tune a few steps from a given run; gives the ended command."""

    def call(start, run, preset, *words):
        return transfer(
            "finetune", *adapting(preset), *LARGER, f"init_from={start}", f"run.dir={run}", *words
        ).ok()

    return call


@pytest.fixture
def predictions(transfer, few_questions):
    """Return how to label the questions with a run; gives the probabilities."""

    def call(run, *words):
        ended = transfer("predict", f"run={run}", f"input={few_questions}", *words).ok()
        rows = [json.loads(line) for line in ended.out.splitlines()]
        return torch.tensor([list(row["probabilities"].values()) for row in rows])

    return call


@pytest.fixture
def accuracy(transfer):
    """Return how to score a run on its validation split; gives its measures."""

    def call(run, *words):
        transfer("evaluate", f"run={run}", "split=validation", "output=found.json", *words).ok()
        return json.loads(Path("found.json").read_text())["measures"]["validation"]

    return call


# --- what trained, and a reference -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    [
        "lora",
        "bias_only",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("adapters", "feature_extraction")),
    ],
)
def test_it_scores_and_predicts_as_the_same_run_that_stores_everything(
    preset, adapted, transfer, adapting, predictions, accuracy, read_json
):
    part = adapted(preset).run
    words = adapting(preset, "adaptation.store=all")
    transfer("finetune", *words, "run.dir=whole").ok()

    assert size(part) < size("whole")
    assert torch.equal(predictions(part), predictions("whole"))
    measured = read_json("whole/results.json")["measures"]["validation"]
    assert accuracy(part) == pytest.approx(measured)


@pytest.mark.slow
def test_a_moved_backbone_is_named_and_found_again(
    run_on, transfer, base, predictions, accuracy, adapting
):
    run_on(base, "run", "adapters")
    before, measured = predictions("run"), accuracy("run")
    base.rename("elsewhere")

    for words in (
        ("predict", "run=run", "input=/dev/null"),
        ("evaluate", "run=run"),
        ("finetune", *adapting(), "init_from=run"),
    ):
        ended = transfer(*words)
        assert ended.code == 2
        assert "base=RUN" in ended.err
        assert str(base) in ended.err
        assert ended.err.count("\n") == 1

    assert torch.equal(predictions("run", "base=elsewhere"), before)
    assert accuracy("run", "base=elsewhere/model") == measured


def test_a_run_and_its_backbone_may_move_together(run_on, deep, tmp_path, predictions):
    project = tmp_path / "project"
    shutil.copytree(deep, project / "base")
    run_on(project / "base", project / "run", "lora")
    before = predictions(project / "run")

    project.rename(tmp_path / "renamed")

    assert torch.equal(predictions(tmp_path / "renamed" / "run"), before)


@pytest.mark.parametrize("at", ["where it was", "base="])
def test_a_changed_backbone_is_refused_with_both_hashes(run_on, transfer, base, adapting, at):
    run_on(base, "run", "adapters")
    wanted = backbone_hash(stored(base))
    tensors = stored(base)
    tensors["backbone.token_embedding.weight"][3, 0] += 1e-3
    save_file(tensors, base / "model" / "weights.safetensors")
    (base / "model" / "meta.json").unlink()
    words = [f"base={base}"] if at == "base=" else []

    for command in (
        ("evaluate", "run=run", "split=validation"),
        ("predict", "run=run", "input=/dev/null"),
        ("finetune", *adapting(), "init_from=run", "run.dir=next"),
    ):
        ended = transfer(*command, *words)

        assert ended.code == 2
        assert wanted[:8] in ended.err
        assert backbone_hash(tensors)[:8] in ended.err
        assert ended.err.count("\n") == 1
    assert not Path("next").exists()


def test_base_is_not_needed_and_does_no_harm_where_everything_is_stored(run_on, deep, predictions):
    run_on(deep, "run", "full")

    assert torch.equal(predictions("run", f"base={deep}"), predictions("run"))


# --- one after the other -----------------------------------------------------------------------


@pytest.fixture
def other_task(tmp_path):
    """Return the words for another labelled table, with three labels."""
    rows = [f"the tower number {n},{['red', 'green', 'blue'][n % 3]}" for n in range(30)]
    (tmp_path / "other.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return (f"data.train={tmp_path / 'other.csv'}",)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["adapters", "frozen"])
def test_a_second_task_begins_where_the_first_one_ended(
    preset, run_on, deep, other_task, predictions, accuracy
):
    run_on(deep, "first", "adapters")

    ended = run_on("first", "second", preset, *other_task)

    dropped = next(line for line in ended.err.splitlines() if line.startswith("dropped: "))
    assert "heads.class.linear.weight" in dropped
    assert "heads.class.linear.bias" in dropped
    new = next(line for line in ended.err.splitlines() if line.startswith("new: "))
    assert "sites" not in new
    start, end = (open_pretrained(run).tensors() for run in ("first", "second"))
    added = [name for name in start if ".sites." in name]
    assert added
    # Adapters train with everything that was added, and stay as they are under a new head alone.
    same = [torch.equal(start[name], end[name]) for name in added]
    assert all(same) if preset == "frozen" else not any(same)
    assert read_description(Path("second/model")).labels == ("blue", "green", "red")
    assert accuracy("second")["loss"] > 0
    assert predictions("second").shape == (30, 3)


@pytest.mark.slow
def test_a_head_of_as_many_other_labels_is_another_head(run_on, deep, tmp_path):
    run_on(deep, "first", "frozen")
    rows = [f"the tower number {n},{['red', 'green'][n % 2]}" for n in range(30)]
    (tmp_path / "colours.csv").write_text("\n".join(["text,label", *rows]) + "\n")

    ended = run_on("first", "second", "frozen", f"data.train={tmp_path / 'colours.csv'}")

    assert "new: heads.class.linear.bias, heads.class.linear.weight" in ended.err
    dropped = next(line for line in ended.err.splitlines() if line.startswith("dropped: "))
    assert "heads.class.linear.weight" in dropped


def test_a_chain_of_runs_finds_every_link(run_on, base, other_task, transfer, predictions):
    run_on(base, "first", "adapters")
    run_on("first", "second", "frozen", *other_task)
    before = predictions("second")

    assert stored("second").keys() == {"heads.class.linear.bias", "heads.class.linear.weight"}
    Path("first").rename("moved")
    ended = transfer("predict", "run=second", "input=/dev/null")
    assert ended.code == 2
    assert "base=RUN" in ended.err
    assert torch.equal(predictions("second", "base=moved"), before)


def test_the_same_task_again_goes_on_with_its_head(run_on, deep):
    run_on(deep, "first", "adapters")

    ended = run_on("first", "second", "adapters")

    assert "new: " not in ended.err
    assert stored("second").keys() == stored("first").keys()


@pytest.mark.slow
def test_a_checkpoint_of_a_partly_stored_run_can_be_the_start(run_on, deep):
    run_on(deep, "first", "adapters", "checkpoint.every=2 steps", "checkpoint.keep=2")

    run_on("first/checkpoints/step-00000002", "second", "frozen")

    start = open_pretrained("first/checkpoints/step-00000002").tensors()
    end = open_pretrained("second").tensors()
    names = [name for name in start if name.startswith("backbone.")]
    assert any(".sites." in name for name in names)
    assert all(torch.equal(start[name], end[name]) for name in names)


# --- merged ------------------------------------------------------------------------------------


EVERY_TARGET = "targets=[query,key,value,output,feed_forward]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("lora", [f"adaptation.edits.lora.{EVERY_TARGET}"]),
        ("dora", [f"adaptation.edits.dora.{EVERY_TARGET}"]),
        ("ia3", []),
    ],
)
def test_merged_edits_leave_a_plain_model_with_the_same_answers(
    preset, words, run_on, deep, predictions, accuracy
):
    run_on(deep, "apart", preset, *words)
    run_on(deep, "merged", preset, *words, "adaptation.store=merged")

    plain = {name for name in stored(deep) if name.startswith("backbone.")}
    found = {name for name in stored("merged") if name.startswith("backbone.")}
    assert found == plain
    description = read_description(Path("merged/model"))
    assert not description.edits
    assert description.base is None
    moved = stored("merged")["backbone.blocks.0.attention.packed.weight"]
    assert not torch.equal(moved, stored(deep)["backbone.blocks.0.attention.packed.weight"])
    assert torch.allclose(predictions("merged"), predictions("apart"), atol=1e-5)
    one, other = accuracy("merged"), accuracy("apart")
    assert one["accuracy"] == other["accuracy"]
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


@pytest.mark.slow
def test_an_edit_that_cannot_be_merged_stays_beside_one_that_can(run_on, predictions, deep):
    both = "adaptation/edits=[lora,new_rows]"
    run_on(deep, "apart", "lora", both)
    run_on(deep, "merged", "lora", both, "adaptation.store=merged")

    assert read_description(Path("merged/model")).edits.keys() == {"new_rows"}
    found = {name for name in stored("merged") if name.startswith("backbone.")}
    plain = {name for name in stored(deep) if name.startswith("backbone.")}
    assert found - plain == {"backbone.new_rows.delta"}
    assert torch.allclose(predictions("merged"), predictions("apart"), atol=1e-5)


@pytest.mark.slow
def test_a_merged_model_can_be_the_start_of_another_run(run_on, deep):
    run_on(deep, "merged", "lora", "adaptation.store=merged")

    run_on("merged", "again", "full")

    assert open_pretrained("again").tensors().keys() == stored("merged").keys()


@pytest.mark.slow
def test_a_checkpoint_of_a_merged_run_keeps_its_updates(run_on, deep):
    run_on(
        deep,
        "merged",
        "lora",
        "adaptation.store=merged",
        "checkpoint.every=2 steps",
        "checkpoint.keep=2",
    )
    part = "merged/checkpoints/step-00000002"

    run_on(part, "again", "frozen", "adaptation.store=all")

    start, end = open_pretrained(part).tensors(), open_pretrained("again").tensors()
    added = [name for name in start if ".lora." in name]
    plain = "backbone.blocks.0.attention.packed.weight"
    # Either as they are in the checkpoint, or folded in: they must not be lost.
    assert added
    kept = all(name in end and torch.equal(start[name], end[name]) for name in added)
    assert kept or not torch.equal(end[plain], stored(deep)[plain])


@pytest.mark.slow
def test_a_merged_run_can_be_made_longer(run_on, transfer, deep, predictions):
    words = ("adaptation.store=merged", "loop.evaluate_every=2 steps")
    run_on(deep, "long", "lora", *words, "loop.steps=6")
    run_on(deep, "run", "lora", *words)

    transfer("finetune", "resume=run", "loop.steps=6").ok()

    assert torch.equal(predictions("run"), predictions("long"))


# --- what a head that is taken over has decided ------------------------------------------------


def test_a_head_that_is_taken_over_keeps_its_pooling(transfer, adapting, read_json):
    transfer("finetune", *adapting("full"), "run.dir=first").ok()
    own = read_json(Path("first/model/model.json"))["objective"]["pooling"]

    words = [word for word in adapting("lora") if not word.startswith("init_from=")]
    transfer("finetune", *words, "init_from=first", "run.dir=second").ok()

    assert own == "cls_last"  # what a full run of a causal model chooses
    assert read_json(Path("second/model/model.json"))["objective"]["pooling"] == own


@pytest.mark.slow
def test_the_pretraining_is_found_where_a_moved_base_lies_now(transfer, adapting, tmp_path, deep):
    here = shutil.copytree(deep, tmp_path / "here")
    words = [word for word in adapting("lora") if not word.startswith("init_from=")]
    transfer("finetune", *words, "init_from=here", "run.dir=small").ok()
    moved = here.rename(tmp_path / "there")

    again = [*words, "init_from=small", "forgetting.data=source", "run.dir=again"]
    assert "base=RUN" in transfer("finetune", *again).err
    transfer("finetune", *again, f"base={moved}").ok()
