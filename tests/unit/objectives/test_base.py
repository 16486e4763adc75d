import pytest
import torch

from tests import tiny
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.relation_distillation import RelationDistillation
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.objectives.with_teachers import DistilLM, SourceDistillation


def test_an_encoding_is_computed_once_and_only_when_asked():
    model = tiny.model(Classification())
    calls = []
    model.backbone.register_forward_hook(lambda *_: calls.append(1))
    first, second = (Encoding(model, tiny.all_of(tiny.Questions(examples=4))) for _ in range(2))

    assert not calls
    states, top = first.states, first.top
    assert len(calls) == 1
    alone = second.top, second.top

    assert len(calls) == 2
    assert torch.equal(top, states[-1])
    assert all(torch.equal(each, top) for each in alone)


def test_in_an_evaluation_a_head_runs_once_for_measures_and_results():
    objective = Classification()
    model = tiny.model(objective).eval()
    calls = []
    model.heads["class"].register_forward_hook(lambda *_: calls.append(1))
    batch = tiny.all_of(tiny.Questions(examples=4))
    encoding = Encoding(model, batch)

    sums = objective.metric_sums(model, batch, encoding)
    results = objective.example_results(model, batch, encoding)

    assert len(calls) == 1
    torch.testing.assert_close(results.loss.sum(), sums["loss"])


# Which end of each measure is good decides the best weights, a search and a report's order.
OBJECTIVES = (
    Classification, CausalLM, MaskedLM, lambda: SourceDistillation(CausalLM()),
    lambda: DistilLM(("RUN",), MaskedLM()), lambda: RelationDistillation(("RUN",)), SentencePair,
    ReplacedTokens, lambda: ReplacedTokens("replace"),
)  # fmt: skip


SHARES = ("accuracy", "token_accuracy", "macro_f1", "auc")


@pytest.mark.parametrize("make", OBJECTIVES)
def test_shares_that_are_right_are_better_when_higher_and_nothing_else_is(make):
    declared = tiny.bound(make(), MaskedLM()).declared_metrics()

    assert declared
    for metric in declared:
        assert metric.higher_is_better == (metric.name in SHARES), metric.name
