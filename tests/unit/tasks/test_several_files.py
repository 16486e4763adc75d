"""Labelled data in several files and columns, spellings of labels, and labels that are rare."""

import json
import logging
import re
from functools import partial

import pytest

from tests import tickets
from tests.task_kinds import KINDS
from transfer_cli.data.label_names import LabelRules
from transfer_cli.data.labelled import INPUT
from transfer_cli.data.wanted import ANY
from transfer_cli.errors import DataError
from transfer_cli.tasks.choice.task import Choices
from transfer_cli.tasks.dialog.task import Dialogs
from transfer_cli.tasks.multilabel import LabelsTable
from transfer_cli.tasks.regression import NumberTable
from transfer_cli.tasks.similarity.task import PairsTable
from transfer_cli.tasks.span.task import Squad
from transfer_cli.tasks.table import Table
from transfer_cli.tasks.tagging.files import TaggedFiles
from transfer_cli.tasks.text_to_text.task import TextPairsTable

ROWS = [(f"a {number} text", ("no", "yes")[number % 2]) for number in range(40)]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return how to write a table of rows, or a text, into the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def call(name, rows=ROWS, header=("text", "label")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [",".join(map(str, row)) for row in [header, *rows]]
        path.write_text(rows if isinstance(rows, str) else "".join(f"{line}\n" for line in lines))
        return str(path)

    return call


def given(source, *splits):
    """Return examples with their labels, of all splits or of some."""
    data = source.given_splits(None)
    return [
        (example.text, data.labels[example.label])
        for split in splits or data.splits
        for example in data.splits[split]
    ]


# ---------------------------------------------------------------------------------- several files


@pytest.mark.parametrize("train", ["", [], ["a.csv", ""]])
def test_what_names_no_file_is_refused(train):
    with pytest.raises(DataError, match=r"^data\.train: names no file"):
        given(Table(train=train))


def halves(kind):
    """Return the content of two files whose rows are those of the one of a kind."""
    text = kind.text()
    if kind.file.endswith(".json"):
        dialogs = json.loads(text)
        return [
            json.dumps({split: rows[part::2] for split, rows in dialogs.items()}) for part in (0, 1)
        ]
    between = "\n\n" if kind.data == "conll" else "\n"
    rows = text.strip().split(between)
    header = rows[:1] if kind.file.endswith(".csv") else []
    middle = len(rows) // 2
    return [between.join(part) + "\n" for part in (rows[:middle], [*header, *rows[middle:]])]


SOURCES = {
    "choice": Choices, "multilabel": partial(LabelsTable, separator="semicolon"),
    "regression": NumberTable, "similarity": PairsTable, "span": Squad, "tagging": TaggedFiles,
    "text_to_text": TextPairsTable,
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("way", ["list", "glob", "folder"])
def test_several_files_of_any_kind_are_read_like_one(name, way, write):
    kind = KINDS[name]
    suffix = kind.file.partition(".")[2]
    whole = write(kind.file, kind.text())
    parts = [write(f"parts/{place}.{suffix}", text) for place, text in enumerate(halves(kind))]
    train = {"list": parts, "glob": f"parts/*.{suffix}", "folder": "parts"}[way]

    one, several = (SOURCES[name](train=files).given_splits(None) for files in (whole, train))

    assert several.splits == one.splits
    assert several.labels == one.labels
    assert [*map(str, several.files["train"])] in (parts, [f"parts/{n}.{suffix}" for n in (0, 1)])


def test_persona_chats_files_bring_their_splits_along(write):
    parts = [write(f"{place}.json", text) for place, text in enumerate(halves(KINDS["dialog"]))]

    data = Dialogs(train=parts).given_splits(None)

    assert {split: len(turns) for split, turns in data.splits.items()} == {
        "train": 96, "validation": 24
    }  # fmt: skip


def test_a_test_set_in_persona_chats_file_is_its_validation_turns(write):
    file = write("a.json", KINDS["dialog"].text())

    splits = Dialogs(train=file, test=file).given_splits(None).splits

    assert splits["test"] == splits["validation"] != splits["train"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (["a.csv", "a.csv"], "data.train: .*a.csv is named twice"),
        (["a.csv", "*.csv"], "data.train: .*a.csv is named twice"),
        ("none/*.csv", "data.train: No file matches none"),
        ("empty", "data.train: empty is a folder without a file"),
        ("saved", "data.train: saved is a folder .* The library datasets has saved it"),
        (["a.csv", "c.jsonl"], "data.train: its files are of different formats"),
        (
            ["a.csv", "wider.csv"],
            r"wider.csv has other columns than .*'agent' in .*wider.csv alone",
        ),
        (
            ["a.csv", "other.csv"],
            r"other.csv has other columns than .*'topic' in .*other.csv alone",
        ),
        (["a.csv", "gone.csv"], "data.train: gone.csv does not exist"),
        ("*s.csv", "is in train and in validation"),
    ],
)
def test_files_that_are_no_one_table_are_refused(train, message, write, tmp_path):
    write("a.csv")
    write("wider.csv", [(*row, "x") for row in ROWS], ("text", "label", "agent"))
    write("other.csv", header=("text", "topic"))
    write("c.jsonl", '{"text": "a", "label": "b"}\n')
    write("rows.csv")
    write("saved/state.json", "{}")
    validation = write("others.csv")
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match=message):
        Table(train=train, validation=validation).given_splits(None)


def test_columns_that_were_typed_are_read_of_files_that_differ_in_others(write):
    write("a.csv")
    write("b.csv", [("x", *row[::-1]) for row in ROWS], ("agent", "label", "text"))

    rows = given(Table(train=["a.csv", "b.csv"], text="text", label="label"))

    assert rows == [*ROWS, *ROWS]


def test_a_row_is_known_by_its_file_and_line(write, caplog):
    caplog.set_level(logging.INFO)
    write("a.csv", [(*row, "web") for row in ROWS], ("text", "label", "source"))
    write("b.csv", [(*row, "mail") for row in ROWS[:1]], ("text", "label", "source"))
    write("c.csv", [("a", "new", "x")], ("text", "label", "source"))
    table = Table(train=["a.csv", "b.csv"])

    data = table.given_splits(None)
    cells = data.column("train", "source")

    assert (cells[0], cells[-2:]) == ("web", ["web", "mail"])
    assert "labels that not each of the 2 files has: 'yes' (a.csv alone)" in caplog.text
    assert data.source("train") == "a.csv and 1 more"
    with pytest.raises(DataError, match=r"^c\.csv, line 2: a new label, 'new'"):
        Table(train=["b.csv", "c.csv"]).as_input_split(ANY).with_label_numbers(data.labels)
    with pytest.raises(DataError, match=r"^c\.csv, line 2: the label 'new' of test"):
        Table(train="a.csv", test=["b.csv", "c.csv"]).given_splits(None)


def test_what_is_left_out_of_files_is_one_line(write, caplog):
    write("a.csv", [*ROWS, ("none", ""), ("none", "")])
    write("b.csv", [*ROWS, ("no", "x", "y")])

    Table(train=["a.csv", "b.csv"], errors="skip").given_splits(None)

    assert [record.getMessage() for record in caplog.records] == [
        "a.csv: 2 of 42 rows left out: empty label, lines 42, 43; "
        "b.csv: 1 of 41 rows left out: more or fewer than 2 columns, line 42"
    ]


# -------------------------------------------------------------------------------- several columns


@pytest.mark.parametrize(("join", "between"), [("space", " "), ("line", "\n"), (" | ", " | ")])
def test_columns_are_joined_to_a_text(join, between, write):
    rows = [("a", "b", "yes"), ("", "c", "no"), ("d", " ", "no")]
    write("a.csv", rows, ("subject", "body", "label"))

    texts = [text for text, _ in given(Table(train="a.csv", text=("subject", "body"), join=join))]

    assert texts == [f"a{between}b", "c", "d"]


def test_an_instruction_is_read_with_its_input(write):
    row = '{"instruction": "Say it", "input": "a house", "output": "ein Haus"}\n'
    write("a.jsonl", row + row.replace('"a house"', "null"))

    with pytest.raises(DataError, match=re.escape("data.text=[instruction,input]")):
        TextPairsTable(train="a.jsonl").given_splits(None)
    data = TextPairsTable(train="a.jsonl", text=("instruction", "input")).given_splits(None)

    assert [(example.source, example.target) for example in data.splits["train"]] == [
        ("Say it a house", "ein Haus"), ("Say it", "ein Haus"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ labels


def test_spellings_are_joined_under_the_commonest_and_of_two_the_first():
    counts = {"b-c": 1, "B C": 2, "é": 3, "E": 3, "x": 9}

    names = LabelRules(merge=True, least=1).learnt_names(counts, "a")

    assert names == {"b-c": "B C", "B C": "B C", "é": "é", "E": "é", "x": "x"}
    assert LabelRules(least=1).learnt_names(counts, "a") == {label: label for label in counts}


def test_a_whole_number_with_a_zero_behind_its_point_is_that_number(write):
    assert LabelRules(merge=True, least=1).learnt_names({"1": 2, "1.0": 1}, "a")["1.0"] == "1"
    assert LabelRules().known_name("-1.0", ["-1", "1.5"]) == "-1"
    assert LabelRules().known_name("1.50", ["-1", "1.5"]) == "1.50"


def test_the_spellings_of_tickets_are_twelve_labels(write):
    def loaded(**options):
        path = write("a.csv", [(f'"{text}"', label) for text, label in tickets.rows()])
        return Table(train=path, **options).given_splits(None)

    assert len(loaded().labels) == 22
    assert loaded(merge_labels=True).labels == tuple(sorted(names[0] for names in tickets.LABELS))


RARE = [*ROWS, ("a fax", "fax"), ("a letter", "Letter"), ("b letter", "letter")]


@pytest.mark.parametrize(
    ("options", "labels", "train", "test"),
    [
        ({}, ("Letter", "fax", "letter", "no", "yes"), 43, ["letter", "fax"]),
        ({"rare": "drop"}, ("no", "yes"), 40, []),
        ({"rare": "other"}, ("no", "other", "yes"), 43, ["other", "other"]),
        ({"rare": "drop", "least": 2, "merge_labels": True}, ("Letter", "no", "yes"), 42,
         ["Letter"]),
        ({"least": 1}, ("Letter", "fax", "letter", "no", "yes"), 43, ["letter", "fax"]),
    ],
)  # fmt: skip
def test_what_is_rare_is_kept_dropped_or_joined_in_all_splits(
    options, labels, train, test, write, caplog
):
    write("a.csv", RARE)
    write("t.csv", [("c letter", "letter"), ("c fax", "fax"), ("c yes", "yes")])

    table = Table(train="a.csv", test="t.csv", **options)
    data = table.given_splits(None)
    scored = Table(train="t.csv", **options).as_input_split(ANY).with_label_numbers(data.labels)

    assert data.labels == labels
    assert len(data.splits["train"]) == train
    assert [label for _, label in given(table, "test")] == [*test, "yes"]
    assert [labels[example.label] for example in scored.splits[INPUT]] == [*test, "yes"]
    assert ("'fax' 1" in caplog.text) is (options.get("least") != 1)


def test_a_split_none_of_whose_labels_was_learnt_is_refused(write):
    write("a.csv", RARE)
    write("t.csv", [("c fax", "fax"), ("d fax", "fax")])

    with pytest.raises(
        DataError, match=r"data\.test: none of its labels was learnt; say data\.rare="
    ):
        Table(train="a.csv", test="t.csv", rare="drop").given_splits(None)
    scored = Table(train="t.csv", rare="drop").as_input_split(ANY)
    with pytest.raises(DataError, match=r"t\.csv: this run left all of its labels out"):
        scored.with_label_numbers(("no", "yes"))
    write("a.csv")
    with pytest.raises(DataError, match=r"the label 'fax' of test is not among the 2 labels"):
        Table(train="a.csv", test="t.csv", rare="other").given_splits(None)


def test_a_rare_label_of_several_leaves_its_row(write):
    write("a.csv", [("x", "a|b"), ("y", "A"), ("z", "a|c"), ("q", "b|d")])

    data = LabelsTable(train="a.csv", merge_labels=True, rare="drop", least=2).given_splits(None)

    assert data.labels == ("a", "b")
    assert [example.label for example in data.splits["train"]] == [(0, 1), (0,), (0,), (1,)]


@pytest.mark.parametrize("rare", ["drop", "other"])
def test_rare_labels_alone_are_refused(rare, write):
    write("a.csv")

    with pytest.raises(DataError, match=r"2 of its 2 labels have fewer than data\.least=21"):
        Table(train="a.csv", rare=rare, least=21).given_splits(None)
