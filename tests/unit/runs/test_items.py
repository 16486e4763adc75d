import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.runs import items
from transfer_cli.runs.items import Item, read_items, shortened, write_items
from transfer_cli.safe_files import UnreadableError

ONE = Item("test", 3, "city", "river", 0.25, "Where ?", 1.5, 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    st.lists(
        st.builds(
            Item, split=st.just("test"), index=st.integers(0, 2**40), label=WORDS, predicted=WORDS,
            probability=st.floats(0, 1), text=WORDS, loss=st.floats(0, 1e6),
            targets=st.integers(0, 1000),
        )
    )
)  # fmt: skip
def test_what_is_written_is_read_back(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("run") / "items.jsonl"

    write_items(path, found)

    assert list(read_items(path, "test")) == found


def test_a_score_says_how_right_an_item_is_where_there_is_one():
    right = dataclasses.replace(ONE, predicted=ONE.label)

    assert [ONE.wrong, right.wrong, dataclasses.replace(ONE, score=0.75).wrong] == [1, 0, 0.25]


def test_only_the_split_that_is_asked_for_is_read(tmp_path):
    other = dataclasses.replace(ONE, split="validation")
    write_items(tmp_path / "items.jsonl", [other, ONE])

    assert list(read_items(tmp_path / "items.jsonl", "test")) == [ONE]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: it is no JSON object"),
        ('{"split": "test"}', "line 2: its index is no int"),
        (json.dumps(vars(ONE) | {"loss": "much"}), "line 2: its loss is no float: 'much'"),
        (json.dumps(vars(ONE) | {"targets": True}), "line 2: its targets is no int"),
        (
            json.dumps(vars(ONE) | {"loss": 10**400}),
            "line 2: its loss is below 0, or has more than 64 bits",
        ),
        ("[" * 100_000, "line 2: it is not JSON"),
        (json.dumps(vars(ONE) | {"score": 1.5}), "line 2: its score is not between 0 and 1: '1.5'"),
        (json.dumps(vars(ONE) | {"score": "all"}), "line 2: its score is not between 0 and 1"),
        (json.dumps(vars(ONE) | {"text": "a" * 2**20}), "line 2: it is not JSON"),
    ],
)
def test_what_is_no_item_is_refused_by_its_line(tmp_path, line, message):
    path = tmp_path / "items.jsonl"
    write_items(path, [ONE])
    path.write_text(path.read_text() + line + "\n")

    with pytest.raises(UnreadableError, match=message):
        list(read_items(path, "test"))


def test_more_items_than_are_ever_written_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(items, "MOST_ITEMS", 3)
    write_items(tmp_path / "items.jsonl", [ONE] * 4)

    with pytest.raises(UnreadableError, match="more than 3 examples of test"):
        list(read_items(tmp_path / "items.jsonl", "test"))


def test_a_long_text_is_cut():
    assert shortened("a" * 500) == "a" * 500
    assert shortened("a" * 501) == "a" * 496 + " ..."
