import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.added import merge, unmerge
from transfer_cli.model.lora import LowRank, LowRankLinear, add_lora

TARGETS = ("query", "key", "value", "output", "feed_forward")
TOKENS = torch.arange(5, 25).view(2, 10)
MASK = torch.arange(10) < torch.tensor([[10], [6]])


def with_lora(targets, rank=3, dropout=0.0, **changes):
    backbone = tiny.backbone(**changes)
    for block in backbone.blocks:
        add_lora(block, targets, rank=rank, alpha=6.0, dropout=dropout)
    return backbone.eval()


def top(backbone):
    return backbone(TOKENS, MASK)[-1].detach()


def added(backbone):
    return sum(p.numel() for name, p in backbone.named_parameters() if ".lora." in name)


@settings(max_examples=30)
@given(
    targets=st.sets(st.sampled_from(TARGETS), min_size=1).map(tuple),
    rank=st.integers(1, 20),
    feedforward=st.integers(1, 40),
)
def test_a_matrix_gets_rank_times_its_rows_and_columns(targets, rank, feedforward):
    backbone = with_lora(targets, rank, width=16, feedforward=feedforward)

    square = sum(target != "feed_forward" for target in targets) * rank * (16 + 16)
    both = 2 * rank * (16 + feedforward) if "feed_forward" in targets else 0
    assert added(backbone) == 3 * (square + both)


@pytest.mark.parametrize("target", TARGETS)
def test_fresh_updates_change_no_output(target):
    plain, backbone = tiny.backbone().eval(), with_lora((target,))

    assert torch.equal(top(plain), top(backbone))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_changes_the_output_once_it_has_learnt(target):
    backbone = with_lora((target,))
    before = top(backbone)

    tiny.lively(backbone.blocks[1].get_submodule("attention" if target in TARGETS[:4] else ""))

    assert not torch.allclose(before, top(backbone))


@pytest.mark.parametrize(("target", "rows"), [("query", 0), ("key", 16), ("value", 32)])
def test_a_packed_update_reaches_its_own_rows_only(target, rows):
    layer = with_lora((target,)).blocks[0].attention.packed
    hidden = torch.randn(5, 16)
    plain = nn.functional.linear(hidden, layer.weight, layer.bias)
    tiny.lively(layer.lora)

    changed = (layer(hidden) != plain).any(0)

    assert changed[rows : rows + 16].all()
    assert changed.sum() == 16


def test_an_update_is_alpha_over_rank_times_b_a():
    layer = with_lora(("output",), rank=3).blocks[0].attention.output
    update = layer.lora["all"]
    tiny.lively(layer)
    hidden = torch.randn(5, 16)

    out = layer(hidden)

    changed = layer.weight + 6.0 / 3 * update.up @ update.down
    assert_close(out, hidden @ changed.T + layer.bias)


def test_fresh_factors_are_kaiming_uniform_and_zero():
    update = LowRank(400, slice(0, 50), rank=8, scale=1.0, dropout=0.0)

    # Kaiming with a = sqrt(5): uniform within 1 / sqrt(inputs).
    bound = 1 / math.sqrt(400)
    assert float(update.down.detach().abs().max()) == pytest.approx(bound, rel=0.02)
    assert float(update.down.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not update.up.any()


def test_the_input_of_an_update_is_dropped_in_training_and_that_of_the_matrix_never():
    layer = with_lora(("output",), dropout=0.9).blocks[0].attention.output.train()
    hidden = torch.randn(5, 16)

    plain = layer(hidden)
    tiny.lively(layer.lora)

    assert torch.equal(plain, nn.functional.linear(hidden, layer.weight, layer.bias))
    assert not torch.equal(layer(hidden), layer(hidden))
    assert torch.equal(layer.eval()(hidden), layer(hidden))


def test_loaded_tensors_keep_their_names_and_stay_the_same_parameters():
    backbone = tiny.backbone()
    before = dict(backbone.named_parameters())

    for block in backbone.blocks:
        add_lora(block, TARGETS, rank=2, alpha=4.0, dropout=0.0)

    after = dict(backbone.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert all(".lora." in name for name in after.keys() - before.keys())


def test_drawing_weights_does_not_depend_on_what_is_replaced():
    torch.manual_seed(0)
    expected = LowRank(16, slice(0, 16), rank=2, scale=1.0, dropout=0.0).down
    block = tiny.backbone().blocks[0]
    torch.manual_seed(0)

    add_lora(block, ("output",), rank=2, alpha=2.0, dropout=0.0)

    assert torch.equal(block.attention.output.lora["all"].down, expected)


@pytest.mark.parametrize("targets", [("query", "value"), TARGETS])
@pytest.mark.parametrize("residual", ["pre", "post", "tutorial"])
def test_a_merged_model_has_plain_names_and_the_same_outputs(residual, targets):
    backbone = with_lora(targets, residual=residual)
    tiny.lively(backbone, std=0.2)
    before = top(backbone)

    merge(backbone)

    assert backbone.state_dict().keys() == tiny.backbone(residual=residual).state_dict().keys()
    assert not any(isinstance(module, LowRankLinear) for module in backbone.modules())
    assert_close(top(backbone), before, rtol=1e-5, atol=1e-5)


def test_unmerging_restores_the_matrices_bit_for_bit():
    backbone = with_lora(TARGETS)
    tiny.lively(backbone)
    before, parameters = tiny.weights_of(backbone), list(backbone.parameters())

    replaced = merge(backbone)
    unmerge(backbone, replaced)

    assert tiny.same(backbone.state_dict(), before)
    # An optimizer that holds the parameters still holds those of the model.
    assert [id(p) for p in backbone.parameters()] == [id(p) for p in parameters]


def test_merging_keeps_what_is_frozen_frozen():
    backbone = with_lora(("value",))
    backbone.blocks[0].attention.packed.weight.requires_grad_(requires_grad=False)

    merge(backbone)

    packed = [block.attention.packed.weight.requires_grad for block in backbone.blocks]
    assert packed == [False, True, True]


def test_a_copy_shares_nothing():
    backbone = with_lora(("value",))
    copied = copy.deepcopy(backbone)

    tiny.lively(copied)

    assert not tiny.same(backbone.state_dict(), copied.state_dict())
    assert torch.equal(top(backbone), top(tiny.backbone().eval()))


def test_a_block_takes_updates_once():
    block = with_lora(("value",)).blocks[0]

    with pytest.raises(ValueError, match="has LoRA already"):
        add_lora(block, ("query",), rank=2, alpha=4.0, dropout=0.0)
