"""Modules that edits add, and readouts. Legend: B batch, H heads, T queries, P learned keys."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import GatedPrefix, PALs
from transfer_cli.model.adapters import Adapter
from transfer_cli.model.added_embeddings import AddedRows
from transfer_cli.model.attention import AttentionInputs
from transfer_cli.model.block import BESIDE_BLOCK
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.positions import count_positions
from transfer_cli.model.prefix_attention import PrefixAttention
from transfer_cli.model.readout import ScalarMix


def test_a_fresh_adapter_can_learn():
    adapter = Adapter(200, 100, "relu")

    adapter(torch.randn(8, 200)).square().sum().backward()

    assert adapter.up.weight.grad.any()
    assert float(adapter.down.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert not adapter.down.bias.any()


TOKENS = torch.tensor([[2, 9, 3, 10], [11, 2, 2, 0]])


def test_rows_are_added_where_their_tokens_stand():
    rows = tiny.lively(AddedRows([2, 3], width=16))

    added = rows(TOKENS).detach()

    assert torch.equal(added[TOKENS == 2], rows.delta[0].expand(3, -1))
    assert torch.equal(added[TOKENS == 3], rows.delta[1:])
    assert not added[(TOKENS != 2) & (TOKENS != 3)].any()


@pytest.mark.parametrize("position_kind", ["learned", "sinusoidal"])
def test_a_row_is_seen_as_if_it_were_the_embedding_itself(position_kind):
    changed, added = (tiny.backbone(position_kind=position_kind) for _ in range(2))
    delta = torch.randn(16)
    with torch.no_grad():
        changed.token_embedding.weight[2] += delta
    added.new_rows = AddedRows([2], width=16)
    added.new_rows.delta.data[0] = delta

    assert_close(*(one.embed(TOKENS, count_positions(TOKENS > 0)) for one in (changed, added)))


def test_only_the_row_of_a_frozen_table_learns_and_only_from_its_own_token():
    backbone = tiny.backbone().requires_grad_(requires_grad=False)
    backbone.new_rows = AddedRows([2, 4], width=16)
    direction = torch.randn(2, 4, 16)

    (backbone(TOKENS, TOKENS > 0)[-1] * direction).sum().backward()

    gradient = backbone.new_rows.delta.grad
    assert gradient[0].any()
    assert not gradient[1].any()
    assert backbone.token_embedding.weight.grad is None


STATES = [torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(n)) * 3**n for n in range(4)]


def normed(state):
    centred = state - state.mean(-1, keepdim=True)
    return centred / (state.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize("norm", [True, False])
def test_a_mix_is_gamma_times_the_states_by_their_shares(norm):
    mix = ScalarMix(4, norm=norm)
    mix.weight.data = torch.tensor([0.3, -1.0, 2.0, 0.0])
    mix.gamma.data = torch.tensor(1.7)

    shares = torch.tensor([0.3, -1.0, 2.0, 0.0]).softmax(0)
    seen = [normed(state) if norm else state for state in STATES]
    expected = 1.7 * sum(share * state for share, state in zip(shares, seen, strict=True))
    assert_close(mix(STATES), expected)
    assert_close(mix.layer_weights(), shares)


def test_a_mix_refuses_another_number_of_layers():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ScalarMix(4, norm=False)(STATES[:3])


TEXTS = torch.arange(5, 25).view(2, 10)
ALL = torch.ones_like(TEXTS, dtype=torch.bool)
MASK = torch.arange(10) < torch.tensor([[10], [6]])
SHAPES = {
    "plain": {}, "modern": tiny.MODERN, "shared blocks": {"share": "all"},
    "relative bias": {"position_kind": "relative_bias", "direction": "bidirectional"},
}  # fmt: skip
CAUSAL = ("plain", "modern", "shared blocks")


def with_pals(**shape):
    model = tiny.lively(tiny.model(**shape).eval())
    PALs(3)(model, {})
    tiny.lively(model.backbone.shared_projections, std=0.5)
    for block in model.backbone.blocks:
        tiny.lively(block.sites[BESIDE_BLOCK], std=0.5)
    return model.backbone


@pytest.mark.parametrize("shape", CAUSAL)
def test_it_is_the_same_through_a_cache_and_through_a_fork_of_it(shape):
    backbone = with_pals(**SHAPES[shape])
    wanted = backbone(TEXTS, ALL, padded=False)[-1]
    first = KVCache(backbone.shape.depth, 4)
    backbone(TEXTS[:1, :4], ALL[:1, :4], padded=False, kv_cache=first)
    texts = torch.cat([TEXTS[:1, :4].expand(2, -1), TEXTS[:, 4:]], 1)

    states = tiny.read_in_parts(backbone, TEXTS, 3, KVCache(backbone.shape.depth, 10))
    later = tiny.read_in_parts(backbone, texts[:, 4:], 6, first.fork(2, 10))

    assert_close(states, wanted)
    assert_close(later, backbone(texts, ALL, padded=False)[-1][:, 4:])


def test_it_is_an_attention_between_two_shared_projections():
    layer = with_pals(heads=4).blocks[0].sites[BESIDE_BLOCK]
    hidden = torch.randn(1, 5, 16)
    (shared,) = layer._shared

    output = layer(hidden, AttentionInputs(causal=True))

    query, key, value = layer.packed(shared.encode(hidden))[0].chunk(3, dim=1)
    seen, mixed = torch.ones(5, 5).tril().bool(), torch.empty(5, 12)
    for head in range(4):
        at = slice(3 * head, 3 * head + 3)
        scores = query[:, at] @ key[:, at].T / math.sqrt(3)
        mixed[:, at] = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[:, at]
    assert_close(output[0], mixed @ shared.decode.weight.T)


@pytest.mark.parametrize("residual", ["pre", "post", "tutorial", "reordered", "parallel"])
def test_a_block_adds_it_to_its_last_sum(residual):
    block = with_pals(residual=residual).blocks[1]
    seen, hidden, inputs = {}, torch.randn(2, 5, 16), AttentionInputs(causal=True)
    block.sites[BESIDE_BLOCK].register_forward_hook(
        lambda module, given, out: seen.update(read=given[0], added=out)
    )
    block.attention.register_forward_hook(lambda module, given, out: seen.update(first=given[0]))

    out = block(hidden, inputs)
    del block.sites[BESIDE_BLOCK]
    block.sites["after_feed_forward"].register_forward_hook(
        lambda module, given, fed: fed + seen["added"]
    )

    assert torch.equal(seen["read"], seen["first"])
    assert_close(out, block(hidden, inputs))


def test_the_projections_are_held_once_and_a_copy_has_its_own():
    backbone = with_pals()
    names = [name for name in backbone.state_dict() if "shared_projections" in name]
    other = copy.deepcopy(backbone)

    with torch.no_grad():
        other.shared_projections.decode.weight.zero_()

    assert names == ["shared_projections.encode.weight", "shared_projections.decode.weight"]
    assert not [name for name in backbone.state_dict() if "_shared" in name]
    changed = other(TEXTS, ALL)[-1]
    assert not torch.allclose(changed, backbone(TEXTS, ALL)[-1])
    for block in other.blocks:
        del block.sites[BESIDE_BLOCK]
    assert_close(changed, other(TEXTS, ALL)[-1])


def test_a_second_one_is_refused():
    model = tiny.model()
    PALs(3)(model, {})

    with pytest.raises(ValueError, match="beside_block of block 0 is taken by another Projected"):
        PALs(3)(model, {})


PREFIXED = {"plain": {}, "modern": tiny.MODERN}
each_shape = pytest.mark.parametrize("shape", PREFIXED.values(), ids=PREFIXED)


def with_prefix(*, learned=True, length=4, **shape):
    model = tiny.lively(tiny.model(**shape).eval())
    GatedPrefix(length)(model, {})
    if learned:
        for block in model.backbone.blocks:
            tiny.lively(block.attention.prefix, std=0.5)
    return model.backbone


def plain(**shape):
    return tiny.lively(tiny.model(**shape).eval().backbone)


@each_shape
def test_a_closed_gate_changes_no_bit_with_padding_or_a_cache(shape):
    before, after = plain(**shape), with_prefix(learned=False, **shape)

    assert torch.equal(before(TEXTS, MASK)[-1], after(TEXTS, MASK)[-1])
    wanted, states = (
        tiny.read_in_parts(backbone, TEXTS, 3, KVCache(3, 10)) for backbone in (before, after)
    )
    assert torch.equal(wanted, states)


@each_shape
def test_what_is_learned_is_the_same_through_a_cache_and_takes_no_place_in_it(shape):
    backbone, cache = with_prefix(**shape), KVCache(3, 10)

    states = tiny.read_in_parts(backbone, TEXTS, 3, cache)

    assert_close(states, backbone(TEXTS, ALL, padded=False)[-1])
    assert not torch.allclose(states, plain(**shape)(TEXTS, ALL, padded=False)[-1])
    assert cache.length == 10


@pytest.mark.parametrize("edited", [with_pals, with_prefix])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_packing_and_padding_change_nothing(shape, edited):
    backbone = edited(**shape)
    alone = backbone(TEXTS[1:, :6], ALL[1:, :6], padded=False)[-1]

    padded = backbone(TEXTS, MASK)[-1]
    packing = tiny.packing(MASK)
    packed = packing.unpack(backbone(TEXTS, MASK, packing=packing)[-1])

    assert_close(padded[1:, :6], alone)
    assert_close(packed[MASK], padded[MASK])


def test_it_is_a_softmax_of_its_own_that_masks_and_positions_do_not_reach():
    prefix = tiny.lively(PrefixAttention(5, heads=4, kv_heads=2, head_width=6), std=0.5)
    query = torch.randn(3, 4, 7, 6)

    output = prefix(query)

    for head in range(4):
        scores = query[:, head] @ prefix.key[head // 2].T / math.sqrt(6)
        wanted = prefix.gate[head].tanh() * scores.softmax(-1) @ prefix.value[head // 2]
        assert_close(output[:, head], wanted)


def test_an_attention_adds_it_before_the_output_projection():
    block = with_prefix().blocks[0].attention
    hidden, seen = torch.randn(2, 7, 16), []
    block.prefix.register_forward_hook(lambda module, inputs, out: seen.append(out))

    out = block(hidden, AttentionInputs(causal=True))
    block.prefix = None
    without = block(hidden, AttentionInputs(causal=True))

    added = seen[0].transpose(1, 2).flatten(2) @ block.output.weight.T
    assert_close(out, without + added)


def test_gates_open_first_and_keys_and_values_then_learn():
    backbone = with_prefix(learned=False)
    prefix = backbone.blocks[0].attention.prefix

    backbone(TEXTS, MASK)[-1].square().sum().backward()

    assert prefix.gate.grad.any()
    assert not prefix.key.grad.any()
    assert not prefix.value.grad.any()
