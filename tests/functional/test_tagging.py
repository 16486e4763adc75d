"""Tags for words, from the file to the prediction."""

import csv
import io
import itertools
import json
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.functional.conftest import finished
from tests.published import publish, reference
from tests.records import read_metrics
from tests.task_kinds import CITIES, sentence
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.batch import IGNORE
from transfer_cli.data.loader import StepDataLoader

pytestmark = pytest.mark.functional


@pytest.fixture
def words(task_words):
    """Return a command line that fine-tunes a model for it."""
    return task_words("tagging")


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("tagging")


def digest(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_line_gets_a_tag_for_each_word_and_entities_by_characters(transfer, run, tmp_path):
    lines = [f"The  tower of {city} is\t7 ." for city in CITIES]
    (tmp_path / "new.txt").write_text("\n".join([*lines, "The"]))

    ended = transfer("predict", str(run), "new.txt", "device=cpu")
    several = transfer("predict", f"run=[{run},{run}]", "input=new.txt", "device=cpu")

    assert ended.code == 0, ended.err
    assert several.out == ended.out
    for line, text in zip(ended.out.splitlines(), [*lines, "The"], strict=True):
        found = json.loads(line)
        assert found["text"] == text
        assert len(found["tags"]) == len(text.split())
        for entity in found["entities"]:
            assert text[entity["start"] : entity["end"]] == entity["text"]
    found = [json.loads(line)["entities"] for line in ended.out.splitlines()]
    named = [each["text"] for own in found for each in own]
    assert len(named) > 3
    assert set(named) <= set(CITIES)


def test_tokens_and_tables_are_answered_as_well(transfer, run, tmp_path):
    (tmp_path / "new.jsonl").write_text(json.dumps({"tokens": ["of", "Riga", "is"]}))
    (tmp_path / "new.csv").write_text('text,who\n"The tower of Riga is 7 .",me\n')

    tokens = transfer("predict", str(run), "new.jsonl", "text=tokens", "device=cpu")
    table = transfer("predict", str(run), "new.csv", "output_format=csv", "keep=true", "device=cpu")

    assert tokens.code == 0, tokens.err
    assert len(json.loads(tokens.out)["tags"]) == 3
    (row,) = csv.DictReader(io.StringIO(table.out))
    assert json.loads(row["tags"])[3] == "B-CITY"
    assert row["who"] == "me"


def test_parts_of_speech_are_judged_by_accuracy(transfer, words, read_json, tmp_path):
    rows = [f"{n}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_" for n, (word, tag) in enumerate(
        [("The", "DET"), ("tower", "NOUN"), ("is", "VERB")], start=1)]  # fmt: skip
    other = [rows[0], rows[1].replace("tower", "market"), rows[2]]
    (tmp_path / "a.conllu").write_text("\n".join([*rows, "", *other, "", *rows, "", *other]) + "\n")
    typed = [word for word in words if not word.startswith("data")]

    ended = transfer(*typed, "data=conllu", "data.tag=upos", "data.train=a.conllu",
                     "data.validation=a.conllu", "run.dir=run")  # fmt: skip

    assert ended.code == 0, ended.err
    results = read_json(tmp_path / "run" / "results.json")
    assert results["measures"]["validation"]["accuracy"] == 1
    assert "entity_f1" not in results["measures"]["validation"]
    (tmp_path / "new.txt").write_text("The market is")
    found = json.loads(transfer("predict", "run", "new.txt", "device=cpu").out)
    assert (found["tags"], found["entities"]) == (["DET", "NOUN", "VERB"], [])


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra"])
def test_a_published_model_answers_as_its_reference_does(transfer, tmp_path, family):
    lib = reference()
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    numbers = {name: number for number, name in enumerate(names)}
    publish(
        tmp_path / "published", family, "TokenClassification", id2label=dict(enumerate(names)),
        label2id=numbers,
    )  # fmt: skip
    words = re.findall(r"\S+", "The river there is the Seine , in Paris .")
    tokenizer = lib.AutoTokenizer.from_pretrained("published", add_prefix_space=True)
    model = lib.AutoModelForTokenClassification.from_pretrained("published").eval()
    given = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        shares = model(**given).logits[0].softmax(-1)
    owner = given.word_ids(0)
    at_words = [shares[owner.index(word)].tolist() for word in range(len(words))]

    from transfer_cli.tasks.tagging.task import TaggingTask

    (tmp_path / "new.txt").write_text(" ".join(words))
    ended = transfer("predict", "published", "new.txt", "device=cpu")

    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["tags"] == TaggingTask(tuple(names)).decoded(at_words)


@pytest.mark.slow
def test_what_is_exported_gives_the_same_scores(transfer, run):
    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.objectives.base import Encoding
    from transfer_cli.tasks.tagging.task import TagExample

    runtime = pytest.importorskip("onnxruntime")
    trained = open_trained(str(run), Precision("fp32", torch.device("cpu")))
    example = TagExample.of_words(["The", "tower", "of", "Riga", "."], (0,) * 5)
    data = trained.start.task.encode([example], trained.start.tokenizer, 24, "causal")
    batch = data.batch(np.array([0]))
    assert (batch["target"] != IGNORE).sum() == 5
    with torch.no_grad():
        expected = trained.model.heads["tags"](Encoding(trained.model, batch).top)

    ended = transfer("export", str(run), "to", "format=onnx")

    assert ended.code == 0, ended.err
    given = {"input_ids": batch["tokens"].numpy(),
             "attention_mask": batch["mask"].long().numpy()}  # fmt: skip
    session = runtime.InferenceSession("to/model.onnx")
    found = torch.from_numpy(session.run(None, given)[0])
    assert torch.allclose(found, expected, atol=2e-5)


def test_a_published_tagger_is_adapted_and_exported_as_one(transfer, words, tmp_path):
    lib = reference()
    before = publish(tmp_path / "published", "bert", "TokenClassification", num_labels=3)
    typed = [word for word in words if not word.startswith("init_from")]

    ended = transfer(*typed, "init_from=published", "loop.steps=2", "run.dir=run")

    assert ended.code == 0, ended.err
    assert transfer("export", "run", "to").code == 0
    model = lib.AutoModelForTokenClassification.from_pretrained("to")
    assert type(model) is type(before)
    assert model.config.id2label == {0: "O", 1: "B-CITY", 2: "I-CITY"}


# --- what is learnt without tags ---------------------------------------------------------------


@pytest.fixture
def few(words):
    """Return how to fine-tune with a preset, a few tagged sentences, and windows of the others."""

    def call(preset, *more):
        return (*words, "data.labelled=20", f"adaptation={preset}", "streams.rest.batch=8",
                "data.length=8", "loop.steps=4", "optimizer.lr=1e-2", *more)  # fmt: skip

    return call


@pytest.fixture(scope="module")
def still(tmp_path_factory, tiny, loop):
    """Return a run directory of `pretrain` whose model has no dropout."""
    place = tmp_path_factory.mktemp("runs") / "still"
    words = ("data=sample_text", "data.length=32", *tiny, *loop, "loop.steps=1", "model.dropout=0")
    finished("pretrain", *words, f"run.dir={place}")
    return place


def said_by(transfer, few, teachers):
    """Return what teachers say of the words of the sentences without tags, as it is kept."""
    before = {*Path("cache").rglob("*.safetensors")}
    teachers = f"adaptation.teachers=[{teachers}]"
    ended = transfer(*few("self_training", teachers, "loop.steps=1"), f"run.dir=run{len(before)}")
    assert ended.code == 0, ended.err
    (new,) = {*Path("cache").rglob("*.safetensors")} - before
    return load_file(new)["answers"]


@pytest.mark.parametrize("preset", ["distil", "self_training", "uda"])
def test_the_tags_of_what_is_left_out_never_reach_a_batch(preset, transfer, few, run, monkeypatch):
    found, at = [], StepDataLoader.at
    monkeypatch.setattr(
        StepDataLoader, "at", lambda self, step: found.append(at(self, step)) or found[-1]
    )
    before = digest(run / "model")
    beyond = ["losses.rest.perturb=delete"] if preset == "uda" else [f"adaptation.teachers=[{run}]"]

    ended = transfer(*few(preset, *beyond), "run.dir=run")

    assert ended.code == 0, ended.err
    assert found
    for micro in itertools.chain.from_iterable(found):
        assert "target" in micro["main"]
        assert "target" not in micro["rest"]
        assert (micro["rest"]["word"] != IGNORE).any()
        assert ("teacher_rest" in micro["rest"]) == (preset != "uda")
    assert digest(run / "model") == before


def test_what_teachers_say_is_kept_word_by_word_and_asked_once(transfer, few, run, monkeypatch):
    monkeypatch.setenv("TRANSFER_CACHE", "cache")
    given = [sentence(n).splitlines() for n in range(160)]

    answers = said_by(transfer, few, run)

    assert answers.shape[1] == 3
    assert 5 * 124 < len(answers) < sum(map(len, given))
    assert np.allclose(answers.sum(1), 1, atol=1e-5)
    monkeypatch.setattr(Ensemble, "together", None)
    again = transfer(*few("self_training", f"adaptation.teachers=[{run}]"), "run.dir=again")
    assert again.code == 0, again.err


@pytest.mark.slow
def test_teachers_may_have_their_own_tokens_and_order_of_tags(transfer, few, run, monkeypatch):
    monkeypatch.setenv("TRANSFER_CACHE", "cache")
    names = ["I-CITY", "O", "B-CITY"]
    publish(
        Path("published"), "bert", "TokenClassification", id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )  # fmt: skip

    ours = said_by(transfer, few, run)
    theirs = said_by(transfer, few, "published")
    both = said_by(transfer, few, f"{run},published")

    assert not np.allclose(ours, theirs, atol=0.1)
    assert np.allclose(both, (ours + theirs) / 2, atol=1e-6)


@pytest.mark.slow
def test_micro_batches_and_rows_of_several_texts_change_no_loss(transfer, few, run, still):
    words = few(
        "distil", f"adaptation.teachers=[{run}]", f"init_from={still}", "objective.dropout=0",
        "data.label_all=true", "losses.rest.confidence=0.8",
    )  # fmt: skip
    losses = {}
    for name, more in {
        "plain": [],
        "micro": ["loop.micro_batch=3"],
        "pack": ["loop.pack=true"],
    }.items():
        ended = transfer(*words, *more, f"run.dir={name}")
        assert ended.code == 0, ended.err
        records = read_metrics(Path(name) / "metrics.jsonl")
        losses[name] = [
            each[term]
            for each in records
            if each["kind"] == "train"
            for term in sorted(each)
            if term.startswith("loss")
        ]

    assert len(losses["plain"]) > 8
    assert losses["micro"] == pytest.approx(losses["plain"], rel=1e-4)
    assert losses["pack"] == pytest.approx(losses["plain"], rel=1e-4)


def test_every_word_is_counted_and_an_item_names_the_entities(run, read_json):
    results = read_json(run / "results.json")
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    measures = results["measures"]["validation"]
    assert measures["entity_f1"] == measures["entity_f1/CITY"]
    assert np.sum(results["tables"]["validation"]["confusion"]) == sum(i["targets"] for i in items)
    assert {item["label"] for item in items} & {"(none)"}
    assert any(item["label"].startswith("CITY: ") for item in items)


@pytest.mark.slow
def test_windows_and_a_language_model_beside_it_train(transfer, words, read_json, tmp_path):
    more = ("+objective@losses.lm=clm", "data.length=8", "data.label_all=true", "loop.steps=8")

    ended = transfer(*words, *more, "run.dir=run")

    assert ended.code == 0, ended.err
    assert "entity_f1" in read_json(tmp_path / "run" / "results.json")["measures"]["validation"]
