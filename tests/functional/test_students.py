"""Students of pretrained models: picked blocks, predictions and relations of a teacher."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests import several
from tests.functional.conftest import TINY

STEPS = ("device=cpu", "loop.batch=8", "loop.steps=4", "schedule=constant")
DISTIL = ("objective=distil_lm", "objective.teachers=[{teacher}]")
RELATE = ("objective=relation_distillation", "objective.teachers=[{teacher}]")


@pytest.fixture(scope="session")
def teacher(masked):
    """Return a masked language model of four blocks."""
    return masked


@pytest.fixture
def words(corpus, teacher):
    """Return the command line of a student, with what is typed for it."""

    def call(*more):
        typed = [word.format(teacher=teacher) for word in more]
        return ("pretrain", "data=text", f"data.train={corpus}", *STEPS, *typed)

    return call


@pytest.fixture
def small(words, tiny):
    """Return the command line of a student of half the width, with fresh weights."""
    return lambda *more: words(*tiny, "model.width=16", "model.depth=2", "model.dropout=0", *more)


def weights(run, part="model"):
    return load_file(Path(run) / part / "weights.safetensors")


def described(run):
    return json.loads((Path(run) / "model" / "model.json").read_text())


# --- picked blocks ------------------------------------------------------------------------------


PICK = ("init_from={teacher}", "objective=mlm", "optimizer.lr=1e-30", "run.dir=student")


@pytest.mark.parametrize(
    ("typed", "layers"),
    [
        (("model.depth=2",), (1, 3)),
        (("student.layers=[0,2,3]",), (0, 2, 3)),
    ],
)
def test_a_student_begins_with_the_blocks_that_are_picked(transfer, words, teacher, typed, layers):
    transfer(*words(*PICK, *typed)).ok()

    before, found = weights(teacher), weights("student")
    place = dict(zip(map(str, layers), map(str, range(len(layers))), strict=True))
    for name, tensor in before.items():
        parts = name.split(".")
        if parts[1] == "blocks":
            parts[2] = place.get(parts[2], "")
        if all(parts):
            assert_close(found.pop(".".join(parts)), tensor, rtol=0, atol=0)
    assert not found
    assert described("student")["shape"]["depth"] == len(layers)


def test_a_plan_says_which_blocks_are_picked(transfer, words, teacher):
    found = transfer("plan", *words(*PICK, "model.depth=2", "plan.steps=0")).ok()

    assert f"blocks: 1, 3 of {teacher}" in " ".join(found.out.split())


def test_of_a_model_with_edits_no_blocks_are_picked(transfer, words, teacher, corpus):
    lora = (f"init_from={teacher}", "adaptation=lora", "objective=mlm", "run.dir=edited")
    transfer("pretrain", "data=text", f"data.train={corpus}", *STEPS, *lora).ok()

    transfer(*words("init_from=edited", "model.depth=2", "objective=mlm")).refusal(
        "model.depth: edited/model has blocks that were edited (lora)"
    )


# --- predictions and relations of a teacher -------------------------------------------------------


STUDENT = ("init_from={teacher}", "model.depth=2", *DISTIL)


def test_a_student_is_a_language_model_of_its_own(transfer, words, teacher):
    before = weights(teacher)

    transfer(*words(*STUDENT, "run.dir=student")).ok()

    assert described("student")["objective"] == {
        "_target_": "transfer_cli.objectives.masked_lm.MaskedLM"
    }
    measures = json.loads(Path("student/results.json").read_text())["measures"]["validation"]
    assert measures.keys() == {"loss", "masked_token_perplexity", "divergence", "distance"}
    found = {name for name in weights("student") if name.startswith("backbone.blocks.")}
    assert {name.split(".")[2] for name in found} == {"0", "1"}
    assert weights("student").keys() <= before.keys()
    assert all(weights(teacher)[name].equal(tensor) for name, tensor in before.items())
    transfer("fill", "run=student", "The tower of [MASK] is old .").ok()
    scored = transfer("evaluate", "run=student", "split=validation").ok()
    assert f"{measures['loss']:.6g}" in scored.out


def test_what_learnt_relations_alone_goes_into_finetune(transfer, small):
    transfer(*small(*RELATE, "run.dir=student")).ok()

    transfer(
        "finetune", "init_from=student", "data=sample_questions", "device=cpu",
        "loop.steps=2", "run.dir=adapted",
    ).ok()  # fmt: skip
    lost = transfer("evaluate", "run=student")
    lost.refusal("compares with teachers, which a finished run does not hold")


@pytest.mark.slow
def test_a_published_model_teaches_and_gives_its_blocks(transfer, tmp_path):
    own = ("data=sample_text", *STEPS)
    like_bert = ("model=bert-base", *TINY[1:], "model.depth=3", "objective=mlm", "run.dir=own")
    transfer("pretrain", *own, *like_bert).ok()
    transfer("export", "run=own", "to=bert").ok()

    taught = ("objective=distil_lm", "objective.teachers=[bert]", "optimizer.lr=1e-30")
    transfer("pretrain", *own, "init_from=bert", "model.depth=1", *taught, "run.dir=student").ok()

    name = "backbone.blocks.{}.attention.packed.weight"
    assert weights("student")[name.format(0)].equal(weights("own")[name.format(1)])


def test_a_teacher_without_a_head_has_no_predictions(transfer, small):
    transfer(*small(*RELATE, "run.dir=headless")).ok()

    transfer(*small("objective=distil_lm", "objective.teachers=[headless]")).refusal(
        "objective.teachers: headless/model has no language-model head"
    )


def test_a_run_does_not_go_on_with_another_teacher(transfer, words, teacher):
    shutil.copytree(teacher, "copy")
    taught = ("init_from={teacher}", "objective=distil_lm", "objective.teachers=[copy]")
    transfer(*words(*taught, "run.dir=student")).ok()
    transfer(*words("init_from={teacher}", "objective=mlm", "run.dir=other")).ok()
    shutil.rmtree("copy/model")
    shutil.copytree("other/model", "copy/model")

    transfer("pretrain", "resume=student", "loop.steps=6").refusal(
        "objective.teachers: the weights in copy/model are not those that the run began with"
    )


@pytest.mark.multiprocess
@pytest.mark.slow
def test_relations_are_not_learnt_of_shards(transfer, small):
    ran = several.torchrun(
        2, "-m", "transfer_cli", *map(str, small(*RELATE)), "parallel=fsdp", "run.dir=two"
    )

    assert ran.returncode != 0
    assert "parallel: with fsdp" in ran.stderr
    assert "RelationDistillation" in ran.stderr
