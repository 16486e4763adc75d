"""Labels of texts: the record, and the linear model on words."""

import random
import time
from dataclasses import dataclass

import numpy as np
import pytest

from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split, some_of
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.tasks import words
from transfer_cli.tasks.base import by_example, task_of
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.words import right_by_words

TASK = ClassificationTask(("no", "yes", "maybe"))


def test_a_model_of_before_has_labels_alone():
    assert task_of(None, ("no", "yes", "maybe"), "task") == TASK
    assert task_of(None, (), "task") is None
    assert task_of(TASK.as_node(), TASK.labels, "task") == TASK


@pytest.mark.parametrize(
    "target",
    [
        "transfer_cli.tasks.classification.Clasification", "transfer_cli.tasks.trec.Trec",
        "os.system",
    ],
)  # fmt: skip
def test_a_node_that_names_no_task_is_refused_by_its_key(target):
    with pytest.raises(ConfigError, match=r"^task"):
        task_of({"_target_": target}, ("a", "b"), "task")


def test_an_answer_is_the_likeliest_label_with_rounded_probabilities():
    written = TASK.written({"probabilities": [0.1, 0.7000004, 0.2]})

    assert written == {"label": "yes", "probabilities": {"no": 0.1, "yes": 0.7, "maybe": 0.2}}
    assert TASK.cell_names == ("label", "probability/no", "probability/yes", "probability/maybe")


def test_several_runs_answer_by_their_mean_whatever_the_order_of_their_labels():
    other = ClassificationTask(("maybe", "no", "yes"))
    TASK.check_combines(other, "one", "two")

    found = TASK.combine(
        [(TASK, {"probabilities": [1.0, 0.0, 0.0]}), (other, {"probabilities": [0.5, 0.25, 0.25]})]
    )

    assert found == {"probabilities": [0.625, 0.125, 0.25]}


def test_runs_with_other_labels_or_another_task_are_refused():
    with pytest.raises(CheckpointError, match="the labels differ, 'maybe' only in one and 'x' o"):
        TASK.check_combines(ClassificationTask(("no", "yes", "x")), "one", "two")

    @dataclass(frozen=True)
    class Other(ClassificationTask):
        combines = False

    with pytest.raises(CheckpointError, match="of several runs on classification cannot be comb"):
        Other(("a", "b")).check_combines(TASK, "one", "two")


class Windows:
    example_of = np.array([0, 0, 1, 2, 2, 2])

    def __len__(self):
        return len(self.example_of)


def test_rows_are_put_together_by_example_in_order():
    rows = {row: {"said": row} for row in (5, 1, 0, 3, 4)}

    found = by_example(Windows(), rows)

    assert {example: list(own) for example, own in found.items()} == {0: [0, 1], 2: [3, 4, 5]}


def test_some_examples_are_scored_with_all_their_windows():
    split = Split("train", Windows(), example_of=Windows.example_of)

    assert some_of(split, 2).order.tolist() == [0, 1, 3, 4, 5]
    assert some_of(split, 3) is split


# --- runs that learnt nothing ------------------------------------------------------------------


def failure(accuracy, confusion):
    task = ClassificationTask(("animal", "number"))
    return task.failure({"loss": 1.0, "accuracy": accuracy}, {"confusion": confusion})


# A row of the table is what was right: 60 animals and 40 numbers.
@pytest.mark.parametrize(("accuracy", "failed"), [(0.6, True), (0.61, True), (0.63, False)])
def test_a_classifier_must_beat_the_most_frequent_label_by_a_margin(accuracy, failed):
    said = failure(accuracy, [[60, 0], [40, 0]])

    assert (said is not None) is failed
    if said:
        assert f"{100 * accuracy:.1f} % is no better than always answering animal (60.0 %)" in said


def test_the_most_frequent_label_is_that_of_the_examples_and_not_of_the_answers():
    said = failure(0.3, [[10, 20], [0, 70]])

    assert "always answering number (70.0 %)" in said


def test_of_very_many_labels_the_counts_of_each_tell_the_same():
    task = ClassificationTask(("animal", "number"))
    counts = {"labels": [[60, 0], [60, 40], [100, 0]]}

    assert task.failure({"accuracy": 0.6}, counts) == failure(0.6, [[60, 0], [40, 0]])


def test_where_all_examples_are_of_one_label_nothing_can_be_said():
    assert failure(1.0, [[50, 0], [0, 0]]) is None


def test_what_predicts_no_labels_cannot_fail_so():
    assert ClassificationTask(()).failure({"loss": 3.0}, {}) is None


def test_of_very_many_labels_there_is_no_linear_model_on_words():
    one = [Example("Where is it ?", 0), Example("How many ?", 1)]
    few, many = (ClassificationTask(tuple(map(str, range(count)))) for count in (256, 257))

    assert few.right_by_words(one, one) == 2
    assert many.right_by_words(one, one) is None


NOISE = ("the", "a", "of", "in", "one", "two", "new", "old", "big", "small")


def texts(count, word_of_label, seed=0):
    """Return texts of random words, with a word for their label somewhere among them."""
    drawn = random.Random(seed)
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
    drawn = random.Random(0)
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
