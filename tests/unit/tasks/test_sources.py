import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.config.models import expand_short_name, listed_models
from transfer_cli.data.labelled import Example
from transfer_cli.errors import DataError
from transfer_cli.tasks import trec
from transfer_cli.tasks.multilabel import LabelsTable
from transfer_cli.tasks.regression import NumberTable
from transfer_cli.tasks.sources import hold_out, hold_out_groups, keep_few
from transfer_cli.tasks.span.task import SpanExample, SpanTask
from transfer_cli.tasks.table import Table
from transfer_cli.tasks.trec import Trec

REAL = os.environ.get("TRANSFER_DATA")  # read before functional tests get folders of their own

needs_data = pytest.mark.skipif(REAL is None, reason="TRANSFER_DATA names no folder with real data")


def counts(examples):
    return Counter(example.label for example in examples)


# -------------------------------------------------------------------------------------- TREC


@pytest.fixture
def trec_dir(tmp_path):
    (tmp_path / "trec").mkdir()
    rows = [f"{label} {label} , {n} ?\n" for n in range(10) for label in trec.FINE_LABELS]
    (tmp_path / "trec" / "train_5500.label").write_text("".join(rows))
    (tmp_path / "trec" / "TREC_10.label").write_bytes(b"NUM:date sister\xf0city ?\n")
    return tmp_path


def test_there_are_six_coarse_and_fifty_fine_labels():
    assert list(trec.COARSE_LABELS) == ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
    assert len(trec.FINE_LABELS) == 50
    assert list(trec.FINE_LABELS) == sorted(trec.FINE_LABELS)


def test_trec_is_read_as_latin_1(trec_dir):
    data = Trec().load(trec_dir, 0)

    assert data.splits["test"] == (Example("sister\u00f0city ?", 5),)
    assert data.labels == trec.COARSE_LABELS
    assert len(data.splits["train"]) == 450
    assert len(data.splits["validation"]) == 50


def test_fine_labels_are_pairs(trec_dir):
    data = Trec(fine=True).load(trec_dir, 0)

    assert data.labels[data.splits["test"][0].label] == "NUM:date"
    assert counts(data.splits["validation"]) == dict.fromkeys(range(50), 1)


@pytest.mark.parametrize("line", ["NUM:dat What ?", "What is this ?", "NUM:date", ""])
def test_a_line_without_a_label_of_trec_is_named(trec_dir, line):
    (trec_dir / "trec" / "TREC_10.label").write_text(f"NUM:date What ?\n{line}\n")

    with pytest.raises(DataError, match=r"TREC_10\.label, line 2: begins with"):
        Trec().load(trec_dir, 0)


def test_a_part_of_trec_without_some_label_is_refused(trec_dir):
    path = trec_dir / "trec" / "train_5500.label"
    path.write_text("".join(f"NUM:date What {number} ?\n" for number in range(60)))

    with pytest.raises(DataError, match="no training example has the label 'ABBR', 'DESC'"):
        Trec().load(trec_dir, 0)


@needs_data
def test_real_trec_has_the_published_counts():
    data = Trec().load(Path(REAL), 0)

    train, validation, test = (data.splits[name] for name in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (4907, 545, 500)
    assert counts(train) + counts(validation) == dict(enumerate([86, 1162, 1250, 1223, 835, 896]))
    assert counts(test) == dict(enumerate([9, 138, 94, 65, 81, 113]))
    assert [counts(validation)[label] for label in range(6)] == [9, 116, 125, 122, 83, 90]


@needs_data
def test_real_trec_with_fine_labels_trains_every_label():
    data = Trec(fine=True, labelled=50).load(Path(REAL), 0)

    assert counts(data.splits["train"]) == dict.fromkeys(range(50), 1)
    assert len(data.splits["validation"]) == 545


# ----------------------------------------------------------------------------------- drawing


def made(class_counts):
    examples = [
        Example(f"{label} {number}", label)
        for label, count in enumerate(class_counts)
        for number in range(count)
    ]
    return tuple(examples)


def labels_of(examples):
    return [example.label for example in examples]


many_counts = st.lists(st.integers(2, 40), min_size=2, max_size=6)


@given(many_counts, st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_held_out_split_is_stratified_and_parts_the_examples(class_counts, share, seed):
    examples = made(class_counts)
    total = sum(class_counts)
    if int(share * total) == 0:
        with pytest.raises(DataError, match="leaves nothing") as refused:
            hold_out(labels_of(examples), share, seed, "here")
        cure = re.search(r"Type .*share=([\d.]+)", str(refused.value))
        if cure is not None:  # what it names is enough
            hold_out(labels_of(examples), float(cure[1]), seed, "here")
        return

    chosen = hold_out(labels_of(examples), share, seed, "here")

    validation = [examples[at] for at in chosen]
    train = [example for example in examples if example not in validation]
    assert len(validation) == min(int(share * total), total - len(class_counts))
    assert len(counts(train)) == len(class_counts)
    if share < 0.5:
        for label, count in enumerate(class_counts):
            assert abs(counts(validation)[label] - share * count) <= 1.5


@pytest.mark.parametrize(
    ("labels", "texts", "cure"),
    [
        ([0, 0, 1], "abc", r"Type data\.validation_share=0\.67"),
        ([0, 1], "ab", r"2 kinds\)(?!.*validation_share).*data\.validation"),
        ([0, 0, 1, 1], "aabb", r"data\.duplicates=keep"),
    ],
)
def test_what_leaves_nothing_to_validate_on_is_told_a_key_that_helps(labels, texts, cure):
    with pytest.raises(DataError, match=cure):
        hold_out(labels, 0.1, 0, "here", texts)


def test_without_equal_texts_the_draw_is_that_of_before_there_were_groups():
    strata = [number**2 % 7 % 3 for number in range(60)]

    assert hold_out(strata, 0.15, 3, "") == {1, 11, 33, 34, 35, 39, 48, 53, 55}
    assert keep_few(strata, 8, 3, "") == ({4, 5, 7, 22, 34, 44, 45, 48}, set())


def test_a_share_of_too_few_groups_says_how_many_there_are():
    task = SpanTask()
    examples = [SpanExample(f"Who {n} ?", "One text", ("One",), 0) for n in range(40)]

    with pytest.raises(DataError, match=r"\(1 groups that stay together\)"):
        hold_out_groups(task, examples, 0.1, 0, "here", None)


def test_few_label_subsets_have_the_proportions_of_the_whole():
    examples = made([80, 16, 4])
    chosen, _ = keep_few(labels_of(examples), 50, 0, "here")

    assert counts(examples[at] for at in chosen) == {0: 40, 1: 8, 2: 2}


def test_the_validation_split_does_not_depend_on_the_number_of_labels(trec_dir):
    few, many = (Trec(labelled=labelled).load(trec_dir, 3) for labelled in (50, 100))

    assert few.splits["validation"] == many.splits["validation"]
    assert set(few.splits["train"]) <= set(many.splits["train"])


def test_the_rest_are_all_others_without_their_labels(trec_dir):
    few, every = Trec(labelled=50).load(trec_dir, 3), Trec().load(trec_dir, 3)

    kept, rest, whole = (
        Counter(example.text for example in examples)
        for examples in (few.splits["train"], few.rest, every.splits["train"])
    )
    assert len(few.rest) == len(every.splits["train"]) - 50
    assert kept + rest == whole
    assert all(example.label is None for example in few.rest)
    assert not every.rest


def test_another_seed_draws_other_examples(trec_dir):
    first, again, second = (Trec(labelled=50).load(trec_dir, seed) for seed in (1, 1, 2))

    assert first == again
    assert first.splits["validation"] != second.splits["validation"]
    assert first.splits["train"] != second.splits["train"]


@pytest.mark.parametrize(
    ("labelled", "message"),
    [(5, "fewer examples than the 6 kinds of them"), (451, "only 450 training examples")],
)
def test_an_impossible_number_of_labels_is_refused(trec_dir, labelled, message):
    with pytest.raises(DataError, match=rf"labelled={labelled}\b.*{message}"):
        Trec(labelled=labelled).load(trec_dir, 0)


# ------------------------------------------------------------------------------------- tables


@pytest.fixture
def write(tmp_path):
    def write_file(name, rows, header="text,label"):
        path = tmp_path / name
        path.write_text("\n".join([header, *rows] if header else rows) + "\n")
        return str(path)

    return write_file


ROWS = [f"word {number},{'yes' if number % 2 else 'no'}" for number in range(40)]


def test_a_table_is_split_and_its_labels_sorted(write):
    data = Table(train=write("questions.csv", ROWS)).load(Path(), 0)

    assert data.name == "questions"
    assert data.labels == ("no", "yes")
    assert counts(data.splits["train"]) == {0: 18, 1: 18}
    assert counts(data.splits["validation"]) == {0: 2, 1: 2}
    assert "test" not in data.splits


def test_given_files_are_taken_as_they_are(write):
    sizes = {"train": 40, "validation": 3, "test": 2}
    files = {name: write(f"{name}.csv", ROWS[:size]) for name, size in sizes.items()}

    splits = Table(**files).load(Path(), 0).splits

    assert {name: len(examples) for name, examples in splits.items()} == sizes


def test_whole_numbers_as_labels_are_sorted_as_numbers(write):
    rows = [f"text {n},{label}" for n, label in enumerate((10, 9, -1, 10, 9, -1))]

    data = Table(train=write("a.csv", rows), validation_share=0.4).load(Path(), 0)

    assert data.labels == ("-1", "9", "10")


def test_pairs_and_columns_without_header_are_read(write):
    rows = ["1\tfirst one\tsecond one", "0\tfirst two\tsecond two"]
    train = write("a.tsv", rows, header=None)

    data = Table(train=train, validation=train, text=2, pair=3, label=1, header=False)

    assert data.load(Path(), 0).splits["train"] == (
        Example("first one", 1, "second one"),
        Example("first two", 0, "second two"),
    )


def test_a_format_that_the_name_does_not_tell_is_asked_for(write):
    train = write("a.data", ROWS)

    with pytest.raises(DataError, match=r"data\.format=csv"):
        Table(train=train).load(Path(), 0)
    assert len(Table(train=train, format="csv").load(Path(), 0).splits["train"]) == 36


@pytest.mark.parametrize(("kind", "labels"), [(NumberTable, "1.5 2"), (LabelsTable, "x|y y")])
@pytest.mark.parametrize("empty", ["train", "validation", "test"])
def test_a_split_without_rows_is_refused_whatever_its_answers_are(write, kind, labels, empty):
    rows = [f"text {number},{label}" for number, label in enumerate(labels.split() * 9)]
    files = {name: write(f"{name}.csv", [] if name == empty else rows)
             for name in ("train", "validation", "test")}  # fmt: skip

    with pytest.raises(DataError, match=rf"{empty}\.csv has no rows"):
        kind(**files).load(Path(), 0)


def test_a_label_that_training_never_showed_is_named(write):
    validation = write("v.csv", [ROWS[0], "odd,yse", "odd,maybe", "odd,yse"])

    with pytest.raises(
        DataError,
        match=r"v\.csv, line 3: the label 'yse' \(and 1 other label\) of validation .* mean 'yes'",
    ):
        Table(train=write("a.csv", ROWS), validation=validation).load(Path(), 0)


# --- short names of published models -------------------------------------------------------------


@pytest.mark.parametrize("name", listed_models())
def test_a_short_name_stands_for_a_commit_of_the_hub(name):
    model = listed_models()[name]

    assert re.fullmatch(r"hf:[\w-]+/[\w.-]+@[0-9a-f]{40}", expand_short_name(name))
    assert model.kind in ("encoder", "decoder")
    assert re.fullmatch(r"\d+(\.\d)?M", model.size)
    assert model.sha256 is None or re.fullmatch("[0-9a-f]{64}", model.sha256)
    # What is read back is text, also where YAML knows another word for it.
    assert all(isinstance(word, str) for word in (model.languages, model.licence))


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()

    assert expand_short_name("minilm") == "minilm"
    assert expand_short_name("./gpt2") == "./gpt2"
    assert expand_short_name("gpt2").startswith("hf:openai-community/gpt2@")
