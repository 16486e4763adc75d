import math

import pytest

from transfer_cli.errors import (
    ConfigError,
    above_zero,
    at_least,
    listed,
    nearest,
    one_of,
    pip_install,
)


def test_the_closest_name_is_proposed_and_none_where_none_is_close():
    assert nearest("clss", ["cls", "mean"]) == " Did you mean 'cls'?"
    assert nearest("cls", ["a-much-longer-name"]) == ""


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (map(str, range(2003)), "0, 1, 2 and 2,000 more"),
    ],
)
def test_of_many_names_a_few_are_listed_and_the_rest_counted(names, text):
    assert listed(names) == text


def test_what_is_no_choice_is_refused_with_the_choices_and_the_closest():
    one_of("split", "test", ("test", "train"))

    with pytest.raises(ConfigError) as raised:
        one_of("split", "tst", ("test", "train"))

    assert str(raised.value) == "split: 'tst' is not one of test, train. Did you mean 'test'?"


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_what_is_too_small_or_not_finite_is_refused(value):
    at_least("size", 1, 1)
    above_zero("rate", 1e-9)

    with pytest.raises(ValueError, match=f"size must be at least 1, got {value}"):
        at_least("size", value, 1)
    with pytest.raises(ConfigError, match=f"rate: must be above 0, got {value}"):
        above_zero("rate:", value, ConfigError)


def test_a_bound_of_zero_is_said_in_words():
    at_least("keep", 0, 0)

    with pytest.raises(ValueError, match="keep must be 0 or more, got -1"):
        at_least("keep", -1, 0)


def test_what_an_extra_needs_is_named_by_its_packages_and_not_by_a_name_that_is_not_published():
    assert pip_install("hf") == "pip install 'huggingface_hub>=0.30'"
    assert "'onnx>=1.18'" in pip_install("onnx")
    assert "transfer" not in pip_install("report")
