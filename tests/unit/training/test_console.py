"""What a run says at its end."""

import pytest

from transfer_cli.training.console import in_words, pace_text


def test_a_table_of_what_became_of_each_label_is_put_into_words():
    said = in_words([[45, 5], [15, 135]], ["spam", "no\nspam"])

    assert said == (
        "of 100 such texts about 90 get the right label (85 to 93, by these 200); always saying "
        "'no spam' gets 75 right"
    )


TABLE, LABELS = [[45, 5], [15, 135]], ["spam", "no spam"]


@pytest.mark.parametrize(
    ("right", "ending"),
    [
        (150, "gets 75 right, a linear model on words 75"),
        (180, "a linear model on words 90"),
        (190, "a linear model on words 95, more than this model"),
    ],
)
def test_a_model_that_words_alone_would_beat_is_told_so(right, ending):
    by_words = {"right": right, "scored": 200, "trained_on": 900, "of": 900}

    assert in_words(TABLE, LABELS, by_words).endswith(ending)


def test_a_linear_model_that_saw_some_texts_only_says_how_many():
    by_words = {"right": 190, "scored": 200, "trained_on": 10_000, "of": 25_000}

    assert in_words(TABLE, LABELS, by_words).endswith(
        "words 95 (fitted on 10,000 of 25,000 texts), more than this model"
    )


def test_equal_texts_make_an_interval_no_narrower():
    by_words = {"right": 150, "scored": 200, "trained_on": 9, "of": 9, "different": 50}

    assert (
        "about 90 get the right label (79 to 96, by these 200, 50 of them different)"
        in in_words(TABLE, LABELS, by_words)
    )


@pytest.mark.parametrize(
    ("waited", "peak", "said", "not_said"),
    [
        (0.015, 1e15, ["800,000 tokens/s", "TFLOP/s (MFU 24 %)", "waits 75 %"], "loop.batch"),
        (0.0, None, ["240.0 TFLOP/s", "loop.batch=128 optimizer.lr=0.0028", "estimated"], "MFU"),
    ],
)
def test_a_gpu_that_waits_for_its_host_is_offered_a_larger_batch(waited, peak, said, not_said):
    text = pace_text(0.02, waited, 16_000, 4.8e12, peak=peak, batch=64, rate=2e-3)

    assert all(part in text for part in said)
    assert not_said not in text
