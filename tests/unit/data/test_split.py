"""A split of which some examples are scored."""

from dataclasses import replace

import numpy as np
import pytest

from tests import tiny
from transfer_cli.data.split import Split, TextStats, some_of


@pytest.fixture
def split():
    return Split("validation", tiny.Questions(examples=11), text=TextStats(words=40))


def test_some_are_spread_evenly_from_the_first_to_the_last(split):
    assert some_of(split, 3).order.tolist() == [0, 5, 10]


def test_all_windows_of_an_example_are_scored_or_none(split):
    example_of = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 6])

    some = some_of(replace(split, example_of=example_of), 3)

    assert some.order.tolist() == [0, 1, 6, 9, 10]  # examples 0, 3 and 6


def test_words_are_known_of_the_whole_text_alone(split):
    assert some_of(split, 3).text == TextStats()
    assert some_of(split, 11) is split
