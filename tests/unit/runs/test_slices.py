from dataclasses import replace

import numpy as np
import pytest

from transfer_cli.errors import DataError
from transfer_cli.runs.items import Item, write_items
from transfer_cli.runs.slices import Slice

TEXTS = [("What is it ?",), ("How many 7 are there here ?",), ("", "who")]
CELLS = {"source": ["web", "mail", "web"], "year": ["1999", "2001", "2001"],
         "flag": ["true", "True", "no"], "score": ["0.50", "", "5e-1"]}  # fmt: skip


def mask(**said):
    return Slice(**said).mask("test", TEXTS, CELLS.__getitem__).tolist()


def test_examples_are_in_it_that_fulfil_all_that_is_said():
    assert mask(length=(0, 3)) == [True, False, True]  # "?" is no word, "7" is
    assert mask(length=(4, 6)) == [False, True, False]
    assert mask(length=(2, None)) == [True, True, False]
    assert mask(regex=r"\d|who") == [False, True, True]
    assert mask(word="how") == [False, True, False]
    assert mask(word="how", length=(0, 3)) == [False, False, False]
    assert mask(column="source", value="web") == [True, False, True]
    assert mask(column="year", value=2001, length=(2, None)) == [False, True, False]
    assert mask(column="flag", value=True) == [True, True, False]
    assert mask(column="score", value=0.5) == [True, False, True]


@pytest.fixture
def items(tmp_path):
    """Return how to write what a run predicted of examples, whose label is "a"."""

    def write(*predicted):
        items = [Item("test", at, "a", said, 0.5, "", 1.0, 1) for at, said in enumerate(predicted)]
        others = [replace(item, split="validation", predicted="b") for item in items]
        write_items(tmp_path / "items.jsonl", [*items, *others])
        return str(tmp_path / "items.jsonl")

    return write


def test_what_an_earlier_run_had_wrong(items):
    assert mask(file=items("a", "b", "a")) == [False, True, False]


def test_the_items_of_other_examples_are_refused(items):
    with pytest.raises(DataError, match="is of 2 examples of test, and here are 3; have it"):
        mask(file=items("a", "b"))
    with pytest.raises(DataError, match="nowhere cannot be read"):
        mask(file="nowhere")


def test_no_examples_are_no_error():
    cell = {"column": "source", "value": "web"}
    for said in ({"length": (0, 3)}, {"regex": "a"}, {"word": "a"}, cell):
        examples = Slice(**said).mask("test", [], lambda name: [])
        assert (examples.shape, examples.dtype) == ((0,), np.bool_)
