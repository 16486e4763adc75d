import random
import time

import pytest

from transfer_cli.data.labelled import Example
from transfer_cli.tasks import words
from transfer_cli.tasks.words import right_by_words

NOISE = ("the", "a", "of", "in", "one", "two", "new", "old", "big", "small")


def texts(count, word_of_label, seed=0):
    """Return texts of random words, with a word for their label somewhere among them."""
    drawn = random.Random(seed)  # noqa: S311 - texts, not keys
    found = []
    for number in range(count):
        label = number % len(word_of_label)
        own = [*drawn.choices(NOISE, k=6), word_of_label[label]]
        drawn.shuffle(own)
        found.append(Example(" ".join(own), label))
    return found


def test_where_a_word_tells_the_label_all_are_right():
    mountain = ("Everest", "sea", "city")

    assert right_by_words(texts(60, mountain), texts(30, mountain, seed=1), 3) == 30


def test_where_words_say_nothing_it_is_right_by_chance():
    nothing = ("word", "word")

    right = right_by_words(texts(200, nothing), texts(1000, nothing, seed=1), 2)

    assert 400 < right < 600


def test_pairs_of_words_count_too():
    drawn = random.Random(0)  # noqa: S311 - texts, not keys
    train = []
    for number in range(80):
        words_ = drawn.choices(NOISE, k=4)
        pair = ["not", "good"] if number % 2 else ["good", "not"]
        train.append(Example(" ".join([*words_, *pair, *words_]), number % 2))

    assert right_by_words(train, [Example("not good", 1), Example("good not", 0)], 2) == 2


def test_a_word_of_the_second_text_is_another_one():
    train = [Example("yes", 0, pair="no"), Example("no", 1, pair="yes")] * 10

    assert right_by_words(train, train[:2], 2) == 2


def test_the_commonest_label_is_what_remains_without_any_word():
    train = [Example("?", 1)] * 3 + [Example("!", 0)]

    assert right_by_words(train, [Example("...", 1), Example("", 0)], 2) == 1


def test_order_and_repetition_of_the_call_change_nothing():
    train, scored = texts(60, ("a", "of", "old")), texts(300, ("a", "of", "old"), seed=1)
    first = right_by_words(train, scored, 3)

    assert right_by_words(train, scored, 3) == first
    assert abs(right_by_words(train[::-1], scored, 3) - first) <= 1


def test_of_many_labels_the_vocabulary_is_small(monkeypatch):
    monkeypatch.setattr(words, "MOST_WEIGHTS", 6)
    train = texts(60, ("Everest", "sea", "city"))

    # The two most frequent words say nothing.
    assert right_by_words(train, train, 3) < 60


@pytest.mark.slow
def test_ten_thousand_short_texts_take_seconds():
    train = texts(10_000, ("Everest", "sea", "city"))
    began = time.process_time()

    right_by_words(train, train[:1000], 3)

    assert time.process_time() - began < 5
