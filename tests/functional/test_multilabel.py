"""Several labels for texts, from the table to the prediction."""

import csv
import json

import numpy as np
import pytest
import tokenizers
import torch

from tests.published import TEXT, publish, reference
from tests.task_kinds import PLACES

pytestmark = pytest.mark.functional


@pytest.fixture
def words(task_words):
    """Return a command line that fine-tunes a model for it."""
    return task_words("multilabel")


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("multilabel")


def test_fitted_thresholds_are_stored_and_decide(run, read_json, transfer, tmp_path):
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
    rows = [f"the {PLACES[n % 4]} bridge {n},{n % 2},{int(n % 4 == 0)}" for n in range(40)]
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
