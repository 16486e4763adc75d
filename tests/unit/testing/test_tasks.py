"""The contract of a task: every task of ours and one of one's own keeps it, broken ones do not."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from transfer_cli.batch import IGNORE
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.base import Result
from transfer_cli.tasks.choice.task import ChoiceTask, MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.task import Cloze, ClozeTask
from transfer_cli.tasks.dialog.objective import NextUtterance
from transfer_cli.tasks.dialog.task import DialogTask
from transfer_cli.tasks.multilabel import Multilabel, MultilabelTask
from transfer_cli.tasks.regression import Regression, RegressionTask
from transfer_cli.tasks.span.objective import SpanExtraction
from transfer_cli.tasks.span.task import SpanTask
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.tasks.text_to_text.task import PrefixLM, TextToTextTask
from transfer_cli.testing.tasks import check_task


@pytest.fixture(scope="module")
def tokenizer():
    _, examples = ClassificationTask.sample()
    return WordPiece(size=60).make(lambda: iter([example.text for example in examples]))


def test_classification_keeps_the_contract(tokenizer):
    check_task(ClassificationTask, Classification(pooling="mean"), tokenizer)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_cloze_keeps_the_contract(direction, tokenizer, monkeypatch):
    monkeypatch.setattr(Cloze, "direction", direction)
    check_task(ClozeTask, Cloze("{text} {mask}"), tokenizer)


def test_regression_keeps_the_contract(tokenizer):
    check_task(RegressionTask, Regression(pooling="mean"), tokenizer)


def test_choice_keeps_the_contract(tokenizer):
    check_task(ChoiceTask, MultipleChoice(pooling="mean"), tokenizer)


@pytest.mark.parametrize("masked", [True, False])
def test_span_extraction_keeps_the_contract(tokenizer, masked):
    check_task(SpanTask, SpanExtraction(mask_question=masked), tokenizer)


@pytest.mark.parametrize("options", [{}, {"pos_weight": "balanced"}])
def test_multilabel_keeps_the_contract(tokenizer, options):
    check_task(MultilabelTask, Multilabel(pooling="mean", **options), tokenizer)


def test_dialog_keeps_the_contract(tokenizer):
    check_task(DialogTask, NextUtterance(pooling="mean", reply_tokens=3), tokenizer)


@pytest.mark.parametrize("label_all", [False, True])
def test_tagging_keeps_the_contract(tokenizer, label_all, monkeypatch):
    task, examples = TaggingTask.sample()
    found = replace(task, label_all=label_all), examples
    monkeypatch.setattr(TaggingTask, "sample", lambda: found)
    check_task(TaggingTask, TokenTagging(), tokenizer)


def test_text_to_text_keeps_the_contract(tokenizer):
    check_task(TextToTextTask, PrefixLM(), tokenizer)


class LosesAnExample(ClassificationTask):
    def encode(self, examples, tokenizer, length, direction):
        return encode_texts(examples[1:], tokenizer, length, direction)


class NamesOtherFields(ClassificationTask):
    fields = ("labels",)


class LacksACell(ClassificationTask):
    @property
    def cell_names(self):
        return super().cell_names[1:]


class IsTooSure(ClassificationTask):
    def result(self, data, example, rows):
        return Result("a", "b", 2.0)


class ScoresWhatIsNotDeclared(ClassificationTask):
    def scores(self, data, rows):
        return {"rank": 1.0}


class IgnoresTheLength(ClassificationTask):
    def encode(self, examples, tokenizer, length, direction):
        return encode_texts(examples, tokenizer, 64, direction)


@dataclass(frozen=True)
class ForgetsItsOption(ClassificationTask):
    options: Sequence[str] = ("a",)

    def as_node(self):
        return super().node()

    @classmethod
    def sample(cls):
        _, examples = super().sample()
        return cls(("number", "place"), options=("b",)), examples


@pytest.mark.parametrize(
    ("task", "claim"),
    [
        (LosesAnExample, "rows belong to the examples"),
        (NamesOtherFields, "an answer has the keys"),
        (LacksACell, "there are 3 cells"),
        (IsTooSure, "a probability is 2.0"),
        (ScoresWhatIsNotDeclared, "answer_metrics does not declare {'rank'}"),
        (IgnoresTheLength, "a row is longer than 6"),
        (ForgetsItsOption, "builds another task"),
    ],
)
def test_the_contract_says_which_claim_does_not_hold(task, claim, tokenizer, monkeypatch):
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"tests"})

    with pytest.raises(AssertionError, match=claim):
        check_task(task, Classification(pooling="mean"), tokenizer)


def test_an_objective_for_something_else_is_found(tokenizer):
    with pytest.raises(AssertionError, match="the objective is for None, not classification"):
        check_task(ClassificationTask, CausalLM(), tokenizer)


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
def words_tokenizer(request):
    recipe = {"wordpiece": WordPiece(size=60), "bytes": BytePairs(size=280)}[request.param]
    return recipe.make(lambda: iter([" ".join(WORDS)]))


def test_the_own_task_keeps_the_contract(tagging, words_tokenizer):
    check_task(tagging.Tagging, tagging.TagWords(), words_tokenizer)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_every_word_has_its_tag_in_exactly_one_window(tagging, words_tokenizer, direction):
    task = tagging.Tagging(("O", "B-CITY", "I-CITY"))
    tags = ["O", "B-CITY", "I-CITY", "O"] * 3
    examples = [tagging.Sentence(WORDS, tags), tagging.Sentence(WORDS[:2], tags[:2])]
    whole = task.encode(examples, words_tokenizer, 200, direction)
    assert whole.example_of.tolist() == [0, 1]

    for length in (6, 8, 11):
        data = task.encode(examples, words_tokenizer, length, direction)

        assert (data.example_of == 0).sum() > 1
        target_RT = data.batch(np.arange(len(data)))["target"]
        found = {row: {"tags": target.tolist()} for row, target in enumerate(target_RT)}
        own = {row: said for row, said in found.items() if data.example_of[row] == 0}
        assert task.answer(data, 0, own) == {"words": WORDS, "tags": tags}
        assert int((target_RT != IGNORE).sum()) == 14
        result = task.result(data, 0, own)
        assert result.expected == result.predicted == " ".join(tags)


def test_the_f1_is_of_whole_sentences(tagging, words_tokenizer):
    task = tagging.Tagging(("O", "B-CITY", "I-CITY"))
    examples = [tagging.Sentence(WORDS, ["B-CITY", *["I-CITY"] * 11])]
    data = task.encode(examples, words_tokenizer, 6, "causal")
    target_RT = data.batch(np.arange(len(data)))["target"]
    said = {row: {"tags": target.tolist()} for row, target in enumerate(target_RT)}

    assert task.scores(data, {0: said}) == {"span_f1": 1.0}
    said[1]["tags"][data.read_at[1][0]] = 0
    assert task.scores(data, {0: said}) == {"span_f1": 0.0}
