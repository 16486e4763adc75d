"""The task of `docs/example`: it keeps the contract, and a long sentence is several rows."""

import sys
from pathlib import Path

import numpy as np
import pytest

from transfer_cli.batch import IGNORE
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.testing.tasks import check_task

EXAMPLE = Path(__file__).parents[3] / "docs" / "example"
WORDS = ["Where", "does", "the", "Old", "Man", "end", "?", "Nothing", "here", "Rhine", "and",
         "Main"]  # fmt: skip


@pytest.fixture
def tagging(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE)])
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"mylab"})
    from mylab import tagging

    yield tagging
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.fixture(params=["wordpiece", "bytes"])
def tokenizer(request):
    recipe = {"wordpiece": WordPiece(size=60), "bytes": BytePairs(size=280)}[request.param]
    return recipe.make(lambda: iter([" ".join(WORDS)]))


def test_the_own_task_keeps_the_contract(tagging, tokenizer):
    check_task(tagging.Tagging, tagging.TagWords(), tokenizer)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_every_word_has_its_tag_in_exactly_one_window(tagging, tokenizer, direction):
    task = tagging.Tagging(("O", "B-CITY", "I-CITY"))
    tags = ["O", "B-CITY", "I-CITY", "O"] * 3
    examples = [tagging.Sentence(WORDS, tags), tagging.Sentence(WORDS[:2], tags[:2])]
    whole = task.encode(examples, tokenizer, 200, direction)
    assert whole.example_of.tolist() == [0, 1]

    for length in (6, 8, 11):
        data = task.encode(examples, tokenizer, length, direction)

        assert (data.example_of == 0).sum() > 1
        target_RT = data.batch(np.arange(len(data)))["target"]
        found = {row: {"tags": target.tolist()} for row, target in enumerate(target_RT)}
        own = {row: said for row, said in found.items() if data.example_of[row] == 0}
        assert task.answer(data, 0, own) == {"words": WORDS, "tags": tags}
        assert int((target_RT != IGNORE).sum()) == 14
        result = task.result(data, 0, own)
        assert (result.expected, result.score) == (result.predicted, 1)


def test_the_f1_is_of_whole_sentences(tagging, tokenizer):
    task = tagging.Tagging(("O", "B-CITY", "I-CITY"))
    examples = [tagging.Sentence(WORDS, ["B-CITY", *["I-CITY"] * 11])]
    data = task.encode(examples, tokenizer, 6, "causal")
    target_RT = data.batch(np.arange(len(data)))["target"]
    said = {row: {"tags": target.tolist()} for row, target in enumerate(target_RT)}

    assert task.scores(data, {0: said}) == {"span_f1": 1.0}
    said[1]["tags"][data.read_at[1][0]] = 0
    assert task.scores(data, {0: said}) == {"span_f1": 0.0}
