import copy

import pytest
import torch

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, LoRA, make_edit
from transfer_cli.analysis.similarity.moved_weights import ALL, moved_weights
from transfer_cli.model.added import merge
from transfer_cli.objectives.causal_lm import CausalLM


def pair(**changes):
    start = tiny.model(CausalLM(), **changes)
    tiny.lively(start)
    return start, copy.deepcopy(start)


def found(model, start):
    return {(each.group, each.kind): each for each in moved_weights(model, start)}


def test_the_same_weights_have_not_moved():
    start, model = pair()

    assert {each.relative for each in found(model, start).values()} == {0.0}


@torch.no_grad()
def test_a_group_moves_by_the_norm_of_its_change():
    start, model = pair()
    for name, weight in model.named_parameters():
        if ".blocks.1.attention." in name:
            weight *= 1.1

    moved = found(model, start)
    assert moved["block.1", "attention"].relative == pytest.approx(0.1, rel=1e-5)
    assert 0 < moved["block.1", ALL].relative < 0.1
    assert 0 < moved[ALL, "attention"].relative < moved["block.1", "attention"].relative
    assert moved["block.1", "feed_forward"].relative == 0
    assert moved["block.0", ALL].relative == moved["embeddings", ALL].relative == 0


def test_groups_and_kinds_hold_every_parameter_once():
    start, model = pair(**tiny.MODERN)

    moved = found(model, start)
    total = sum(each.numel() for each in model.parameters())
    assert moved[ALL, ALL].parameters == moved[ALL, ALL].compared == total
    for place in (0, 1):
        parts = [each for key, each in moved.items() if key[1 - place] == ALL != key[place]]
        assert sum(each.parameters for each in parts) == total
    assert {kind for _, kind in moved} == {
        ALL, "embeddings", "attention", "feed_forward", "norms", "head",
    }  # fmt: skip


def test_low_rank_updates_are_in_what_they_change_and_stand_apart():
    start, model = pair()
    make_edit(LoRA(rank=2, targets=["query"]), "lora", model, {})
    tiny.lively(model)
    merged = copy.deepcopy(model)
    merge(merged)

    moved, wanted = found(model, start), found(merged, start)
    assert moved["block.0", "attention"].relative == wanted["block.0", "attention"].relative > 0
    assert moved["added.0", "added"].relative is None
    assert moved["added.0", "added"].parameters > 0
    assert moved[ALL, ALL].parameters == wanted[ALL, ALL].parameters


def test_what_cannot_be_compared_is_counted_and_not_measured():
    start, _ = pair()
    other, _ = pair(feedforward=48)
    make_edit(Adapters(2), "bottleneck", other, {})

    moved = found(other, start)
    assert moved["block.0", "attention"].relative == 0
    assert moved["block.0", "feed_forward"].compared < moved["block.0", "feed_forward"].parameters
    assert moved["added.0", "added"].compared == 0


def test_the_model_that_is_looked_at_stays_as_it_was():
    start, model = pair()
    make_edit(LoRA(rank=2, targets=["query"]), "lora", model, {})
    before, names = tiny.weights_of(model), [name for name, _ in model.named_modules()]

    moved_weights(model, start)

    assert tiny.same(before, tiny.weights_of(model))
    assert names == [name for name, _ in model.named_modules()]
