import pytest

from transfer_cli.analysis.probes.surface_tasks import made
from transfer_cli.errors import DataError

LONGER = [" ".join(["word"] * length) for length in range(1, 61)]


def test_lengths_are_in_six_bins_with_as_many_training_texts():
    found = made("length", {"train": LONGER, "scored": ["word " * 11, "word " * 500, ""]})

    labels = [example.label for example in found.splits["train"]]
    assert [labels.count(number) for number in range(6)] == [10] * 6
    assert found.task.labels[0] == "0 to 10"
    assert [example.label for example in found.splits["scored"]] == [1, 5, 0]


def test_bins_that_would_be_the_same_are_one():
    found = made("length", {"train": ["a b"] * 50 + ["a b c d"] * 10})

    assert found.task.labels == ("0 to 3", "4 or more")


def test_content_asks_for_the_one_word_of_medium_frequency():
    train = [f"the {word} of number {number}" for number in range(40) for word in ("Lake", "hill")]
    rare = [f"the w{number} , indeed" for number in range(30) for _ in range(3)]
    asked = ["w1 !", "w1 w10", "none", "W10 is w10"]

    found = made("content", {"train": [*train, *rare], "scored": asked})

    assert len(found.task.labels) == 20
    assert not {"the", "of", "lake", "indeed"} & set(found.task.labels)
    assert [(each.text, found.task.labels[each.label]) for each in found.splits["scored"]] == [
        ("w1 !", "w1"), ("W10 is w10", "w10"),
    ]  # fmt: skip


def test_positions_are_counted_in_words():
    found = made("position", {"train": ["a b c d e f"] * 5, "scored": ["x, y", "  "]})

    (only,) = found.splits["scored"]
    assert only.words == ["x,", "y"]
    assert [found.task.labels[number] for number in only.label] == ["0 to 0", "1 to 1"]


@pytest.mark.parametrize(
    ("kind", "text"), [("length", "all alike"), ("content", "once"), ("position", "word")]
)
def test_texts_of_which_nothing_can_be_asked_are_refused(kind, text):
    with pytest.raises(DataError, match=r"analysis\.probes\.task: nothing can be asked of these"):
        made(kind, {"train": [text] * 30})
