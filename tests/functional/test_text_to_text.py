"""Texts made from others, from the table to the answer."""

import json

import pytest

pytestmark = pytest.mark.functional


@pytest.fixture
def words(task_words):
    """Return a command line that fine-tunes a model for it."""
    return task_words("text_to_text")


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("text_to_text")


def test_the_head_of_the_language_model_is_taken_over(transfer, words, run, tmp_path):
    ended = transfer(*words, "loop.steps=1", "run.dir=first")
    again = transfer(*(f"init_from={run}" if each.startswith("init_from") else each
                       for each in words), "data.target_length=6", "loop.steps=1",
                     "run.dir=again")  # fmt: skip

    for each in (ended, again):
        assert each.code == 0, each.err
        assert "new: " not in each.out + each.err


def test_predict_and_generate_write_the_same(transfer, run, tmp_path):
    (tmp_path / "new.txt").write_text("the old bridge\nthe blue bridge\n")

    together = transfer("predict", str(run), "new.txt", "device=cpu")
    alone = transfer("predict", str(run), "new.txt", "device=cpu", "batch=1")

    answers = [json.loads(line)["answer"] for line in together.out.splitlines()]
    assert answers == ["old", "blue"]
    assert alone.out == together.out
    for cache in ("true", "false"):
        said = transfer("generate", str(run), "prompt=the old bridge", "temperature=0",
                        f"cache={cache}", "device=cpu")  # fmt: skip
        assert said.out.strip() == "old", said.err


def test_the_source_of_a_table_is_found_by_its_name_or_typed(transfer, run, tmp_path):
    (tmp_path / "new.csv").write_text("id,source,text\n7,the old bridge,the blue bridge\n")

    found = transfer("predict", str(run), "new.csv", "device=cpu")
    typed = transfer("predict", str(run), "new.csv", "text=text", "device=cpu")

    assert [json.loads(each.out)["answer"] for each in (found, typed)] == ["old", "blue"]


@pytest.mark.slow
def test_a_masked_language_model_learns_to_write(transfer, read_json, tmp_path):
    transfer("pretrain", "experiment=sample/pretrain_mlm", "run.dir=masked", "device=cpu")

    ended = transfer("finetune", "experiment=sample/text_pairs", "init_from=masked", "run.dir=run",
                     "device=cpu")  # fmt: skip

    assert ended.code == 0, ended.err
    assert read_json(tmp_path / "run" / "results.json")["measures"]["test"]["exact_match"] > 0.5
