"""Texts made from others, from the table to the answer."""

import json
import re
import shlex
import signal

import pytest

from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

PLACES = ("red", "blue", "old", "new")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a table whose targets repeat a word of their sources."""
    file = tmp_path_factory.mktemp("texts") / "pairs.csv"
    rows = (f"the {PLACES[n % 4]} bridge,{PLACES[n % 4]}" for n in range(120))
    file.write_text("\n".join(["source,target", *rows]) + "\n")
    return file


@pytest.fixture(scope="module")
def words(pretrained, table, loop):
    """Return a command line that fine-tunes on it."""
    return ("finetune", "data=text_pairs", "objective=prefix_lm", f"data.train={table}", *loop,
            "data.target_length=8", f"init_from={pretrained}", "optimizer.lr=1e-2",
            "loop.steps=60", "loop.batch=16", "loop.evaluate_every=30 steps",
            "checkpoint.every=30 steps")  # fmt: skip


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    """Return a finished run."""
    from tests.functional.conftest import finished

    place = tmp_path_factory.mktemp("runs") / "texts"
    finished(*words, f"run.dir={place}")
    return place


def test_texts_are_learnt_and_measured(run, read_json):
    results = read_json(run / "results.json")

    measures = results["measures"]["validation"]
    assert measures["exact_match"] > 0.9
    assert measures["rouge_l"] > 0.9
    assert measures["perplexity"] < 1.5
    assert [each["name"] for each in results["metrics"] if each["headline"]] == ["perplexity"]


def test_the_head_of_the_language_model_is_taken_over(transfer, words, run, tmp_path):
    ended = transfer(*words, "loop.steps=1", "run.dir=first")
    again = transfer(*(f"init_from={run}" if each.startswith("init_from") else each
                       for each in words), "data.target_length=6", "loop.steps=1",
                     "run.dir=again")  # fmt: skip

    for each in (ended, again):
        assert each.code == 0, each.err
        assert "new: " not in each.out + each.err


def test_items_tell_what_was_written(run):
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    assert {item["label"] for item in items} <= {*PLACES}
    assert all(item["predicted"] and 0 <= item["score"] <= 1 for item in items)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    transfer, words, run, at_record, tmp_path, read_json
):
    at_record("after", "validation", 30, lambda: signal.raise_signal(signal.SIGTERM))
    assert transfer(*words, "run.dir=again").code == 75
    ended = transfer("finetune", "resume=again")

    assert ended.code == 0, ended.err
    ours, theirs = (read_json(place / "results.json") for place in (tmp_path / "again", run))
    assert ours["measures"] == theirs["measures"]


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


def test_the_source_of_a_table_is_found_by_its_name_or_typed(transfer, run, table, tmp_path):
    (tmp_path / "new.csv").write_text("id,source,text\n7,the old bridge,the blue bridge\n")

    found = transfer("predict", str(run), "new.csv", "device=cpu")
    typed = transfer("predict", str(run), "new.csv", "text=text", "device=cpu")

    assert [json.loads(each.out)["answer"] for each in (found, typed)] == ["old", "blue"]


def test_every_row_of_a_table_is_scored(transfer, run, table, read_json, tmp_path):
    ended = transfer("evaluate", str(run), str(table), "output=out.json", "device=cpu")

    assert ended.code == 0, ended.err
    assert "input: scored 120 of 120 examples" in ended.out
    assert read_json(tmp_path / "out.json")["measures"]["input"]["exact_match"] > 0.9


def test_data_are_looked_at(transfer, pretrained, table):
    ended = transfer("inspect", "data=text_pairs", f"data.train={table}", f"init_from={pretrained}")

    assert ended.code == 0, ended.err
    assert "the red bridge | red" in ended.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["objective=classification"], "choose objective=prefix_lm"),
        (["data.target_length=1000"], "data.target_length is 1000"),
    ],
)
def test_what_does_not_fit_is_refused(transfer, words, more, said, tmp_path):
    ended = transfer(*words, *more, "run.dir=run")

    assert ended.code == 2
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_refused_in_one_line(transfer, run):
    ended = transfer("export", str(run), "to")

    assert ended.code == 2
    assert "trained for text to text, which no published head is for" in ended.err


@pytest.mark.slow
def test_a_masked_language_model_learns_to_write(transfer, read_json, tmp_path):
    transfer("pretrain", "experiment=sample/pretrain_mlm", "run.dir=masked", "device=cpu")

    ended = transfer("finetune", "experiment=sample/text_pairs", "init_from=masked", "run.dir=run",
                     "device=cpu")  # fmt: skip

    assert ended.code == 0, ended.err
    assert read_json(tmp_path / "run" / "results.json")["measures"]["test"]["exact_match"] > 0.5


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, tmp_path):
    page = (conf_dir().parent / "docs" / "tasks" / "text_to_text.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    (tmp_path / "questions.txt").write_text("Why do so many people write about Kadru ?\n")

    for words in typed[1:]:  # the first is about a file of one's own
        ended = transfer(*words, "device=cpu")
        assert ended.code == 0, (words, ended.err)

    assert {words[0] for words in typed} == {
        "pretrain", "finetune", "evaluate", "predict", "generate"
    }  # fmt: skip
    measures = json.loads((tmp_path / "runs" / "told" / "results.json").read_text())["measures"]
    assert measures["test"]["exact_match"] > 0.95
