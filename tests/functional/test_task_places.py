"""What tasks of places in a text alone have: answers cut from it, and tags of its words."""

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
from safetensors.torch import load_file

from tests import tiny
from tests.published import publish, reference
from tests.records import read_metrics
from tests.task_kinds import CITIES, asked, sentence
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.batch import IGNORE
from transfer_cli.data.loader import StepDataLoader
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks.span.task import SpanExample
from transfer_cli.tasks.tagging.task import TagExample, TaggingTask

# --- places in a text ----------------------------------------------------------------------------

HEADS = {
    "span": ("span", SpanExample("Which city ?", "The tower of Riga is old .")),
    "tagging": ("tags", TagExample.of_words(["The", "tower", "of", "Riga", "."], (0,) * 5)),
}
"""Of each: its head, and an example."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_what_is_exported_gives_the_same_scores(transfer, task_run, kind):
    runtime = pytest.importorskip("onnxruntime")
    run, (head, example) = task_run(kind), HEADS[kind]
    trained = open_trained(str(run), tiny.FP32)
    data = trained.start.task.encode([example], trained.start.tokenizer, 24, "causal")
    batch = data.batch(np.array([0]))
    with torch.no_grad():
        expected = trained.model.heads[head](Encoding(trained.model, batch).top)

    transfer("export", str(run), "to", "format=onnx").ok()

    session = runtime.InferenceSession("to/model.onnx")
    given = {"input_ids": batch["tokens"], "attention_mask": batch["mask"].long()}
    outputs = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    # Of spans the logits of beginnings and of ends are two outputs.
    scores = np.stack(outputs, axis=-1) if kind == "span" else outputs[0]
    assert torch.allclose(torch.from_numpy(scores), expected, atol=2e-5)


# --- answers cut from texts ----------------------------------------------------------------------


def test_answers_have_their_place_in_the_text(transfer, task_run, tmp_path):
    run = task_run("span")
    rows = [{"question": "Which city ?", "context": f" The  tower of {city} is old .", "n": 1}
            for city in CITIES]  # fmt: skip
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))

    ended = transfer("predict", str(run), "new.jsonl", "keep=true", "device=cpu").ok()

    for line, row in zip(ended.out.splitlines(), rows, strict=True):
        record = json.loads(line)
        assert (record["text"], record["pair"], record["n"]) == (row["question"], row["context"], 1)
        assert row["context"][record["start"] : record["end"]] == record["answer"]
        assert record["answer"] in CITIES
        assert sum(best["probability"] for best in record["n_best"]) == pytest.approx(1, abs=1e-4)


def test_a_table_of_questions_gets_columns_of_answers(transfer, task_run, tmp_path):
    run = task_run("span")
    (tmp_path / "new.csv").write_text(
        "context,who,question\nThe tower of Riga is old .,me,Which city ?\nThe,you,Which ?\n"
    )

    ended = transfer("predict", str(run), "new.csv", "output_format=csv", "keep=true", "device=cpu")

    one, other = csv.DictReader(io.StringIO(ended.out))
    assert (one["answer"], one["start"], one["end"], one["who"]) == ("Riga", "13", "17", "me")
    assert (other["answer"], other["start"]) == ("", "")


def test_a_question_without_a_text_may_be_left_out(transfer, task_run, tmp_path):
    run = task_run("span")
    lines = [{"question": "Which ?"}, {"question": "Which ?", "context": "The tower of Riga ."}]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, lines)))

    ended = transfer("predict", str(run), "new.jsonl", "pair=context", "errors=skip", "device=cpu")

    assert len(ended.out.splitlines()) == 1


def test_every_question_of_the_published_format_is_scored(transfer, task_run, read_json, tmp_path):
    run = task_run("span")
    questions = [asked(n) for n in range(160)]
    paragraphs = [{"context": question["context"], "qas": [question]} for question in questions]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))

    ended = transfer("evaluate", str(run), "squad.json", "output=out.json", "device=cpu").ok()

    assert "input: scored 160 of 160 examples" in ended.out
    assert read_json(tmp_path / "out.json")["measures"]["input"]["exact_match"] > 90


each_family = pytest.mark.parametrize(
    "family",
    [
        "bert",
        "roberta",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("distilbert", "electra")),
    ],
)


def best_pair(start_T, end_T, first, past):
    """Return the best span between two positions."""
    pairs = [
        (float(start_T[i] + end_T[j]), i, j) for i in range(first, past) for j in range(i, past)
    ]
    return max(pairs)[1:]


@each_family
def test_a_published_model_cuts_what_its_reference_does(transfer, tmp_path, family):
    lib = reference()
    publish(tmp_path / "published", family, "QuestionAnswering")
    asked, text = "Who wrote", "The river there is the Seine, in Paris."
    tokenizer = lib.AutoTokenizer.from_pretrained("published")
    model = lib.AutoModelForQuestionAnswering.from_pretrained("published").eval()
    given = tokenizer(asked, text, return_offsets_mapping=True, return_tensors="pt")
    offsets = given.pop("offset_mapping")[0].tolist()
    sequence = given.sequence_ids(0)
    with torch.no_grad():
        outputs = model(**given)
    first, past = sequence.index(1), len(sequence) - 1
    start, end = best_pair(outputs.start_logits[0], outputs.end_logits[0], first, past)

    (tmp_path / "new.jsonl").write_text(json.dumps({"question": asked, "context": text}))
    ended = transfer("predict", "published", "new.jsonl", "device=cpu").ok()

    said = json.loads(ended.out)
    assert [said["start"], said["end"]] == [offsets[start][0], offsets[end][1]]
    assert said["answer"] == text[said["start"] : said["end"]]


@pytest.mark.parametrize(
    ("kind", "head"), [("span", "QuestionAnswering"), ("tagging", "TokenClassification")]
)
def test_a_published_head_is_adapted_and_exported_as_one(
    transfer, task_words, tmp_path, kind, head
):
    lib = reference()
    before = publish(tmp_path / "published", "bert", head, num_labels=2 if kind == "span" else 3)
    typed = [word for word in task_words(kind) if not word.startswith("init_from")]

    ended = transfer(*typed, "init_from=published", "adaptation=lora", "loop.steps=2",
                     "run.dir=run").ok()  # fmt: skip

    transfer("export", "run", "to").ok()
    model = getattr(lib, f"AutoModelFor{head}").from_pretrained("to")
    assert type(model) is type(before)
    if kind == "span":
        assert "heads.span.weight" not in ended.err
        assert torch.allclose(model.qa_outputs.weight, before.qa_outputs.weight, atol=0.1)
    else:
        assert model.config.id2label == {0: "O", 1: "B-CITY", 2: "I-CITY"}


@pytest.mark.slow
@pytest.mark.parametrize(("start", "least"), [("pretrain", 90), ("pretrain_mlm", 80)])
def test_only_a_pretrained_model_answers_the_sample(transfer, read_json, tmp_path, start, least):
    measures = {}
    transfer("pretrain", f"experiment=sample/{start}", "run.dir=start", "device=cpu")
    for init in ("pretrained", "scratch"):
        transfer("finetune", "experiment=sample/spans", "init_from=start", f"init={init}",
                 f"run.dir={init}", "device=cpu").ok()  # fmt: skip
        measures[init] = read_json(tmp_path / init / "results.json")["measures"]["test"]

    assert measures["pretrained"]["exact_match"] >= least  # measured: 97 to 100, 88 to 94
    assert measures["scratch"]["exact_match"] <= 35  # measured: 19 to 26


def test_items_have_the_scores_of_the_run_and_a_threshold_is_fitted(task_run, read_json):
    run = task_run("span")
    measures = read_json(run / "results.json")["measures"]["validation"]
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    assert "null_threshold" in read_json(run / "model" / "model.json")["task"]["fitted"]
    assert 100 * np.mean([item["score"] for item in items]) == pytest.approx(measures["f1"])


# --- tags ----------------------------------------------------------------------------------------


def digest(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_line_gets_a_tag_for_each_word_and_entities_by_characters(transfer, task_run, tmp_path):
    run = task_run("tagging")
    lines = [f"The  tower of {city} is\t7 ." for city in CITIES]
    (tmp_path / "new.txt").write_text("\n".join([*lines, "The"]))

    ended = transfer("predict", str(run), "new.txt", "device=cpu").ok()
    several = transfer("predict", f"run=[{run},{run}]", "input=new.txt", "device=cpu")

    assert several.out == ended.out
    for line, text in zip(ended.out.splitlines(), [*lines, "The"], strict=True):
        record = json.loads(line)
        assert record["text"] == text
        assert len(record["tags"]) == len(text.split())
        for entity in record["entities"]:
            assert text[entity["start"] : entity["end"]] == entity["text"]
    entities = [json.loads(line)["entities"] for line in ended.out.splitlines()]
    named = [mention["text"] for mentions in entities for mention in mentions]
    assert len(named) > 3
    assert set(named) <= set(CITIES)


def test_tokens_and_tables_are_answered_as_well(transfer, task_run, tmp_path):
    run = task_run("tagging")
    (tmp_path / "new.jsonl").write_text(json.dumps({"tokens": ["of", "Riga", "is"]}))
    (tmp_path / "new.csv").write_text('text,who\n"The tower of Riga is 7 .",me\n')

    tokens = transfer("predict", str(run), "new.jsonl", "text=tokens", "device=cpu").ok()
    table = transfer("predict", str(run), "new.csv", "output_format=csv", "keep=true", "device=cpu")

    assert len(json.loads(tokens.out)["tags"]) == 3
    (row,) = csv.DictReader(io.StringIO(table.out))
    assert json.loads(row["tags"])[3] == "B-CITY"
    assert row["who"] == "me"


def test_parts_of_speech_are_judged_by_accuracy(transfer, task_words, read_json, tmp_path):
    words = task_words("tagging")
    rows = [f"{n}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_" for n, (word, tag) in enumerate(
        [("The", "DET"), ("tower", "NOUN"), ("is", "VERB")], start=1)]  # fmt: skip
    other = [rows[0], rows[1].replace("tower", "market"), rows[2]]
    (tmp_path / "a.conllu").write_text("\n".join([*rows, "", *other, "", *rows, "", *other]) + "\n")
    typed = [word for word in words if not word.startswith("data")]

    transfer(*typed, "data=conllu", "data.tag=upos", "data.train=a.conllu",
             "data.validation=a.conllu", "run.dir=run").ok()  # fmt: skip

    results = read_json(tmp_path / "run" / "results.json")
    assert results["measures"]["validation"]["accuracy"] == 1
    assert "entity_f1" not in results["measures"]["validation"]
    (tmp_path / "new.txt").write_text("The market is")
    record = json.loads(transfer("predict", "run", "new.txt", "device=cpu").out)
    assert (record["tags"], record["entities"]) == (["DET", "NOUN", "VERB"], [])


@each_family
def test_a_published_model_tags_as_its_reference_does(transfer, tmp_path, family):
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

    (tmp_path / "new.txt").write_text(" ".join(words))
    ended = transfer("predict", "published", "new.txt", "device=cpu").ok()

    assert json.loads(ended.out)["tags"] == TaggingTask(tuple(names)).decode(at_words)


# --- what is learnt without tags -----------------------------------------------------------------


@pytest.fixture
def few(task_words):
    """Return how to fine-tune with a preset, a few tagged sentences, and windows of the others."""
    words = task_words("tagging")

    def call(preset, *more):
        return (*words, "data.labelled=20", f"adaptation={preset}", "streams.rest.batch=8",
                "data.length=8", "loop.steps=4", "optimizer.lr=1e-2", *more)  # fmt: skip

    return call


def said_by(transfer, few, teachers):
    """Return what teachers say of the words of the sentences without tags, as it is kept."""
    before = {*Path("cache").rglob("*.safetensors")}
    teachers = f"adaptation.teachers=[{teachers}]"
    transfer(*few("self_training", teachers, "loop.steps=1"), f"run.dir=run{len(before)}").ok()
    (new,) = {*Path("cache").rglob("*.safetensors")} - before
    return load_file(new)["answers"]


@pytest.mark.parametrize(
    "preset",
    [*(pytest.param(n, marks=pytest.mark.slow) for n in ("distil", "self_training")), "uda"],
)
def test_the_tags_of_what_is_left_out_never_reach_a_batch(
    preset, transfer, few, task_run, monkeypatch
):
    run = task_run("tagging")
    steps, load = [], StepDataLoader.load
    monkeypatch.setattr(
        StepDataLoader, "load", lambda self, step: steps.append(load(self, step)) or steps[-1]
    )
    before = digest(run / "model")
    beyond = ["losses.rest.perturb=delete"] if preset == "uda" else [f"adaptation.teachers=[{run}]"]

    transfer(*few(preset, *beyond), "run.dir=run").ok()

    assert steps
    for micro in itertools.chain.from_iterable(steps):
        assert "target" in micro["main"]
        assert "target" not in micro["rest"]
        assert (micro["rest"]["word"] != IGNORE).any()
        assert ("teacher_rest" in micro["rest"]) == (preset != "uda")
    assert digest(run / "model") == before


def test_what_teachers_say_is_kept_word_by_word_and_asked_once(
    transfer, few, task_run, monkeypatch
):
    run = task_run("tagging")
    monkeypatch.setenv("TRANSFER_CACHE", "cache")
    given = [sentence(n).splitlines() for n in range(160)]

    answers = said_by(transfer, few, run)

    assert answers.shape[1] == 3
    assert 5 * 124 < len(answers) < sum(map(len, given))
    assert np.allclose(answers.sum(1), 1, atol=1e-5)
    monkeypatch.setattr(Ensemble, "answers", None)
    transfer(*few("self_training", f"adaptation.teachers=[{run}]"), "run.dir=again").ok()


@pytest.mark.slow
def test_teachers_may_have_their_own_tokens_and_order_of_tags(transfer, few, task_run, monkeypatch):
    run = task_run("tagging")
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
def test_micro_batches_and_rows_of_several_texts_change_no_loss(transfer, few, task_run, still):
    run = task_run("tagging")
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
        transfer(*words, *more, f"run.dir={name}").ok()
        records = read_metrics(Path(name) / "metrics.jsonl")
        losses[name] = [
            record[term]
            for record in records
            if record["kind"] == "train"
            for term in sorted(record)
            if term.startswith("loss")
        ]

    assert len(losses["plain"]) > 8
    assert losses["micro"] == pytest.approx(losses["plain"], rel=1e-4)
    assert losses["pack"] == pytest.approx(losses["plain"], rel=1e-4)


def test_every_word_is_counted_and_an_item_names_the_entities(task_run, read_json):
    run = task_run("tagging")
    results = read_json(run / "results.json")
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    measures = results["measures"]["validation"]
    assert measures["entity_f1"] == measures["entity_f1/CITY"]
    assert np.sum(results["tables"]["validation"]["confusion"]) == sum(i["targets"] for i in items)
    assert {item["label"] for item in items} & {"(none)"}
    assert any(item["label"].startswith("CITY: ") for item in items)


@pytest.mark.slow
def test_windows_and_a_language_model_beside_it_train(transfer, task_words, read_json, tmp_path):
    words = task_words("tagging")
    more = ("+objective@losses.lm=clm", "data.length=8", "data.label_all=true", "loop.steps=8")

    transfer(*words, *more, "run.dir=run").ok()

    assert "entity_f1" in read_json(tmp_path / "run" / "results.json")["measures"]["validation"]
