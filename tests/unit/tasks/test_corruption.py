"""Span corruption: how much is hidden, where, and what source and target that makes."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.text_to_text.corruption import SpanCorruption, partition
from transfer_cli.tasks.text_to_text.objective import PrefixLM
from transfer_cli.testing.objectives import check_objective

WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80, sentinels=20).make(lambda: iter([WORDS] * 3))
CLS, SEP = TOKENIZER.cls, TOKENIZER.sep
SENTINELS = range(1000, 1100)


@pytest.mark.parametrize(
    ("rate", "mean", "length", "counts"),
    [
        (0.15, 3, 512, (77, 26)), (0.15, 3, 100, (15, 5)), (0.15, 3, 20, (3, 1)),
        (0.15, 3, 2, (1, 1)), (0.15, 3, 1, (0, 0)), (0.15, 3, 0, (0, 0)),
        (0.5, 1, 10, (5, 5)), (0.9, 1, 10, (9, 1)), (0.5, 3, 64, (32, 11)),
    ],
)  # fmt: skip
def test_how_much_is_hidden_depends_on_the_length_alone(rate, mean, length, counts):
    assert SpanCorruption(rate, mean).counts(length) == counts


def test_source_and_target_give_a_text_back_and_hide_the_share_that_is_asked():
    draws, how = np.random.default_rng(0), SpanCorruption()
    for _ in range(1000):
        text = draws.integers(0, 500, draws.integers(2, 300)).tolist()
        source, target = how.source_and_target(text, SENTINELS, draws.random((len(text), 2)))

        hidden: dict[int, list[int]] = {}
        for token in target:
            if token in SENTINELS:
                spans = hidden.setdefault(token, [])
            else:
                spans.append(token)
        back = [each for token in source for each in hidden.get(token, [token])]
        assert back == text
        assert [token for token in source if token in SENTINELS] == [*hidden][:-1]
        assert [*hidden] == [*SENTINELS[: len(hidden)]]
        assert hidden.pop([*hidden][-1]) == []
        assert all(hidden.values())
        assert source[0] == text[0]
        assert len(source) + len(target) == how.grown(len(text))
        share = sum(map(len, hidden.values())) / len(text)
        assert abs(share - 0.15) <= max(1 / len(text), 0.5 if len(text) < 4 else 0)


def test_every_partition_is_equally_likely():
    draws = np.random.default_rng(0).random((3000, 5))

    found = Counter(tuple(partition(5, 3, each)) for each in draws)

    assert len(found) == 6  # 4 gaps, of which 2 are cut
    assert all(sum(each) == 5 and min(each) > 0 for each in found)
    assert 420 < min(found.values()) < max(found.values()) < 580


def at_work(direction="causal", positions=40, tokenizer=TOKENIZER):
    objective = PrefixLM(corrupt=0.15)
    objective.setup(TaskInfo(tokenizer))
    objective.modules(tiny.backbone(direction=direction, positions=positions))
    return objective


def texts(*lengths):
    words = TOKENIZER.encode(WORDS)
    return tiny.rows_to_batch([(words * 9)[:length] for length in lengths])


@pytest.mark.parametrize(
    ("direction", "begin", "end"), [("causal", [], CLS), ("bidirectional", [CLS], SEP)]
)
def test_a_corrupted_text_is_laid_out_as_texts_to_texts_are(direction, begin, end):
    batch = at_work(direction).prepare(texts(20, 7), ExampleNoise(0, "test"))

    for row, length in enumerate((20, 7)):
        prefix, real = int(batch["prefix"][row]), batch["mask"][row]
        tokens, target = batch["tokens"][row][real].tolist(), batch["target"][row]
        assert tokens[: len(begin)] == begin
        assert (tokens[prefix - 1], tokens[-1]) == (SEP, end)
        assert len(tokens) == length + 3 + len(begin) + 2
        assert target[target != IGNORE].tolist() == tokens[prefix:]
        assert (target != IGNORE).nonzero()[0] == prefix - 1
        places = range(batch["segment"].shape[1])
        assert batch["segment"][row].tolist() == [prefix <= n < len(tokens) for n in places]


def test_of_a_longer_text_each_visit_takes_another_part_that_fits():
    objective, batch = at_work(positions=24), texts(60)

    found = [objective.prepare(batch, ExampleNoise(0, "train", step)) for step in range(30)]

    assert {each["tokens"].shape[1] for each in found} == {24}
    assert len({tuple(each["tokens"][0].tolist()) for each in found}) > 5
    again = objective.prepare(batch, ExampleNoise(0, "train", 7))
    assert all(torch.equal(again[key], found[7][key]) for key in again)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_corrupted_texts_keep_the_contract_of_objectives(direction):
    objective = PrefixLM(corrupt=0.3, corrupt_length=2)
    objective.direction = direction

    check_objective(objective, TaskInfo(TOKENIZER), texts(20, 7, 13, 2))


def test_a_text_of_one_token_has_nothing_to_hide():
    batch = at_work().prepare(texts(1, 4), ExampleNoise(0, "test"))

    assert (batch["target"] != IGNORE).any(1).tolist() == [False, True]


def test_the_token_of_classes_is_no_part_of_a_text():
    batch = tiny.rows_to_batch([[*TOKENIZER.encode(WORDS), CLS]])

    found = at_work().prepare(batch, ExampleNoise(0, "test"))

    assert (found["tokens"] == CLS).sum() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"corrupt": 1.0}, "corrupt is 1.0, expected between 0 and 1"),
        ({"corrupt": 0.1, "corrupt_length": 0.5}, "corrupt_length is 0.5, expected 1 or more"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        PrefixLM(**options)


def test_too_few_sentinels_are_refused_with_what_to_type():
    few = WordPiece(size=80, sentinels=2).make(lambda: iter([WORDS] * 3))

    with pytest.raises(ConfigError, match=r"up to 2 spans .* 2 sentinels.*tokenizer.sentinels=3"):
        at_work(tokenizer=few)
