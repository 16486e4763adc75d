"""What is no number is named, and is nobody's answer."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from transfer_cli.assembly.init_from import open_pretrained

LARGEST = 3e38
"""A float32 whose sums are infinite: finite weights, and an answer that is none."""

TEXTS = ["Where is it ?", "Who ?", "Who are we ?", "Where ?"]


@pytest.fixture
def spoilt(tmp_path):
    """Return how to copy a run with one number in the weights of some tokens."""

    def copy(run, value, *words):
        copied = shutil.copytree(run, tmp_path / "spoilt")
        weights = copied / "model" / "weights.safetensors"
        tensors = load_file(weights)
        tokenizer = open_pretrained(str(run)).tokenizer
        for token in tokenizer.encode(" ".join(words)):
            tensors["backbone.token_embedding.weight"][token] = value
        save_file(tensors, weights)
        (copied / "model" / "meta.json").unlink()
        return copied

    return copy


@pytest.mark.parametrize("words", [(), ("run=[finetuned,spoilt]",), ("output_format=csv",)])
def test_the_first_text_without_an_answer_is_named(transfer, finetuned, spoilt, tmp_path, words):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    (tmp_path / "finetuned").symlink_to(finetuned)
    spoilt(finetuned, LARGEST, "we")

    ended = transfer("predict", "run=spoilt", "input=in.txt", "device=cpu", *words)

    assert ended.code == 2
    assert "in.txt, line 3: the answer to 'Who are we ?' is not finite" in ended.err
    answered = ended.out.splitlines()[-2:]
    assert [text in line for text, line in zip(TEXTS, answered, strict=False)] == [True, True]


def test_an_evaluation_names_the_first_example(transfer, finetuned, spoilt, tmp_path):
    labels = ["animal", "city", "disease", "mineral", "person", "river"]
    texts = [f"number {n} is what ?" for n in range(24)]
    texts[13] = texts[20] = "we"
    rows = [f"{text},{labels[n % 6]}" for n, text in enumerate(texts)]
    (tmp_path / "new.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    spoilt(finetuned, LARGEST, "we")
    data = ("data=table", "data.train=new.csv", "data.test=new.csv", "device=cpu")

    ended = transfer("evaluate", "run=spoilt", *data, "batch=4", "output=out.json")

    assert ended.code == 2
    assert "test: the loss of example 14 ('we') is not finite" in ended.err
    assert ended.out == ""
    assert not (tmp_path / "out.json").exists()


def test_a_text_that_cannot_be_scored_ends_the_training_as_diverged(
    transfer, pretrained, spoilt, tmp_path
):
    spoilt(pretrained, LARGEST, "the", "what")
    words = ("data=sample_questions", "init_from=spoilt", "device=cpu", "loop.steps=2")

    ended = transfer("finetune", *words, "run.dir=run")

    assert ended.code == 4
    assert "validation: the loss of example " in ended.err
    records = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in records
    assert json.loads(records.splitlines()[0])["loss"] is None


def test_a_column_that_json_cannot_hold_is_not_kept(transfer, finetuned, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Who ?", "n": NaN}\n{"text": "Where ?", "n": 1}\n')
    words = ("predict", f"run={finetuned}", "input=in.jsonl", "keep=true", "device=cpu")

    stopped, skipped = transfer(*words), transfer(*words, "errors=skip")

    assert stopped.code == 2
    assert "in.jsonl, line 1: a column holds NaN or Infinity, which is no JSON" in stopped.err
    assert [json.loads(line)["n"] for line in skipped.out.splitlines()] == [1]


def test_a_run_that_diverges_says_where_and_ends_with_4(transfer, deep_words, read_json):
    ended = transfer(
        *deep_words, "run.dir=run", "optimizer.lr=1e18", "loop.clip=null", "loop.steps=20",
        "loop.evaluate_every=20 steps", "loop.max_bad_steps=2",
    )  # fmt: skip

    assert ended.code == 4, ended.err
    assert "Traceback" not in ended.err
    said = ended.err.splitlines()[-1]
    assert "loss or gradient is not finite" in said
    assert "on examples main" in said
    assert read_json("run/status.json")["status"] == "failed"
