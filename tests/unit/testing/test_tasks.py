"""The contract of tasks passes for ours, and finds what breaks it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.base import Result
from transfer_cli.tasks.choice.task import ChoiceTask, MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.objective import Cloze
from transfer_cli.tasks.cloze.task import ClozeTask
from transfer_cli.tasks.dialog.objective import NextUtterance
from transfer_cli.tasks.dialog.task import DialogTask
from transfer_cli.tasks.multilabel.objective import Multilabel
from transfer_cli.tasks.multilabel.task import MultilabelTask
from transfer_cli.tasks.regression import Regression, RegressionTask
from transfer_cli.tasks.span.objective import SpanExtraction
from transfer_cli.tasks.span.task import SpanTask
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.tasks.text_to_text.objective import PrefixLM
from transfer_cli.tasks.text_to_text.task import TextToTextTask
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
