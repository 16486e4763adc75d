"""Several labels for texts, from the table to the prediction."""

import csv
import json
import re
import shlex

import numpy as np
import pytest
import tokenizers
import torch

from tests.published import TEXT, publish, reference
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

WORDS = ("red", "blue", "old", "new")
LABELS = ("color", "color;cold", "age", "")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a table of texts whose words tell their labels."""
    file = tmp_path_factory.mktemp("labels") / "texts.csv"
    with file.open("w", newline="") as out:
        write = csv.writer(out).writerow
        write(["text", "labels"])
        for n in range(120):
            write([f"the {WORDS[n % 4]} bridge", LABELS[n % 4]])
    return file


@pytest.fixture(scope="module")
def words(pretrained, table, loop):
    """Return a command line that fine-tunes on it."""
    return ("finetune", "data=labels", "objective=multilabel", f"data.train={table}", *loop,
            "data.separator=semicolon", f"init_from={pretrained}", "optimizer.lr=3e-3",
            "loop.steps=60", "objective.thresholds=fit", "loop.batch=16",
            "loop.evaluate_every=30 steps", "checkpoint.every=30 steps")  # fmt: skip


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    """Return a finished run."""
    from tests.functional.conftest import finished

    place = tmp_path_factory.mktemp("runs") / "labels"
    finished(*words, f"run.dir={place}")
    return place


def test_labels_are_learnt_and_measured(run, read_json):
    results = read_json(run / "results.json")

    measures = results["measures"]["validation"]
    assert measures["micro_f1"] > 0.9
    assert measures["exact_match"] > 0.9
    assert {f"macro_f1/{label}" for label in ("age", "cold", "color")} < measures.keys()
    assert [each["name"] for each in results["metrics"] if each["headline"]] == ["micro_f1"]
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]
    assert {item["label"] for item in items} == {"color", "cold|color", "age", ""}


def test_fitted_thresholds_are_stored_and_decide(run, read_json, transfer, table, tmp_path):
    task = read_json(run / "model" / "model.json")["task"]

    assert len(task["fitted"]["thresholds"]) == 3
    assert task["fitted"]["thresholds"] != [0.5] * 3
    ended = transfer("evaluate", str(run), "split=validation", "output=out.json", "device=cpu")
    assert ended.code == 0, ended.err
    found = read_json(tmp_path / "out.json")["measures"]["validation"]
    expected = read_json(run / "results.json")["measures"]["validation"]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_a_run_that_goes_on_begins_without_them(transfer, words, read_json, tmp_path):
    slow = (*words, "schedule=constant", "optimizer.lr=3e-4", "loop.evaluate_every=5 steps")
    transfer(*slow, "loop.steps=10", "run.dir=run")
    transfer(*slow, "loop.steps=20", "run.dir=whole")

    ended = transfer("finetune", "resume=run", "loop.steps=20")

    assert ended.code == 0, ended.err
    assert "thresholds" in read_json(tmp_path / "run" / "model" / "model.json")["task"]["fitted"]
    ours, theirs = (read_json(tmp_path / name / "results.json") for name in ("run", "whole"))
    assert ours["measures"] == theirs["measures"]
    records = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("run", "whole")]
    validations = [
        [line for line in map(json.loads, each.splitlines()) if "micro_f1" in str(line)]
        for each in records
    ]
    assert len(validations[0]) == 4
    assert validations[0] == validations[1]


def test_new_texts_get_labels_and_runs_answer_together(transfer, run, tmp_path):
    (tmp_path / "new.txt").write_text("the blue bridge\nthe new bridge\n")

    one = transfer("predict", str(run), "new.txt", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.txt", "device=cpu")
    cells = transfer("predict", str(run), "new.txt", "output=out.csv", "device=cpu")

    first, second = map(json.loads, one.out.splitlines())
    assert (first["labels"], second["labels"]) == (["cold", "color"], [])
    assert list(first["probabilities"]) == ["age", "cold", "color"]
    assert one.out == two.out
    assert cells.code == 0, cells.err
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["labels"] for row in rows] == ["cold|color", ""]


@pytest.mark.slow
def test_a_run_on_a_column_for_each_label_scores_and_answers_tables(transfer, words, tmp_path):
    rows = [f"the {WORDS[n % 4]} bridge {n},{n % 2},{int(n % 4 == 0)}" for n in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,even,fourth", *rows]) + "\n")
    own = [word for word in words if not word.startswith(("data.", "objective.thresholds"))]
    transfer(*own, "data.train=a.csv", "data.label=[even,fourth]", "loop.steps=2", "run.dir=run")

    scored = transfer("evaluate", "run", "a.csv")
    again = transfer("evaluate", "run", "a.csv", "label=[2,3]")
    answered = transfer("predict", "run", "a.csv", "output=answers.jsonl")

    assert [each.code for each in (scored, again, answered)] == [0, 0, 0], again.err
    assert again.out == scored.out
    assert "40 of 40" in scored.out
    first = json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[0])
    assert set(first["probabilities"]) == {"even", "fourth"}


def test_a_table_is_scored_with_the_separator_of_the_run(transfer, run, table, read_json, tmp_path):
    ended = transfer("evaluate", str(run), str(table), "output=out.json", "device=cpu")

    assert ended.code == 0, ended.err
    assert "input: scored 120 of 120 examples" in ended.out
    assert read_json(tmp_path / "out.json")["measures"]["input"]["micro_f1"] > 0.9


def test_data_are_looked_at(transfer, pretrained, table):
    ended = transfer(
        "inspect", "data=labels", f"data.train={table}", f"init_from={pretrained}",
        "data.separator=semicolon",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert "the blue bridge" in ended.out
    assert "color" in ended.out


def test_a_linear_head_on_frozen_features_is_solved(transfer, words, read_json, tmp_path):
    kept = [word for word in words if not word.startswith(("loop.", "optimizer."))]

    ended = transfer(*kept, "experiment=quick", "run.dir=run")

    assert ended.code == 0, ended.err
    measures = read_json(tmp_path / "run" / "results.json")["measures"]["validation"]
    assert measures["micro_f1"] > 0.9


def test_a_run_that_learnt_nothing_says_so(transfer, words):
    ended = transfer(*words, "loop.steps=1", "optimizer.lr=1e-6", "objective.thresholds=null",
                     "run.dir=run")  # fmt: skip

    assert "no better than always answering" in ended.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["objective=classification"], "choose objective=multilabel"),
        (["data=sample_questions"], "objective: Multilabel needs examples of the task"),
        (["objective.thresholds=sure"], "objective.thresholds: "),
    ],
)
def test_what_does_not_fit_is_refused(transfer, words, more, said, tmp_path):
    other = {"objective=classification": "objective.", "data=sample_questions": "data."}
    kept = [word for word in words if not word.startswith(other.get(more[0], " "))]

    ended = transfer(*kept, *more, "run.dir=run")

    assert ended.code == 2
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


def graph_input(tokenizer, text):
    encoded = tokenizer.encode(text)
    return {"input_ids": np.array([encoded.ids]),
            "attention_mask": np.array([encoded.attention_mask])}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hf", "onnx"])
def test_what_is_exported_gives_the_same_probabilities(transfer, run, tmp_path, form):
    transformers = pytest.importorskip("transformers")
    onnxruntime = pytest.importorskip("onnxruntime")
    texts = ["the red bridge", "the new bridge"]
    (tmp_path / "new.txt").write_text("\n".join(texts))
    own = transfer("predict", str(run), "new.txt", "device=cpu").out.splitlines()

    ended = transfer("export", str(run), "to", f"format={form}")

    assert ended.code == 0, ended.err
    assert "left out  the fitted thresholds, so that 0.5 decides" in ended.out
    if form == "hf":
        tokenizer = transformers.AutoTokenizer.from_pretrained("to")
        model = transformers.AutoModelForSequenceClassification.from_pretrained("to").eval()
        with torch.no_grad():
            found = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        assert model.config.problem_type == "multi_label_classification"
    else:
        tokenizer = tokenizers.Tokenizer.from_file("to/tokenizer.json")
        session = onnxruntime.InferenceSession("to/model.onnx")
        found = torch.tensor(
            np.concatenate([session.run(None, graph_input(tokenizer, t))[0] for t in texts])
        )
    answers = map(json.loads, own)
    expected = [share for each in answers for share in each["probabilities"].values()]
    assert found.sigmoid().flatten().tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_published_model_is_read(transfer, tmp_path, labels):
    lib = reference()
    publish(tmp_path / "published", "bert", "SequenceClassification", num_labels=labels,
            problem_type="multi_label_classification")  # fmt: skip
    (tmp_path / "new.txt").write_text(TEXT[0])
    tokenizer = lib.AutoTokenizer.from_pretrained("published")
    model = lib.AutoModelForSequenceClassification.from_pretrained("published").eval()
    with torch.no_grad():
        expected = model(**tokenizer(TEXT[0], return_tensors="pt")).logits.sigmoid()

    ended = transfer("predict", "published", "new.txt", "device=cpu")

    assert ended.code == 0, ended.err
    found = json.loads(ended.out)["probabilities"].values()
    assert list(found) == pytest.approx(expected[0].tolist(), abs=2e-5)


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, tmp_path):
    page = (conf_dir().parent / "docs" / "tasks" / "multilabel.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    (tmp_path / "questions.txt").write_text("Why do so many people write about Kadru ?\n")

    for words in typed[1:]:  # the first is about a file of one's own
        ended = transfer(*words, *([] if words[0] == "export" else ["device=cpu"]))
        assert ended.code == 0, (words, ended.err)

    commands = {words[0] for words in typed}
    assert commands == {"pretrain", "finetune", "evaluate", "predict", "export"}
    measures = json.loads((tmp_path / "runs" / "traits" / "results.json").read_text())["measures"]
    assert measures["test"]["micro_f1"] > 0.95
