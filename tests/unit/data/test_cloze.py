import json

import pytest

from transfer_cli.data.cloze import ClozeExample, ClozeTexts
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
