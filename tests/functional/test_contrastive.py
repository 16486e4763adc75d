"""`objective=contrastive` and `experiment=few_shot`: vectors from pairs, by whole commands."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import transfer_cli
from tests import published
from tests.task_kinds import KINDS
from transfer_cli.interop.sentence_folder import SentenceModules, sentence_modules

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
    own, others = (
        transfer_cli.load(place, device="cpu").embed(TEXTS) for place in ("run", "folder")
    )
    np.testing.assert_allclose(own, others, rtol=0, atol=1e-6)
    np.testing.assert_allclose(own.norm(dim=1), np.ones(3), atol=1e-6)
    answer = transfer_cli.load("run", device="cpu").predict([tuple(TEXTS[:2])])[0]
    assert answer["cosine"] == pytest.approx(float(own[0] @ own[1]), abs=1e-5)


@pytest.mark.slow
def test_the_folder_is_one_of_sentence_transformers(pairs, bert, transfer):
    library = pytest.importorskip("sentence_transformers")
    words = ("loop.steps=2", "loop.batch=8", "objective.pooling=cls_first")
    transfer("finetune", *pairs, f"init_from={bert}", *words, "run.dir=run").ok()
    transfer("export", "run", "folder").ok()

    theirs = library.SentenceTransformer("folder", device="cpu").encode(TEXTS)

    own = transfer_cli.load("run", device="cpu").embed(TEXTS)
    np.testing.assert_allclose(own, theirs, rtol=0, atol=1e-5)


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
