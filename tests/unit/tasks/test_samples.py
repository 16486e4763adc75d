"""The embedded samples: they show nothing of the test questions, and no answer by its form."""

from itertools import chain

import numpy as np
import pytest

from transfer_cli.data import sample
from transfer_cli.tasks.samples import SAMPLES, EmbeddedSample

SIZES = {
    "pairs": (1152, 768, 2304), "spans": (1200, 120, 300), "tags": (600, 120, 300),
    "chat": (500, 100, 100),
}  # fmt: skip
"""Of training, validation and test; of others (144, 96, 288)."""

ABOUT = {
    "spans": lambda example: example.answers,
    "tags": lambda example: [
        word for word, tag in zip(example.words, example.label, strict=True) if tag
    ],
    "choices": lambda example: [example.context],
    "dialog": lambda example: [example.history[-1]],
    "chat": lambda example: [example.messages[0]["content"]],
    "text_pairs": lambda example: [example.source],
}
"""What an example is about; of others the text."""


def splits_of(name, seed=0):
    return EmbeddedSample(name).load(None, seed).splits


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_asked_about_for_a_test_is_not_learnt_whatever_the_seed(name):
    splits = splits_of(name)

    about = ABOUT.get(name, lambda example: [example.text])
    learnt, *others = (
        {*chain.from_iterable(map(about, splits[split]))}
        for split in ("train", "validation", "test")
    )
    assert learnt.isdisjoint(set().union(*others))
    sizes = {split: len(examples) for split, examples in splits.items()}
    assert tuple(sizes.values()) == SIZES.get(name, (144, 96, 288))
    assert splits == splits_of(name, seed=1)


def test_each_kind_of_thing_is_asked_about_equally_often():
    for examples in splits_of("numbers").values():
        assert set(np.bincount([int(example.value) for example in examples])) == {
            len(examples) // 6
        }
    for examples in splits_of("labels").values():
        count = [sum(at in example.label for example in examples) for at in range(4)]
        assert count == [len(examples) // 3] * 4
        assert sum(example.label == () for example in examples) == len(examples) // 6


def test_no_place_tells_the_right_choice_and_each_world_has_its_own():
    for examples in splits_of("choices").values():
        counts = np.array([len(example.choices) for example in examples])
        assert set(counts) == {2, 3, 4, 5}
        first = np.mean([example.label == 0 for example in examples])
        assert first == pytest.approx(np.mean(1 / counts), abs=0.12)
    for turns in splits_of("dialog").values():
        assert {len(turn.choices) for turn in turns} == {6}
    assert sample.choices(1) != sample.choices(0)


def test_answers_stand_where_they_are_said_to_and_some_questions_have_none():
    examples = splits_of("spans")["test"]

    for example in examples:
        assert not example.answers or example.context.startswith(example.answers[0], example.start)
    assert sum(not example.answers for example in examples) == 60


def test_some_names_have_two_words_and_few_labels_keep_each_tag():
    data, few = (EmbeddedSample("tags", labelled=few).load(None, 0) for few in (None, 30))

    tags = [tag for example in data.splits["train"] for tag in example.label]
    assert len(data.labels) == 13
    assert sum(data.labels[tag][0] == "I" for tag in tags) == 200
    assert len(few.splits["train"]) == 30
    assert {tag for example in few.splits["train"] for tag in example.label} == {*range(13)}
