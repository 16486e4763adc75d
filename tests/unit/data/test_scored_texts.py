"""Texts with gaps and minimal pairs, which are scored."""

import json
from collections import Counter

import pytest

from transfer_cli.data.cloze import ClozeExample, ClozeTexts, MinimalPair
from transfer_cli.data.minimal_pairs import AGREEMENT, Agreement, MinimalPairs
from transfer_cli.errors import DataError


@pytest.fixture
def texts(tmp_path):
    """Return how to read rows with options."""

    def call(*rows, **options):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return ClozeTexts(files=str(path), **options)

    return call


def test_a_text_is_asked_for_its_gap_or_for_its_last_word(texts):
    found = texts(
        {"text": "The capital of [MASK] is Paris .", "answer": " France "},
        {"text": "she opened the door "},
        {"text": "[MASK] is here", "answer": "who"},
    ).load()

    assert found == [
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
        texts({"text": "a b"}).__class__(files=str(tmp_path / "words.txt")).load()
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


def test_made_up_sentences_differ_in_the_number_of_their_verb():
    pairs = Agreement(pairs=60).load()

    assert Counter(pair.group for pair in pairs) == {f"agreement/{name}": 60 for name in AGREEMENT}
    assert len({pair.good for pair in pairs}) == len(pairs)
    forms = {frozenset(each) for each in (("is", "are"), ("was", "were"), ("has", "have"))}
    for pair in pairs:
        good, bad = pair.good.split(), pair.bad.split()
        changed = [(one, other) for one, other in zip(good, bad, strict=True) if one != other]
        assert len(changed) == 1
        assert frozenset(changed[0]) in forms
        assert (good[1][-1] == "s" or good[1] in ("women", "children")) == (
            changed[0][0] in ("are", "were", "have")
        )
