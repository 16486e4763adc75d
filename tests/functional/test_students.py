"""Students of pretrained models: picked blocks, predictions and relations of a teacher."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import transfer_cli
from tests import published, several
from tests.functional.conftest import TINY
from tests.task_kinds import KINDS
from transfer_cli.interop.sentence_folder import SentenceModules, sentence_modules

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

    before, after = weights(teacher), weights("student")
    place = dict(zip(map(str, layers), map(str, range(len(layers))), strict=True))
    for name, tensor in before.items():
        parts = name.split(".")
        if parts[1] == "blocks":
            parts[2] = place.get(parts[2], "")
        if all(parts):
            assert_close(after.pop(".".join(parts)), tensor, rtol=0, atol=0)
    assert not after
    assert described("student")["shape"]["depth"] == len(layers)


def test_a_plan_says_which_blocks_are_picked(transfer, words, teacher):
    ended = transfer("plan", *words(*PICK, "model.depth=2", "plan.steps=0")).ok()

    assert f"blocks: 1, 3 of {teacher}" in " ".join(ended.out.split())


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
    names = {name for name in weights("student") if name.startswith("backbone.blocks.")}
    assert {name.split(".")[2] for name in names} == {"0", "1"}
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
    data = ("data=sample_text", *STEPS)
    like_bert = ("model=bert-base", *TINY[1:], "model.depth=3", "objective=mlm", "run.dir=own")
    transfer("pretrain", *data, *like_bert).ok()
    transfer("export", "run=own", "to=bert").ok()

    taught = ("objective=distil_lm", "objective.teachers=[bert]", "optimizer.lr=1e-30")
    transfer("pretrain", *data, "init_from=bert", "model.depth=1", *taught, "run.dir=student").ok()

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


# --- vectors of texts ----------------------------------------------------------------------------


TEXTS = ["Lima has a bridge", "the tower of Oslo", "what is this ?"]


def measures(run):
    return json.loads(Path(run, "results.json").read_text())["measures"]


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pairs.csv").write_text(KINDS["similarity"].text())
    return ("data=pairs", "objective=contrastive", "data.train=pairs.csv", "device=cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    published.publish(folder, "bert")
    return folder


@pytest.mark.slow
def test_a_run_writes_its_vectors_and_is_exported_with_them(pairs, bert, transfer):
    words = ("loop.steps=2", "loop.batch=8", "loop.micro_batch=4", "objective.normalize=true")
    transfer("finetune", *pairs, f"init_from={bert}", *words, "run.dir=run").ok()

    transfer("export", "run", "folder").ok()

    assert sentence_modules(Path("folder")) == SentenceModules("mean", normalize=True, length=42)
    vectors, others = (
        transfer_cli.load(place, device="cpu").embed(TEXTS) for place in ("run", "folder")
    )
    np.testing.assert_allclose(vectors, others, rtol=0, atol=1e-6)
    np.testing.assert_allclose(vectors.norm(dim=1), np.ones(3), atol=1e-6)
    answer = transfer_cli.load("run", device="cpu").predict([tuple(TEXTS[:2])])[0]
    assert answer["cosine"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)


@pytest.mark.slow
def test_the_folder_is_one_of_sentence_transformers(pairs, bert, transfer):
    library = pytest.importorskip("sentence_transformers")
    words = ("loop.steps=2", "loop.batch=8", "objective.pooling=cls_first")
    transfer("finetune", *pairs, f"init_from={bert}", *words, "run.dir=run").ok()
    transfer("export", "run", "folder").ok()

    theirs = library.SentenceTransformer("folder", device="cpu").encode(TEXTS)

    vectors = transfer_cli.load("run", device="cpu").embed(TEXTS)
    np.testing.assert_allclose(vectors, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_vectors_go_on_as_they_were_pooled(pairs, still, transfer):
    first = ("objective.pooling=max", "objective.normalize=true", "loop.steps=1")
    transfer("finetune", *pairs, f"init_from={still}", *first, "run.dir=one").ok()
    transfer("finetune", *pairs, "init_from=one", "loop.steps=1", "run.dir=two").ok()

    described = json.loads(Path("two/model/model.json").read_text())["objective"]

    assert (described["pooling"], described["normalize"]) == ("max", True)


@pytest.mark.slow
def test_a_run_in_portions_is_resumed_bit_for_bit_and_is_that_of_whole_steps(
    pairs, pretrained, still, transfer
):
    def run(name, start, *words):
        typed = (f"init_from={start}", "loop.batch=16", *words, f"run.dir={name}")
        transfer(
            "finetune", *pairs, "checkpoint.every=3 steps", "loop.evaluate_every=3 steps", *typed
        ).ok()
        return load_file(f"{name}/model/weights.safetensors")

    portions = ("loop.micro_batch=3", "loop.steps=6")
    run("cut", pretrained, "loop.micro_batch=3", "loop.steps=3", "schedule=constant")
    whole = run("whole", pretrained, *portions, "schedule=constant")  # with dropout
    transfer("finetune", "resume=cut", "loop.steps=6").ok()

    for name, tensor in load_file("cut/model/weights.safetensors").items():
        assert whole[name].equal(tensor), name
    words = ("optimizer=sgd", "optimizer.lr=0.1", "loop.steps=3")
    one, other = run("at_once", still, *words), run("in_parts", still, *words, "loop.micro_batch=3")
    for name, tensor in one.items():
        assert other[name].allclose(tensor, atol=1e-5), name


FEW = ("finetune", "experiment=few_shot", "data=table", "device=cpu")


def test_few_labels_make_one_run_that_answers_and_is_resumed(deep, few_questions, transfer):
    words = (*FEW, f"data.train={few_questions}", f"init_from={deep}", "run.dir=few")
    transfer(*words).ok()

    before = load_file("few-before/model/weights.safetensors")
    after = load_file("few/model/weights.safetensors")
    assert {name for name in after if name not in before} == {
        "heads.class.linear.weight", "heads.class.linear.bias"
    }  # fmt: skip
    assert all(after[name].equal(tensor) for name, tensor in before.items())
    assert measures("few")["validation"]["accuracy"] == 1
    for path in Path("few-before").glob("model/*"):  # the run needs no other
        path.unlink()
    answers = transfer_cli.load("few", device="cpu").predict(["Where is it ?"])
    assert answers[0]["label"] in ("person", "place")


def test_a_plan_has_the_run_before_until_that_is_trained(deep, few_questions, transfer):
    words = (*FEW[1:], f"data.train={few_questions}", f"init_from={deep}", "run.dir=few")
    words = (*words, "resume=auto", "before.loop.steps=2", "plan.steps=0")

    planned = transfer("plan", "finetune", *words).ok().out
    transfer("finetune", *words).ok()
    left = transfer("plan", "finetune", *words).ok().out

    assert re.findall(r"^([0-9]+) steps", planned, re.MULTILINE) == ["2", "1"]
    assert re.findall(r"^([0-9]+) steps", left, re.MULTILINE) == ["1"]


def test_a_number_of_labels_is_of_the_texts_and_not_of_their_pairs(deep, few_questions, transfer):
    words = (f"data.train={few_questions}", f"init_from={deep}", "+before.data.labelled=8")

    transfer(*FEW, *words).refusal("labelled is of texts, not of pairs; type data.labelled=N")


@pytest.mark.slow
def test_few_labels_go_on_where_the_first_run_has_ended(deep, few_questions, transfer):
    words = (*FEW, f"data.train={few_questions}", f"init_from={deep}", "run.dir=few")
    transfer(*words, "before.loop.steps=2").ok()
    ended = json.loads(Path("few-before/timing.json").read_text())
    for path in sorted(Path("few").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path("few").rmdir()

    for _ in range(2):
        transfer(*words, "before.loop.steps=2", "resume=auto").ok()

    assert json.loads(Path("few-before/timing.json").read_text()) == ended
    assert measures("few")["validation"]
