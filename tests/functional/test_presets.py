"""`transfer presets`: everything that can be chosen."""

import json

import pytest

pytestmark = pytest.mark.functional


def test_every_group_and_option_is_listed_with_its_line(transfer):
    ended = transfer("presets", "--json")

    assert (ended.code, ended.err) == (0, "")
    found = {(each["group"], each["option"]): each for each in json.loads(ended.out)}
    assert {
        ("model", "tiny"),
        ("data", "sample_text"),
        ("objective", "mlm"),
        ("adaptation", "frozen"),
        ("tokenizer", "bpe"),
        ("optimizer", "adamw"),
        ("schedule", "slanted"),
    } <= set(found)
    assert all(each["description"] for each in found.values())


def test_people_get_a_block_for_each_group(transfer):
    ended = transfer("presets", "model")

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("model=\n")
    assert "  tiny " in ended.out
    assert "data=" not in ended.out
