"""A run is gone on with, and scored, on what it was made from, or says that this has changed."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from tests.functional.conftest import LOOP, TINY, finished
from tests.task_kinds import CITIES, THINGS

pytestmark = pytest.mark.functional


def rows():
    """Return 60 questions with three labels."""
    kinds = (
        lambda n: (f"Where is the {THINGS[n % 5]}, number {n} ?", "place"),
        lambda n: (f"Who built the one in {CITIES[n % 6]} numbered {n} ?", "person"),
        lambda n: (f"How many are there of number {n} ?", "amount"),
    )
    return [kinds[n % 3](n) for n in range(60)]


def write_table(path, rows):
    Path(path).write_text(
        "".join(f'"{text}",{label}\n' for text, label in [("text", "label"), *rows])
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return a folder with data, a run that read them, and one that adapts that run."""
    folder = tmp_path_factory.mktemp("begun")
    with contextlib.chdir(folder):
        write_table("train.csv", rows())
        write_table("test.csv", rows()[:12])
        lines = [f"{text}\n" for text, _ in rows()]
        Path("a.txt").write_text("".join(lines * 4))
        Path("held_out.txt").write_text("".join(lines[:20]))
        usual = (*LOOP, "schedule=constant", "loop.steps=2")
        text = ("data=text", "data.train=[a.txt]", "data.validation=held_out.txt", "data.length=16")
        finished("pretrain", *text, *TINY, *usual, "run.dir=language")
        table = ("data=table", "data.train=train.csv", "data.test=test.csv")
        more = ("adaptation=full", "adaptation/penalty=l2_sp", "forgetting.data=source")
        finished("finetune", "init_from=language", *table, *usual, *more, "run.dir=questions")
    return folder


@pytest.fixture
def here(begun, tmp_path, transfer):
    """Put a copy of all that into the test's folder."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path


def go_on(transfer, *words):
    return transfer("finetune", "resume=questions", "loop.steps=4", *words)


def swapped(label):
    return {"place": "person", "person": "place"}.get(label, label)


CHANGES = {
    "labels swapped": (
        lambda rows: [(text, swapped(label)) for text, label in rows],
        "train.csv: train has the same texts with other labels",
    ),
    "rows cut": (lambda rows: rows[:48], "train.csv: train has 44 examples and not 54"),
    "one letter": (
        lambda rows: [(rows[0][0].upper(), rows[0][1]), *rows[1:]],
        "train.csv: train has other texts",
    ),
    "another order": (lambda rows: rows[::-1], "train.csv: train has other texts"),
    "a label gone": (
        lambda rows: [row for row in rows if row[1] != "amount"],
        "train.csv: the label 'amount' is gone, train.csv: train has 36 examples and not 54",
    ),
}


# --- labelled data -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
def test_other_training_data_are_refused_by_file_and_difference(here, transfer, kind):
    change, said = CHANGES[kind]
    write_table("train.csv", change(rows()))
    if kind == "a label gone":
        write_table("test.csv", change(rows()[:12]))

    ended = go_on(transfer)

    assert ended.code == 2
    assert f"data: {said}" in ended.err
    assert "Put it back, or say data.changed=accept" in ended.err
    write_table("train.csv", rows())
    write_table("test.csv", rows()[:12])
    assert go_on(transfer).code == 0  # nothing was touched


@pytest.mark.parametrize("accept", [(), ("data.changed=accept",)])
@pytest.mark.parametrize("command", ["finetune", "evaluate"])
def test_a_new_label_is_named_and_never_accepted(here, transfer, command, accept):
    renamed = [(text, label.replace("place", "spot")) for text, label in rows()]
    write_table("train.csv", renamed)
    write_table("test.csv", renamed[:12])

    ended = go_on(transfer, *accept)
    if command == "evaluate":
        ended = transfer("evaluate", "run=questions", *accept)

    assert ended.code == 2
    assert "a new label, 'spot'. This run knows amount, person, place" in ended.err
    assert "remove" not in ended.err  # it is not the checkpoints that are wrong


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
    assert transfer("finetune", "resume=questions", "loop.steps=5").code == 0
    write_table("train.csv", rows())
    assert transfer("finetune", "resume=questions", "loop.steps=6").code == 2
    assert read_json("questions/results.json")["data_changed"] == results["data_changed"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_evaluation_scores_the_run_s_own_examples_or_says_so(here, transfer, read_json, split):
    assert transfer("evaluate", "run=questions", f"split={split}").code == 0
    write_table("train.csv", rows()[:48])
    write_table("test.csv", rows()[1:13])

    refused = transfer("evaluate", "run=questions", f"split={split}")
    words = ("data.changed=accept", "output=out.json")
    accepted = transfer("evaluate", "run=questions", f"split={split}", *words)

    assert refused.code == 2
    named = "train.csv: validation has 4" if split == "validation" else "test.csv: test has other"
    assert f"data: {named}" in refused.err
    assert accepted.code == 0, accepted.err
    assert named in read_json("out.json")["data_changed"][0]


def test_only_the_split_that_is_scored_is_compared(here, transfer):
    write_table("train.csv", rows()[:48])

    assert transfer("evaluate", "run=questions", "split=test").code == 0


def test_other_data_are_not_compared(here, transfer):
    write_table("new.csv", rows()[5:30])

    words = ("data=table", "data.train=new.csv", "split=train")
    assert transfer("evaluate", "run=questions", *words).code == 0


def test_the_same_command_again_finds_the_change(here, transfer):
    write_table("train.csv", rows()[:48])

    words = json.loads(json.dumps(Path("questions/overrides.txt").read_text().split("\n")[:-1]))
    ended = transfer("finetune", *words, "resume=auto", "loop.steps=4")

    assert ended.code == 2
    assert "train has 44 examples and not 54" in ended.err


# --- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("pretrain", "resume=language", "loop.steps=4"),
                                   ("plan", "pretrain", "resume=language")])  # fmt: skip
def test_another_pretraining_text_is_refused(here, transfer, words):
    with Path("a.txt").open("a") as file:
        file.write("one more line\n")

    ended = transfer(*words)

    assert ended.code == 2
    assert "data: a.txt: train has other content in a.txt since the run began" in ended.err


def test_an_accepted_text_keeps_the_run_s_tokenizer(here, transfer, read_json):
    tokenizer = Path("language/model/tokenizer.json").read_bytes()
    Path("a.txt").write_text("Entirely other words stand here now .\n" * 200)

    ended = transfer("pretrain", "resume=language", "loop.steps=4", "data.changed=accept")

    assert ended.code == 0, ended.err
    assert Path("language/model/tokenizer.json").read_bytes() == tokenizer
    assert "other content" in read_json("language/results.json")["data_changed"][0]


def test_what_is_measured_before_and_after_is_the_pretraining_s_own_text(here, transfer):
    Path("held_out.txt").write_text("Another text to forget .\n" * 20)
    words = ("data=table", "data.train=train.csv", *LOOP, "loop.steps=1", "run.dir=new")

    begun = transfer("finetune", "init_from=language", *words, "forgetting.data=source")
    resumed = go_on(transfer)

    for ended in (begun, resumed):
        assert ended.code == 2
        assert "source.data: held_out.txt: validation has other content" in ended.err
    assert not Path("new").exists()


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
    assert transfer("pretrain", *text, *TINY, *usual).code == 0

    ended = go_on(transfer)

    assert ended.code == 2
    assert f"init_from: {said}" in ended.err


# --- the record --------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"data": {"data": {"train": 1}}}',
    '{"data": {}, "labels": {"data": 3}, "weights": {}, "accepted": []}'])  # fmt: skip
def test_a_damaged_record_is_refused(here, transfer, content):
    Path("questions/origins.json").write_text(content)

    ended = go_on(transfer)

    assert ended.code == 2
    assert "questions/origins.json is damaged" in ended.err
    assert ended.err.count("\n") == 1


def test_a_run_without_a_record_goes_on_and_gets_one(here, transfer):
    Path("questions/origins.json").unlink()

    ended = go_on(transfer)

    assert ended.code == 0, ended.err
    assert "no record of what it was made from" in ended.err
    write_table("train.csv", rows()[:48])
    assert transfer("finetune", "resume=questions", "loop.steps=5").code == 2


@pytest.mark.parametrize("value", ["yes", "Accept"])
def test_another_value_is_refused(here, transfer, value):
    ended = go_on(transfer, f"data.changed={value}")

    assert ended.code == 2
    assert "data.changed" in ended.err
    assert "accept" in ended.err
