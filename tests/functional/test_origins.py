"""A run is gone on with, and scored, on what it was made from, or says that this has changed."""

import json
import shutil
from pathlib import Path

import pytest

from tests.functional.conftest import LOOP, TINY
from tests.origins import rows, write_table


@pytest.fixture
def here(begun, tmp_path, transfer):
    """Put a copy of all that into the test's folder."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path


def go_on(transfer, *words):
    return transfer("finetune", "resume=questions", "loop.steps=4", *words)


# --- labelled data -----------------------------------------------------------------------------


def test_changed_data_can_be_accepted_once_and_are_said(here, transfer, read_json):
    write_table("train.csv", [row for row in rows() if row[1] != "amount"])
    write_table("test.csv", [row for row in rows()[:12] if row[1] != "amount"])

    accepted = go_on(transfer, "data.changed=accept")

    assert accepted.code == 0, accepted.err
    results = read_json("questions/results.json")
    assert len(results["data_changed"]) == 1
    assert "the label 'amount' is gone" in results["data_changed"][0]
    assert results["labels"] == ["amount", "person", "place"]
    (confusion,) = results["tables"]["test"].values()
    assert [sum(row) for row in confusion] == [0, 4, 4]
    # What was accepted is the run's from then on, and other changes are not.
    transfer("finetune", "resume=questions", "loop.steps=5").ok()
    write_table("train.csv", rows())
    assert transfer("finetune", "resume=questions", "loop.steps=6").code == 2
    assert read_json("questions/results.json")["data_changed"] == results["data_changed"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_evaluation_scores_the_run_s_own_examples_or_says_so(here, transfer, read_json, split):
    transfer("evaluate", "run=questions", f"split={split}").ok()
    write_table("train.csv", rows()[:48])
    write_table("test.csv", rows()[1:13])

    refused = transfer("evaluate", "run=questions", f"split={split}")
    words = ("data.changed=accept", "output=out.json")
    transfer("evaluate", "run=questions", f"split={split}", *words).ok()

    assert refused.code == 2
    named = "train.csv: validation has 4" if split == "validation" else "test.csv: test has other"
    assert f"data: {named}" in refused.err
    assert named in read_json("out.json")["data_changed"][0]


def test_other_data_are_not_compared(here, transfer):
    write_table("new.csv", rows()[5:30])

    words = ("data=table", "data.train=new.csv", "split=train")
    transfer("evaluate", "run=questions", *words).ok()


def test_the_same_command_again_finds_the_change(here, transfer):
    write_table("train.csv", rows()[:48])

    words = json.loads(json.dumps(Path("questions/overrides.txt").read_text().split("\n")[:-1]))
    ended = transfer("finetune", *words, "resume=auto", "loop.steps=4")

    assert ended.code == 2
    assert "train has 44 examples and not 54" in ended.err


# --- text --------------------------------------------------------------------------------------


def test_an_accepted_text_keeps_the_run_s_tokenizer(here, transfer, read_json):
    tokenizer = Path("language/model/tokenizer.json").read_bytes()
    Path("a.txt").write_text("Entirely other words stand here now .\n" * 200)

    transfer("pretrain", "resume=language", "loop.steps=4", "data.changed=accept").ok()

    assert Path("language/model/tokenizer.json").read_bytes() == tokenizer
    assert "other content" in read_json("language/results.json")["data_changed"][0]


# --- weights and tokenizer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "validation", "steps", "said"),
    [
        (
            "a.txt",
            "held_out.txt",
            3,
            "the weights in language/model are not those that the run beg",
        ),
        ("held_out.txt", "a.txt", 2, "this is not the tokenizer that the run began with"),
    ],
)
def test_another_model_to_start_from_is_refused(here, transfer, train, validation, steps, said):
    text = ("data=text", f"data.train={train}", f"data.validation={validation}", "data.length=16")
    shutil.rmtree("language")
    usual = (*LOOP, "schedule=constant", f"loop.steps={steps}", "run.dir=language")
    transfer("pretrain", *text, *TINY, *usual).ok()

    ended = go_on(transfer)

    assert ended.code == 2
    assert f"init_from: {said}" in ended.err


# --- the record --------------------------------------------------------------------------------


def test_a_run_without_a_record_goes_on_and_gets_one(here, transfer):
    Path("questions/origins.json").unlink()

    ended = go_on(transfer)

    assert ended.code == 0, ended.err
    assert "no record of what it was made from" in ended.err
    write_table("train.csv", rows()[:48])
    assert transfer("finetune", "resume=questions", "loop.steps=5").code == 2
