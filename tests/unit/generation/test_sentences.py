import math

import pytest
import torch

from tests import tiny
from transfer_cli.data.minimal_pairs import MinimalPair
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import DataError
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.generation.sentences import (
    JudgedPair,
    SentenceScorer,
    accuracy_by_group,
    judge_pairs,
    longer_wins,
)
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.masked_lm import MaskedLM

TEXTS = ["The river is near .", "The rivers are near the river .", "Rivers !"]
TOKENIZER = WordPiece(60).make(lambda: iter(TEXTS))
KINDS = {"causal": CausalLM, "bidirectional": MaskedLM}


def scorer(direction, *, uniform=False, batch=2, reads=None):
    torch.manual_seed(0)
    trunk = Backbone(tiny.shape(direction=direction), TOKENIZER.size)
    model = TransferModel(trunk, tiny.bound(KINDS[direction]()).modules(trunk)).eval()
    tiny.lively(model)
    if uniform:
        with torch.no_grad():
            trunk.token_embedding.weight.zero_()
            model.heads["lm"].bias.zero_()
    reads = reads or (PromptLayout(TOKENIZER) if direction == "causal" else "sentence")
    return SentenceScorer(model, TOKENIZER, reads, batch=batch, scores_first=True, within_word=True)


@torch.no_grad()
@pytest.mark.parametrize("direction", KINDS)
def test_a_model_that_knows_nothing_gives_each_token_its_share_of_the_vocabulary(direction):
    sums, counts = scorer(direction, uniform=True).score(TEXTS)

    assert counts == [len(row) for row in TOKENIZER.encode_batch(TEXTS)]
    assert sums == pytest.approx([-count * math.log(TOKENIZER.size) for count in counts], rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("direction", KINDS)
def test_scores_do_not_depend_on_the_batch(direction):
    alone, together = (scorer(direction, batch=batch).score(TEXTS)[0] for batch in (1, 8))

    assert alone == pytest.approx(together, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("direction", KINDS)
def test_pairs_the_other_way_round_are_judged_the_other_way_round(direction):
    pairs = [MinimalPair(TEXTS[0], TEXTS[1], "a"), MinimalPair(TEXTS[1], TEXTS[2], "b"),
             MinimalPair(TEXTS[2], TEXTS[2], "b")]  # fmt: skip
    turned = [MinimalPair(each.bad, each.good, each.group) for each in pairs]

    judged, others = (judge_pairs(scorer(direction), each) for each in (pairs, turned))

    assert [1 - each.score for each in judged] == [each.score for each in others]
    assert judged[2].score == 0.5
    assert [each.more_tokens for each in judged] == [-each.more_tokens for each in others]


def judged(*found):
    pair = {name: MinimalPair("a", "b", name) for name in ("one", "two")}
    return [JudgedPair(pair[group], good, bad, more) for group, good, bad, more in found]


def test_accuracy_is_told_by_group_with_its_interval():
    found = accuracy_by_group(
        judged(("one", -1, -2, 0), ("two", -1, -1, 0), ("one", -3, -2, 0), ("one", 0, -1, 0))
    )

    assert [(each.group, each.accuracy, each.count) for each in found] == [
        ("one", pytest.approx(2 / 3), 3), ("two", 0.5, 1),
    ]  # fmt: skip
    assert all(each.low < each.accuracy < each.high for each in found[:1])
    assert str(found[0]).startswith("one: 66.7 % of 3 (")


def test_the_longer_one_wins_where_it_is_likelier():
    pairs = judged(("one", -1, -2, 2), ("one", -1, -2, -1), ("one", -1, -2, 0))

    assert longer_wins(pairs) == 0.5
    assert longer_wins(pairs[2:]) is None


def test_a_sentence_that_is_too_long_is_named():
    with pytest.raises(DataError, match="and the model has 32 positions"):
        scorer("causal").score(["river " * 40])
