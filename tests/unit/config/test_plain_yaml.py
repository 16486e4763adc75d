"""Tests of reading a config as flat plain values."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from transfer_cli.config.flat import flat
from transfer_cli.config.plain_yaml import read_plain, scalar
from transfer_cli.config.stored import as_yaml
from transfer_cli.safe_files import UnreadableError

WORDS = (
    "1e-4", "12:30", "yes", "no", "null", "~", "0x10", "1_000", "true", "", "-", "a: b", "1.0",
    ".5",
)  # fmt: skip


def read(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return dict(flat(read_plain(path)))


def test_keys_are_dotted_and_lists_are_values(tmp_path):
    found = read(tmp_path, "optimizer:\n  lr: 1e-3\n  betas: [0.9, 0.999]\nseed: 3\nlosses: {}\n")

    assert found == {"optimizer.lr": 0.001, "optimizer.betas": [0.9, 0.999], "seed": 3}


def test_what_looks_like_something_to_fill_in_is_a_text(tmp_path):
    assert read(tmp_path, "a: ${oc.env:HOME}\nb: ???\n") == {"a": "${oc.env:HOME}", "b": "???"}


@pytest.mark.parametrize("word", WORDS)
def test_a_text_that_looks_like_something_else_stays_a_text(tmp_path, word):
    assert read(tmp_path, as_yaml(OmegaConf.create({"a": word}))) == {"a": word}


@given(
    value=st.one_of(
        st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.booleans(), st.none()
    )
)
def test_what_a_run_writes_is_read_back(tmp_path_factory, value):
    text = as_yaml(OmegaConf.create({"a": {"b": value}}))

    assert read(tmp_path_factory.mktemp("config"), text) == {"a.b": value}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- 1\n",
        "a: &x 1\nb: *x\n",
        "a: !!python/object/apply:os.system [true]\n",
        "a: [1\n",
        "a: b\0c\n",
        "? [1]\n: 2\n",
        "[" * 60 + "]" * 60,
        "{a: " * 60 + "1" + "}" * 60,
        "a: 1\n" * 300_000,
        "a: [" + "1," * 150_000 + "]",
        "\ud800" if False else "a: \x07\n",
    ],
    ids=range(12),
)
def test_what_no_run_writes_is_refused(tmp_path, text):
    with pytest.raises(UnreadableError):
        read(tmp_path, text)


def test_a_word_of_the_command_line_is_read_alike():
    assert [scalar(each) for each in ("1e-3", "2", "null", "true", "lora")] == [
        0.001, 2, None, True, "lora",
    ]  # fmt: skip


def test_a_file_that_another_program_wrote_is_read_too(tmp_path):
    content = {"model": {"width": 64}, "data": {"train": ["a.txt", "b.txt"]}}

    assert read(tmp_path, yaml.safe_dump(content)) == {
        "model.width": 64,
        "data.train": ["a.txt", "b.txt"],
    }


def test_nested_values_are_found_by_their_full_keys_and_lists_stay_whole():
    nested = {"seed": 0, "loop": {"batch": 8, "empty": {}}, "betas": [0.9, {"a": 1}], "none": None}

    assert list(flat(nested)) == [
        ("seed", 0), ("loop.batch", 8), ("betas", [0.9, {"a": 1}]), ("none", None),
    ]  # fmt: skip


def test_keys_can_begin_with_a_word_and_need_not_be_texts():
    assert list(flat({1: 2}, "stages.")) == [("stages.1", 2)]
