"""Numbers for texts, from the table to the prediction."""

import json

import numpy as np
import pytest
import tokenizers
import torch

from tests.published import TEXT, publish, reference

pytestmark = pytest.mark.functional


@pytest.fixture
def words(task_words):
    """Return a command line that fine-tunes a model for it."""
    return task_words("regression")


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("regression")


def test_new_pairs_get_numbers_and_runs_answer_with_their_mean(transfer, run, tmp_path):
    (tmp_path / "new.csv").write_text("sentence1,sentence2\nthe red bridge,a bridge\n")

    one = transfer("predict", str(run), "new.csv", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.csv", "device=cpu")

    answer = json.loads(one.out)
    assert answer["value"] == pytest.approx(0.5, abs=0.7)
    assert (answer["text"], answer["pair"]) == ("the red bridge", "a bridge")
    assert json.loads(two.out)["value"] == pytest.approx(answer["value"], abs=1e-5)


def graph_input(tokenizer, text):
    encoded = tokenizer.encode(text)
    return {"input_ids": np.array([encoded.ids]),
            "attention_mask": np.array([encoded.attention_mask])}  # fmt: skip


@pytest.mark.parametrize("form", ["hf", pytest.param("onnx", marks=pytest.mark.slow)])
def test_what_is_exported_gives_the_same_numbers(transfer, run, tmp_path, form):
    transformers = pytest.importorskip("transformers")
    onnxruntime = pytest.importorskip("onnxruntime")
    texts = ["the red bridge", "the new bridge"]
    (tmp_path / "new.txt").write_text("\n".join(texts))
    own = transfer("predict", str(run), "new.txt", "device=cpu").out.splitlines()

    ended = transfer("export", str(run), "to", f"format={form}")

    assert ended.code == 0, ended.err
    if form == "hf":
        tokenizer = transformers.AutoTokenizer.from_pretrained("to")
        model = transformers.AutoModelForSequenceClassification.from_pretrained("to").eval()
        with torch.no_grad():
            found = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        assert model.config.problem_type == "regression"
    else:
        tokenizer = tokenizers.Tokenizer.from_file("to/tokenizer.json")
        session = onnxruntime.InferenceSession("to/model.onnx")
        found = np.concatenate([session.run(None, graph_input(tokenizer, t))[0] for t in texts])
    expected = [json.loads(line)["value"] for line in own]
    assert found[:, 0].tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.slow
def test_what_an_export_leaves_out_is_said(transfer, words):
    transfer(*words, "objective.clip=[1,2]", "loop.steps=2", "run.dir=run")

    for form in ("hf", "onnx"):
        ended = transfer("export", "run", f"to_{form}", f"format={form}")
        assert "left out  objective.clip, so that answers are not bounded" in ended.out


def test_a_published_regression_is_read(transfer, tmp_path):
    lib = reference()
    publish(tmp_path / "published", "bert", "SequenceClassification", num_labels=1,
            problem_type="regression")  # fmt: skip
    (tmp_path / "new.txt").write_text(TEXT[0])
    tokenizer = lib.AutoTokenizer.from_pretrained("published")
    model = lib.AutoModelForSequenceClassification.from_pretrained("published").eval()
    with torch.no_grad():
        expected = float(model(**tokenizer(TEXT[0], return_tensors="pt")).logits)

    ended = transfer("predict", "published", "new.txt", "device=cpu")

    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["value"] == pytest.approx(expected, abs=2e-5)
