import math

import numpy as np
import pytest

from tests.unit.generation.test_filling import byte_pairs, word_pieces  # noqa: F401 - fixtures
from transfer_cli.errors import ConfigError
from transfer_cli.generation.prompts import (
    Template,
    calibrated,
    draw_shots,
    ending_of,
    normalised,
    shares,
)

ITEM = "Question: {text}\nAnswer Type: {label}"


def test_a_prompt_ends_before_the_space_of_its_answer():
    template = Template(ITEM, head="Say what is asked for.")
    shot = template.filled("How many ?", None, "Number")

    assert template.asked([shot], "Where ?", None) == (
        "Say what is asked for.\n\n"
        "Question: How many ?\nAnswer Type: Number\n\n"
        "Question: Where ?\nAnswer Type:"
    )
    assert template.answer("Location") == " Location"
    assert template.bare == "Answer Type:"


def test_a_text_that_looks_like_a_field_is_text():
    template = Template("{text} / {pair} = {label} .")

    assert template.filled("{label}", "{text}", "yes") == "{label} / {text} = yes ."
    assert template.asked([], "{label} {pair}", "b") == "{label} {pair} / b ="


@pytest.mark.parametrize("item", ["{text}", "{label}", "{text} {label} {label}", ""])
def test_an_item_needs_a_text_and_one_label(item):
    with pytest.raises(ConfigError, match=r"prompt\.item"):
        Template(item)


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_an_answer_begins_where_its_tokens_do(kind, request):
    tokenizer = request.getfixturevalue(kind)

    row = ending_of(tokenizer.encode, "the cat", " sat")

    assert tokenizer.decode(row.tokens[row.first :]).strip() == "sat"
    assert row.tokens[: row.first] == tokenizer.encode("the cat")


def test_tokens_that_join_prompt_and_answer_belong_to_the_answer():
    known = {"ab": [1, 2], "abc": [1, 5]}

    row = ending_of(known.__getitem__, "ab", "c")

    assert (row.tokens, row.first) == ([1, 5], 1)
    with pytest.raises(ConfigError, match="no tokens of its own"):
        ending_of({"ab": [1, 2], "ab ": [1, 2]}.__getitem__, "ab", " ")


@pytest.mark.parametrize(
    ("norm", "expected"),
    [("none", -6.0), ("token", -2.0), ("char", -1.2), ("byte", -1.0), ("unconditional", -4.0)],
)
def test_scores_are_normalised_by_definition(norm, expected):
    found = normalised([-1.0, -2.0, -3.0], " caf\u00e9s", norm, [-2.0])

    assert found == pytest.approx(expected)


def test_several_words_of_a_label_add_their_probabilities():
    found = shares([[math.log(0.1), math.log(0.2)], [math.log(0.3)], [math.log(0.4)]])

    np.testing.assert_allclose(found, [0.3, 0.3, 0.4])


def test_calibration_divides_by_the_bias():
    flipped = calibrated(np.array([0.6, 0.4]), np.array([0.75, 0.25]))

    np.testing.assert_allclose(flipped, [1 / 3, 2 / 3])
    bias = np.array([0.7, 0.2, 0.1])
    np.testing.assert_allclose(calibrated(bias, bias), [1 / 3] * 3)


def test_shots_are_so_many_of_each_label_and_follow_from_the_seed():
    labels = [0, 1, 2] * 10

    found = draw_shots(labels, 2, seed=3)

    assert sorted(labels[number] for number in found) == [0, 0, 1, 1, 2, 2]
    assert found == draw_shots(labels, 2, seed=3)
    assert found != draw_shots(labels, 2, seed=4)
    assert draw_shots(labels, 0, seed=3) == []
    with pytest.raises(ConfigError, match="only 10 training examples"):
        draw_shots(labels, 11, seed=3)
