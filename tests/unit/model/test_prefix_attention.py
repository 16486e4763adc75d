"""Learned keys and values of attention, behind a gate."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import GatedPrefix
from transfer_cli.model.attention import AttentionInputs
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.prefix_attention import PrefixAttention

TOKENS = torch.arange(5, 25).view(2, 10)
ALL = torch.ones_like(TOKENS, dtype=torch.bool)
MASK = torch.arange(10) < torch.tensor([[10], [6]])
SHAPES = {"plain": {}, "modern": tiny.MODERN}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def with_prefix(*, learned=True, length=4, **shape):
    model = tiny.model(**shape).eval()
    tiny.lively(model)
    GatedPrefix(length)(model, {})
    if learned:
        for block in model.backbone.blocks:
            tiny.lively(block.attention.prefix, std=0.5)
    return model.backbone


def plain(**shape):
    backbone = tiny.model(**shape).eval().backbone
    tiny.lively(backbone)
    return backbone


def in_steps(backbone, length=10):
    """Return the last hidden states of texts read through a cache, 3 tokens at a time."""
    cache = KVCache(len(backbone.blocks), length)
    parts = [
        backbone(tokens, torch.ones_like(tokens, dtype=torch.bool), padded=False, kv_cache=cache)[
            -1
        ]
        for tokens in TOKENS.split(3, dim=1)
    ]
    return torch.cat(parts, 1), cache


@each_shape
def test_a_closed_gate_changes_no_bit_with_padding_or_a_cache(shape):
    before, after = plain(**shape), with_prefix(learned=False, **shape)

    assert torch.equal(before(TOKENS, MASK)[-1], after(TOKENS, MASK)[-1])
    (wanted, cache), (found, own) = in_steps(before), in_steps(after)
    assert torch.equal(wanted, found)
    assert own.length == cache.length == 10


@each_shape
def test_what_is_learned_is_the_same_through_a_cache_and_takes_no_place_in_it(shape):
    backbone = with_prefix(**shape)

    found, cache = in_steps(backbone)

    assert_close(found, backbone(TOKENS, ALL, padded=False)[-1])
    assert not torch.allclose(found, plain(**shape)(TOKENS, ALL, padded=False)[-1])
    assert cache.length == 10


@each_shape
def test_packing_and_padding_change_nothing(shape):
    backbone = with_prefix(**shape)
    alone = backbone(TOKENS[1:, :6], ALL[1:, :6], padded=False)[-1]

    padded = backbone(TOKENS, MASK)[-1]
    rows = MASK.flatten().nonzero().flatten()
    packing = Packing.of(MASK, rows)
    packed = packing.unpack(backbone(TOKENS, MASK, packing=packing)[-1])

    assert_close(padded[1:, :6], alone)
    assert_close(packed[MASK], padded[MASK])


def test_it_is_a_softmax_of_its_own_that_masks_and_positions_do_not_reach():
    prefix = PrefixAttention(5, heads=4, shared_heads=2, head_width=6)
    tiny.lively(prefix, std=0.5)
    query = torch.randn(3, 4, 7, 6)

    found = prefix(query)

    for head in range(4):
        scores = query[:, head] @ prefix.key[head // 2].T / math.sqrt(6)
        wanted = prefix.gate[head].tanh() * scores.softmax(-1) @ prefix.value[head // 2]
        assert_close(found[:, head], wanted)


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

    backbone(TOKENS, MASK)[-1].square().sum().backward()

    assert prefix.gate.grad.any()
    assert not prefix.key.grad.any()
    assert not prefix.value.grad.any()
