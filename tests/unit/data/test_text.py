"""Running text: files, documents, what is held out."""

import gzip
import json
import logging
import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transfer_cli.config.build import build
from transfer_cli.data.cloze import ClozeExample, ClozeTexts, MinimalPair
from transfer_cli.data.corpus import TextBlocks, encode_text
from transfer_cli.data.equal_texts import are_among, text_keys
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.known_texts import SampleText, TaskText, WikiText
from transfer_cli.data.labelled import Example, LabelledData, TaskData
from transfer_cli.data.minimal_pairs import AGREEMENT, Agreement, MinimalPairs
from transfer_cli.data.text import TextData, TextFiles
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.samples import EmbeddedSample
from transfer_cli.tasks.sources import log_overlap
from transfer_cli.tasks.table import Table
from transfer_cli.tasks.text_to_text.task import PrefixLM

SAMPLE_TEXT = "transfer_cli.data.known_texts.SampleText"

REAL = os.environ.get("TRANSFER_DATA")  # read before functional tests get folders of their own

needs_data = pytest.mark.skipif(REAL is None, reason="TRANSFER_DATA names no folder with real data")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    return path


def lines_of(data, name="train", **settings):
    return list(data.splits(Path("nowhere"), 0, **settings)[name].lines())


# -------------------------------------------------------------------------------- WikiText


def wikitext_folder(tmp_path, folder="wikitext-2", ending=".tokens"):
    (tmp_path / folder).mkdir()
    for name in ("train", "valid", "test"):
        content = f" \n = {name} = \n \n a <unk> @-@ b . \n"
        (tmp_path / folder / f"wiki.{name}{ending}").write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("raw", "folder", "ending"), [(False, "", ".tokens"), (True, "-raw", ".raw")]
)
def test_wikitext_lines_keep_empty_ones_and_lose_the_outer_spaces(tmp_path, raw, folder, ending):
    data_dir = wikitext_folder(tmp_path, f"wikitext-2{folder}", ending)

    splits = WikiText(name="wikitext-2", raw=raw).splits(data_dir, 0)

    assert list(splits) == ["train", "validation", "test"]
    assert list(splits["validation"].lines()) == ["", "= valid =", "", "a <unk> @-@ b ."]
    original = data_dir / f"wikitext-2{folder}" / f"wiki.valid{ending}"
    assert splits["validation"].size_bytes == original.stat().st_size


def test_a_part_can_be_used_where_the_others_are_missing(tmp_path):
    data_dir = wikitext_folder(tmp_path)
    (data_dir / "wikitext-2" / "wiki.train.tokens").unlink()

    splits = WikiText(name="wikitext-2").splits(data_dir, 0, only=["test"])

    assert list(splits) == ["test"]


@needs_data
@pytest.mark.parametrize(
    ("name", "raw", "split", "words"),
    [
        ("wikitext-2", False, "train", 2_088_628), ("wikitext-2", False, "validation", 217_646),
        ("wikitext-2", False, "test", 245_569), ("wikitext-103", False, "validation", 217_646),
        ("wikitext-103", False, "test", 245_569), ("wikitext-2", True, "validation", 217_646),
        ("wikitext-2", True, "test", 245_569),
    ],
)  # fmt: skip
def test_words_and_lines_of_wikitext_are_the_published_number(name, raw, split, words):
    data_dir = Path(REAL)

    lines = WikiText(name=name, raw=raw).splits(data_dir, 0, only=[split])[split].lines()

    # A few lines of the raw form have two spaces in a row, or a space before their end.
    assert sum(len(line.split()) + 1 for line in lines) == words


# -------------------------------------------------------------------------------- own files


def test_globs_and_paths_are_read_in_order_and_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl", "v.txt"):
        content = json.dumps({"body": name}) if name.endswith("jsonl") else name
        (tmp_path / name).write_text(content)
    patterns = [str(tmp_path / pattern) for pattern in ("c.jsonl", "[a-c].txt", "a.txt")]

    data = TextFiles(train=patterns, validation=str(tmp_path / "v.txt"), field="body")

    assert lines_of(data) == ["c.jsonl", "a.txt", "b.txt"]
    assert lines_of(data, "validation") == ["v.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_read(tmp_path):
    (tmp_path / "a[1].txt").write_text("text")

    data = TextFiles(train=str(tmp_path / "a[1].txt"), test=str(tmp_path / "a[1].txt"))

    with pytest.raises(DataError, match=r"a\[1\]\.txt is in train and in test"):
        lines_of(data)


def test_held_out_lines_and_training_lines_make_the_whole_text(corpus):
    data = TextFiles(train=str(corpus), validation_share=0.1)

    train, validation = lines_of(data), lines_of(data, "validation")

    assert len(validation) == pytest.approx(100, abs=10)
    assert sorted(train + validation) == sorted(corpus.read_text().splitlines())


def test_the_hold_out_is_the_same_for_every_seed_and_spread_over_the_text(corpus):
    data = TextFiles(train=str(corpus), validation_share=0.5)

    first, second = (data.splits(Path(), seed)["validation"] for seed in (1, 2))

    numbers = [int(line.split()[1]) for line in first.lines()]
    assert numbers == [int(line.split()[1]) for line in second.lines()]
    assert first.fingerprint == second.fingerprint
    assert min(numbers) < 200
    assert max(numbers) > 800


@st.composite
def lines_and_a_share_of_them(draw):
    """Return lines, and a share up to a half that comes to at least one line of text."""
    lines = ["a", "b", *draw(st.lists(st.sampled_from(["a", "b", ""]), max_size=400)), "a", "b"]
    texts = sum(map(bool, lines))
    held_out = draw(st.integers(1, (texts - 1) // 2))
    return draw(st.permutations(lines)), (held_out + 0.5) / texts


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines_and_a_share_of_them())
def test_a_hold_out_always_leaves_text_on_both_sides(tmp_path, drawn):
    lines, share = drawn
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")

    data = TextFiles(train=str(tmp_path / "a.txt"), validation_share=share)
    train, validation = lines_of(data), lines_of(data, "validation")

    assert any(train)
    assert any(validation)
    assert len(train) + len(validation) == len(lines)


def test_the_fingerprint_goes_with_the_text_and_not_with_its_place(tmp_path, corpus):
    def fingerprint(path, **settings):
        return TextFiles(train=str(path), **settings).splits(Path(), 0)["train"].fingerprint

    copy = tmp_path / "copy.txt"
    copy.write_bytes(corpus.read_bytes())
    other = tmp_path / "other.txt"
    other.write_bytes(corpus.read_bytes() + b"x")

    assert fingerprint(copy) == fingerprint(corpus)
    assert fingerprint(other) != fingerprint(corpus)
    assert fingerprint(corpus, validation_share=0.2) != fingerprint(corpus)
    assert fingerprint(corpus, validation=str(other)) != fingerprint(corpus)


def test_the_fingerprint_of_a_file_and_what_is_held_out_are_those_of_earlier_versions(corpus):
    splits = TextFiles(train=str(corpus)).splits(Path(), 0)

    assert {name: split.fingerprint[:16] for name, split in splits.items()} == {
        "train": "1cede5854da88da9",
        "validation": "deeeadfc0cfa4583",
    }


# ------------------------------------------------------------------------------------ sample


def test_the_sample_text_does_not_change_with_the_run_seed():
    first, second = (SampleText().splits(Path(), seed) for seed in (1, 2))
    other = SampleText(world=1).splits(Path(), 1)

    assert list(first["train"].lines()) == list(second["train"].lines())
    assert first["train"].fingerprint == second["train"].fingerprint
    assert first["train"].fingerprint != other["train"].fingerprint
    assert {"train", "validation"} <= set(first)


# ---------------------------------------------------------------------------- texts of a task


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "pairs.csv"
    rows = [f'"text {n}","pair {n}",{"ab"[n % 2]}\n' for n in range(40)]
    path.write_text("".join(["text,pair,label\n", *rows, '"two\nlines",second,a\n']))
    return path


def test_the_texts_of_a_task_are_all_there_without_labels_in_its_own_splits():
    task = EmbeddedSample("questions")
    examples = task.load(Path(), 0).splits

    splits = TaskText(task=task).splits(Path(), 0)

    assert list(splits) == ["train", "validation", "test"]
    for name, split in splits.items():
        assert list(split.lines()) == [example.text for example in examples[name]]


def test_the_second_text_of_a_pair_and_a_text_of_two_lines_have_a_line_each(table):
    data = TaskText(task=Table(train=str(table), pair="pair"))

    lines = lines_of(data) + lines_of(data, "validation")

    numbers = range(40)
    expected = [f"{kind} {n}" for n in numbers for kind in ("text", "pair")]
    assert sorted(lines) == sorted([*expected, "two lines", "second"])


def test_the_texts_that_are_held_out_are_those_of_the_task_with_the_same_seed(table):
    task = Table(train=str(table), text="pair")

    held_out = {}
    for seed in (0, 1):
        held_out[seed] = [e.text for e in task.load(Path(), seed).splits["validation"]]
        splits = TaskText(task=task).splits(Path(), seed)
        assert list(splits["validation"].lines()) == held_out[seed]

    assert held_out[0] != held_out[1]


def test_the_fingerprint_of_a_task_goes_with_its_texts_alone(table):
    def fingerprint(**settings):
        task = Table(train=str(table), validation=str(table), **settings)
        return TaskText(task=task).splits(Path(), 0)["train"].fingerprint

    before = fingerprint()
    assert fingerprint(pair="pair") != before
    table.write_text(table.read_text().replace(",b\n", ",c\n"))
    assert fingerprint() == before


def test_only_the_parts_of_a_task_that_are_wanted_come():
    data = TaskText(task=EmbeddedSample("questions"))

    assert list(data.splits(Path(), 0, only=["test"])) == ["test"]


@dataclass
class Words(TaskData):
    """A task of our own."""

    example: Any = None

    def load(self, data_dir, seed):
        return LabelledData("words", (), {"train": [self.example]})


def test_the_examples_of_an_own_task_need_a_text():
    whole, parts = (SimpleNamespace(**fields) for fields in ({"text": "a"}, {"words": ["a"]}))

    assert lines_of(TaskText(task=Words(example=whole))) == ["a"]
    with pytest.raises(DataError, match=r"data\.task: its examples have no text"):
        lines_of(TaskText(task=Words(example=parts)))


def test_a_task_that_is_none_is_refused():
    node = {"_target_": "transfer_cli.data.known_texts.TaskText", "task": {"_target_": SAMPLE_TEXT}}

    with pytest.raises(ConfigError, match=r"data\.task: expected a TaskData"):
        build(node, "data", TextData)


WORDS = WordPiece(60).make(lambda: iter(["a b c d e f"]))


def first_lines(split):
    """Return the first lines of the documents of a split."""
    return [line for line, first in zip(split.lines(), split.begins(), strict=True) if first]


def begins(data, tmp_path, split="train"):
    return first_lines(data.splits(tmp_path, 0)[split])


def text_file(tmp_path, lines, name="a.txt"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def own_text(path, **options):
    return TextFiles(train=path, validation_share=0.5, documents="separate", **options)


WIKI = ["= One =", "", "a b", " = = Part = = ", "c", "", "= Two =", "", "d e"]


def test_documents_are_told_apart_only_where_it_is_asked_for(tmp_path):
    path = text_file(tmp_path, WIKI)

    assert TextFiles(train=path, validation=path + "x").documents == "cross"
    assert SampleText().splits(tmp_path, 0)["train"].begins is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["= One =", "a b", "= Two =", "d e"]),
        ({"heading": "= [^=].* ="}, ["= One =", "= Two ="]),
    ],
)
def test_a_document_of_own_text_follows_an_empty_line_or_has_a_heading(tmp_path, options, expected):
    path, other = text_file(tmp_path, WIKI), text_file(tmp_path, ["x"], "b.txt")
    data = TextFiles(train=path, validation=other, documents="separate", **options)

    assert begins(data, tmp_path) == expected
    assert begins(data, tmp_path, "validation") == ["x"]


def test_each_row_of_json_lines_is_a_document(tmp_path):
    rows = [json.dumps({"text": text}) for text in ("a\n\nb", "c", "d\ne")]
    path = text_file(tmp_path, rows, "a.jsonl")
    other = text_file(tmp_path, ["x"], "b.txt")
    data = TextFiles(train=[path, other], validation=other + "x", documents="separate")

    split = data._whole_split([tmp_path / "a.jsonl", tmp_path / "b.txt"], "train", KnownFiles(None))

    assert first_lines(split) == ["a", "c", "d", "x"]


def test_what_is_held_out_begins_anew(tmp_path):
    lines = [f"line {number}" for number in range(40)]
    data = own_text(text_file(tmp_path, lines))

    train, validation = begins(data, tmp_path), begins(data, tmp_path, "validation")

    for part in (train, validation):
        numbers = [int(line.split()[1]) for line in part]
        assert len(numbers) > 1
    kept = list(data.splits(tmp_path, 0)["train"].lines())
    jumps = [
        line
        for before, line in zip(["", *kept], kept, strict=False)
        if not before or int(line.split()[1]) != int(before.split()[1]) + 1
    ]
    assert train == jumps


def test_articles_of_the_sample_are_its_documents(tmp_path):
    headings = begins(SampleText(documents="separate"), tmp_path, "validation")

    assert len(headings) > 20
    assert all(line.startswith("= ") and line.endswith(" =") for line in headings)


def test_blocks_say_which_document_each_input_predicts(tmp_path):
    data = own_text(text_file(tmp_path, ["a b", "", "c d e", "", "f"]))
    split = data._whole_split([tmp_path / "a.txt"], "train", KnownFiles(None))
    text = encode_text(split, WORDS, tmp_path / "cache")

    blocks = TextBlocks(text, 4, WORDS.pad)
    batch = blocks.batch(np.arange(len(blocks)))

    ends = [place for place, token in enumerate(text.tokens) if token == WORDS.sep]
    assert text.starts.tolist() == [ends[0], ends[2], ends[4]]
    documents = batch["document"][batch["mask"]].tolist()
    assert documents == [
        int(np.searchsorted(text.starts, place, side="right")) for place in range(len(documents))
    ]
    assert set(documents) == {1, 2, 3}


def test_lines_that_cannot_be_told_apart_are_refused(tmp_path):
    path = text_file(tmp_path, ["a b", "c"])
    split = own_text(path)._whole_split([tmp_path / "a.txt"], "train", KnownFiles(None))
    wrong = encode_text(split, WORDS, tmp_path / "cache")
    assert wrong.starts is not None
    object.__setattr__(split, "begins", lambda: iter([True]))
    with pytest.raises(DataError, match="1 lines, and the token that ends them"):
        encode_text(split, WORDS, tmp_path / "other cache")


def test_corrupted_blocks_have_no_documents():
    objective = PrefixLM(corrupt=0.15)
    batch = {"tokens": torch.zeros(1, 4), "document": torch.zeros(1, 4)}

    with pytest.raises(ConfigError, match="corrupt and noise change whole blocks; say cross"):
        objective.prepare(batch, None)


# --- overlap -------------------------------------------------------------------------------------


def examples(*texts, pair=None):
    return [Example(text, 0, pair) for text in texts]


def said(caplog, **splits):
    caplog.clear()
    with caplog.at_level(logging.INFO):
        texts = ClassificationTask().texts
        keys = {name: text_keys(map(texts, part), len(part)) for name, part in splits.items()}
        log_overlap(splits, keys, "here", texts)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_few_texts_in_two_splits_are_said_and_most_of_the_smaller_one_are_warned_of(caplog):
    few = said(caplog, train=examples(*"abcdef"), test=examples(*"xyzaz"))
    [(level, text)] = said(caplog, train=examples(*"abc"), test=examples(*"abxxxxxxx"))

    assert few == [
        ("INFO", "here: 1 of the 5 texts of test (20.0 %) are in train, too, such as 'a'")
    ]
    assert level == "WARNING"
    assert text.startswith("here: 2 of the 3 texts of train (66.7 %) are in test, too, such as 'a'")


def test_splits_without_common_texts_are_not_spoken_of(caplog):
    assert not said(caplog, train=examples("a", "b"), validation=examples("c"), test=[])
    assert not said(caplog, train=examples("a", pair="b"), test=examples("a", pair="c"))
    assert not said(caplog, train=examples("a"), test=examples("a", pair="c"))


@pytest.mark.parametrize("way", ["same", "symlink", "copy", "turned round"])
def test_one_table_under_two_names_is_warned_of(tmp_path, caplog, way):
    lines = [f"text {n},{n % 2}" for n in range(40)]
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("\n".join(["text,label", *lines]) + "\n")
    if way == "same":
        test = train
    elif way == "symlink":
        test.symlink_to(train)
    elif way == "copy":
        shutil.copy(train, test)
    else:
        test.write_text("\n".join(["text,label", *reversed(lines)]) + "\n")

    Table(train=str(train), test=str(test)).load(tmp_path, 0)

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "40 of the 40 texts of" in record.getMessage()


def test_what_is_found_is_what_numpy_finds():
    generator = np.random.default_rng(0)
    for size in (1, 2, 1000):
        wanted, among = generator.integers(-9, 9, 50), generator.integers(-9, 9, size)

        assert (are_among(wanted, among) == np.isin(wanted, among)).all()


# --- texts that are scored -----------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path):
    """Return how to read rows with options."""

    def call(*rows, **options):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return ClozeTexts(files=str(path), **options)

    return call


def test_a_text_is_asked_for_its_gap_or_for_its_last_word(texts):
    cloze_examples = texts(
        {"text": "The capital of [MASK] is Paris .", "answer": " France "},
        {"text": "she opened the door "},
        {"text": "[MASK] is here", "answer": "who"},
    ).load()

    assert cloze_examples == [
        ClozeExample("The capital of", " is Paris .", "France"),
        ClozeExample("she opened the", "", "door"),
        ClozeExample("", " is here", "who"),
    ]


def test_fields_have_any_name_and_words_come_from_a_file(texts, tmp_path):
    (tmp_path / "words.txt").write_text("one\ntwo\n\none\n")
    data = texts(
        {"masked": "a [MASK]", "obj": "b"}, text="masked", answer="obj",
        among=str(tmp_path / "words.txt"),
    )  # fmt: skip

    assert data.load() == [ClozeExample("a", "", "b")]
    assert data.words() == ["one", "two"]
    assert texts({"text": "a b"}).words() is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "word"}, r"a\.jsonl, line 1: nothing is before the last word of 'word'"),
        ({"text": "[MASK] [MASK]", "answer": "a"}, "line 1: the text has 2 gaps"),
        ({"text": "a [MASK]", "answer": " "}, "line 1: 'answer' is empty"),
        ({"text": "a [MASK]"}, "line 1.*'answer'"),
    ],
)
def test_a_row_without_a_word_to_say_is_refused(texts, row, message):
    with pytest.raises(DataError, match=message):
        texts(row).load()


def test_files_without_anything_are_refused(texts, tmp_path):
    (tmp_path / "words.txt").write_text("\n\n")

    with pytest.raises(DataError, match="has no texts"):
        ClozeTexts(files=str(tmp_path / "words.txt")).load()
    with pytest.raises(DataError, match="has no words"):
        texts({"text": "a b"}, among=str(tmp_path / "words.txt")).words()


def test_files_of_every_form_are_read(tmp_path):
    rows = [
        {"sentence_good": "It is.", "sentence_bad": "It are.", "UID": "agreement"},
        {"prefix": "The cats near it", "right": "are", "wrong": "is"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "b.tsv").write_text("They are.\tThey is.\n\n")

    assert MinimalPairs(files=str(tmp_path / "*")).load() == [
        MinimalPair("It is.", "It are.", "agreement"),
        MinimalPair("The cats near it are", "The cats near it is"),
        MinimalPair("They are.", "They is."),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"sentence_good": "a"}\n', "a.jsonl, line 1: no column 'sentence_bad'"),
        ("a.jsonl", '{"sentence_good": 3, "sentence_bad": "a"}\n', "'sentence_good' is .*number"),
        ("a.jsonl", "\n", "a.jsonl has no pairs"),
        ("a.tsv", "a\tb\nonly one\n", "a.tsv, line 2 has 1 columns, expected two"),
        ("a.tsv", "a\t\n", "a.tsv, line 1 has 2 columns"),
    ],
)
def test_what_is_no_pair_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)

    with pytest.raises(DataError, match=message):
        MinimalPairs(files=str(tmp_path / name)).load()


def test_packed_json_lines_hold_minimal_pairs(tmp_path):
    row = b'{"sentence_good": "It is.", "sentence_bad": "It are."}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(row))
    (tmp_path / "b.ndjson").write_bytes(row)

    assert MinimalPairs(files=str(tmp_path)).load() == 2 * [MinimalPair("It is.", "It are.")]


def test_made_up_sentences_differ_in_the_number_of_their_verb():
    pairs = Agreement(pairs=60).load()

    assert Counter(pair.group for pair in pairs) == {f"agreement/{name}": 60 for name in AGREEMENT}
    assert len({pair.good for pair in pairs}) == len(pairs)
    forms = {frozenset(verbs) for verbs in (("is", "are"), ("was", "were"), ("has", "have"))}
    for pair in pairs:
        good, bad = pair.good.split(), pair.bad.split()
        changed = [(one, other) for one, other in zip(good, bad, strict=True) if one != other]
        assert len(changed) == 1
        assert frozenset(changed[0]) in forms
        assert (good[1][-1] == "s" or good[1] in ("women", "children")) == (
            changed[0][0] in ("are", "were", "have")
        )
