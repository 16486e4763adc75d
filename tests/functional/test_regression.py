"""Numbers for texts, from the table to the prediction."""

import csv
import json
import re
import shlex
import signal

import numpy as np
import pytest
import tokenizers
import torch

from tests.published import TEXT, publish, reference
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a table of pairs with a number each, whose words tell the number."""
    file = tmp_path_factory.mktemp("numbers") / "pairs.csv"
    with file.open("w", newline="") as out:
        write = csv.writer(out).writerow
        write(["sentence1", "sentence2", "score"])
        for n in range(120):
            write([f"the {('red', 'blue', 'old', 'new')[n % 4]} bridge", "a bridge", n % 4 + 0.5])
    return file


@pytest.fixture(scope="module")
def words(pretrained, table, loop):
    """Return a command line that fine-tunes on it."""
    return ("finetune", "data=numbers", "objective=regression", f"data.train={table}", *loop,
            f"init_from={pretrained}", "optimizer.lr=3e-3", "loop.steps=60", "loop.batch=16",
            "loop.evaluate_every=30 steps", "checkpoint.every=30 steps")  # fmt: skip


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    """Return a finished run."""
    from tests.functional.conftest import finished

    place = tmp_path_factory.mktemp("runs") / "numbers"
    finished(*words, f"run.dir={place}")
    return place


def test_numbers_are_learnt_and_measured(run, read_json):
    results = read_json(run / "results.json")

    measures = results["measures"]["validation"]
    assert measures["pearson"] > 0.9
    assert measures["spearman"] > 0.9
    assert measures["mse"] < 0.3 < 1.2
    assert [each["name"] for each in results["metrics"] if each["headline"]] == ["pearson"]


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    transfer, words, run, at_record, tmp_path, read_json
):
    at_record("after", "validation", 30, lambda: signal.raise_signal(signal.SIGTERM))
    assert transfer(*words, "run.dir=again").code == 75
    ended = transfer("finetune", "resume=again")

    assert ended.code == 0, ended.err
    ours, theirs = (read_json(place / "results.json") for place in (tmp_path / "again", run))
    assert ours["measures"] == theirs["measures"]


def test_new_pairs_get_numbers_and_runs_answer_with_their_mean(transfer, run, tmp_path):
    (tmp_path / "new.csv").write_text("sentence1,sentence2\nthe red bridge,a bridge\n")

    one = transfer("predict", str(run), "new.csv", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.csv", "device=cpu")

    answer = json.loads(one.out)
    assert answer["value"] == pytest.approx(0.5, abs=0.7)
    assert (answer["text"], answer["pair"]) == ("the red bridge", "a bridge")
    assert json.loads(two.out)["value"] == pytest.approx(answer["value"], abs=1e-5)


def test_every_row_of_a_table_is_scored(transfer, run, table, read_json, tmp_path):
    ended = transfer("evaluate", str(run), str(table), "output=out.json", "device=cpu")

    assert ended.code == 0, ended.err
    assert "input: scored 120 of 120 examples" in ended.out
    assert read_json(tmp_path / "out.json")["measures"]["input"]["pearson"] > 0.9


def test_data_are_looked_at(transfer, pretrained, table):
    ended = transfer("inspect", "data=numbers", f"data.train={table}", f"init_from={pretrained}")

    assert ended.code == 0, ended.err
    assert "0.5: the red bridge | a bridge" in ended.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["objective=classification"], "choose objective=regression"),
        (["data=table", "data.label=score"], "objective: Regression needs examples of the task"),
        (["objective.loss=mae"], "objective.loss: expected one of mse, huber; got 'mae'"),
    ],
)
def test_what_does_not_fit_is_refused(transfer, words, more, said, tmp_path):
    ended = transfer(*words, *more, "run.dir=run")

    assert ended.code == 2
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, tmp_path):
    page = (conf_dir().parent / "docs" / "tasks" / "regression.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    (tmp_path / "questions.txt").write_text("Why do so many people write about Kadru ?\n")

    for words in typed[1:]:  # the first is about a file of one's own
        ended = transfer(*words, *([] if words[0] == "export" else ["device=cpu"]))
        assert ended.code == 0, (words, ended.err)

    assert {words[0] for words in typed} == {
        "pretrain",
        "finetune",
        "evaluate",
        "predict",
        "export",
    }
    measures = json.loads((tmp_path / "runs" / "sizes" / "results.json").read_text())["measures"]
    assert measures["test"]["pearson"] > 0.95
