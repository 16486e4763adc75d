"""The made-up encyclopedia and its questions: what makes pretraining decide."""

import hashlib
import json
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from transfer_cli.data import sample

FEWEST_MENTIONS = 100
SPLITS = ["train", "validation", "test"]

encyclopedia = cache(sample.encyclopedia)


def asked_names(seed: int) -> dict[str, list[tuple[str, int]]]:
    """Return each split's names, in the questions' order, each with the number of its kind."""
    _, questions = sample.questions(seed)
    kinds = {name: label for label, names in enumerate(sample._names(seed)) for name in names}
    return {
        split: [(word, kinds[word]) for text, _ in asked for word in text.split() if word in kinds]
        for split, asked in questions.items()
    }


def wording(text: str, seed: int) -> str:
    names = {name for group in sample._names(seed) for name in group}
    return " ".join("NAME" if word in names else word for word in text.split())


def test_the_default_world_is_the_same_on_every_machine():
    text = json.dumps([sample.encyclopedia(), sample.questions()])

    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "c9ff313e023c21b15270d8a92727cc33c8939f2076cd66d8b249be3a79f251d7"
    )


def test_another_seed_makes_another_world():
    assert sample.questions(1) != sample.questions(0)
    assert sample.encyclopedia(1) != sample.encyclopedia(0)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_question_holds_one_name_and_its_label_is_the_kind_of_the_name(seed):
    _, questions = sample.questions(seed)

    for split, names in asked_names(seed).items():
        assert [label for _, label in names] == [label for _, label in questions[split]]


@pytest.mark.parametrize("seed", [0, 1])
def test_no_name_is_asked_about_in_two_splits(seed):
    names = [{name for name, _ in asked} for asked in asked_names(seed).values()]

    assert len(set.union(*names)) == sum(map(len, names))


@pytest.mark.parametrize("split", SPLITS)
def test_every_label_has_equally_many_questions(split):
    labels, questions = sample.questions()

    counts = Counter(label for _, label in questions[split])

    assert sorted(counts) == list(range(len(labels)))
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("split", SPLITS)
def test_the_wording_says_nothing_about_the_label(split):
    labels, questions = sample.questions()

    wordings = [
        Counter(wording(text, 0) for text, label in questions[split] if label == number)
        for number in range(len(labels))
    ]

    assert all(one == other for one, other in pairwise(wordings))


def test_no_question_is_asked_twice():
    _, questions = sample.questions()

    texts = [text for asked in questions.values() for text, _ in asked]

    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_encyclopedia_mentions_every_asked_name_often(seed):
    words = Counter(word for line in encyclopedia(seed)["train"] for word in line.split())

    fewest = min(words[name] for asked in asked_names(seed).values() for name, _ in asked)

    assert fewest >= FEWEST_MENTIONS


def test_the_encyclopedia_knows_every_word_of_the_questions_but_no_question():
    whole = "\n".join(encyclopedia(0)["train"])
    _, questions = sample.questions()
    texts = [text for asked in questions.values() for text, _ in asked]

    unknown = {word for text in texts for word in text.split()} - set(whole.split())

    assert not unknown
    assert not any(text in whole for text in texts)


def test_an_article_keeps_to_one_kind():
    kinds = {name: label for label, names in enumerate(sample._names(0)) for name in names}
    articles = "\n".join(encyclopedia(0)["test"]).split("\n= ")

    for article in articles:
        assert len({kinds[word] for word in article.split() if word in kinds}) == 1


def test_lines_have_the_form_of_tokenised_wikitext():
    for lines in encyclopedia(0).values():
        for line, following in pairwise(lines):
            assert (line == "") != (following == "")
            assert line == " ".join(line.split())
            assert line == "" or line.endswith((".", "?")) or line == f"= {line[2:-2]} ="
