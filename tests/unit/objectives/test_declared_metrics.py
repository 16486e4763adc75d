"""Which end of each measure is good: it decides the best weights, a search and a report's order."""

import pytest

from tests import tiny
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.distil_lm import DistilLM
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.relation_distillation import RelationDistillation
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.objectives.source_distillation import SourceDistillation

OBJECTIVES = (
    Classification, CausalLM, MaskedLM, lambda: SourceDistillation(CausalLM()),
    lambda: DistilLM(("RUN",), MaskedLM()), lambda: RelationDistillation(("RUN",)), SentencePair,
    ReplacedTokens, lambda: ReplacedTokens("replace"),
)  # fmt: skip


@pytest.mark.parametrize("make", OBJECTIVES)
def test_shares_that_are_right_are_better_when_higher_and_nothing_else_is(make):
    declared = tiny.bound(make(), MaskedLM()).declared_metrics()

    assert declared
    for metric in declared:
        assert metric.higher_is_better == (metric.name in ("accuracy", "macro_f1", "auc")), (
            metric.name
        )
