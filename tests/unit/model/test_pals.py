"""A narrow attention beside every block."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import PALs
from transfer_cli.model.attention import AttentionInputs
from transfer_cli.model.block import BESIDE_BLOCK
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing

TOKENS = torch.arange(5, 25).view(2, 10)
ALL = torch.ones_like(TOKENS, dtype=torch.bool)
MASK = torch.arange(10) < torch.tensor([[10], [6]])
SHAPES = {
    "plain": {}, "modern": tiny.MODERN, "shared blocks": {"share": "all"},
    "relative bias": {"position_kind": "relative_bias", "direction": "bidirectional"},
}  # fmt: skip
CAUSAL = ("plain", "modern", "shared blocks")


def with_pals(**shape):
    model = tiny.model(**shape).eval()
    tiny.lively(model)
    PALs(3)(model, {})
    tiny.lively(model.backbone.shared_projections, std=0.5)
    for block in model.backbone.blocks:
        tiny.lively(block.sites[BESIDE_BLOCK], std=0.5)
    return model.backbone


@pytest.mark.parametrize("shape", CAUSAL)
def test_it_is_the_same_through_a_cache_and_through_a_fork_of_it(shape):
    backbone = with_pals(**SHAPES[shape])
    wanted = backbone(TOKENS, ALL, padded=False)[-1]
    first = KVCache(backbone.shape.depth, 4)
    backbone(TOKENS[:1, :4], ALL[:1, :4], padded=False, kv_cache=first)
    texts = torch.cat([TOKENS[:1, :4].expand(2, -1), TOKENS[:, 4:]], 1)

    steps = KVCache(backbone.shape.depth, 10)
    found = [
        backbone(part, torch.ones_like(part, dtype=torch.bool), padded=False, kv_cache=steps)[-1]
        for part in TOKENS.split(3, dim=1)
    ]
    later = backbone(
        texts[:, 4:], ALL[:, 4:], padded=False, kv_cache=first.fork(2, 10)
    )  # fmt: skip

    assert_close(torch.cat(found, 1), wanted)
    assert_close(later[-1], backbone(texts, ALL, padded=False)[-1][:, 4:])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_packing_and_padding_change_nothing(shape):
    backbone = with_pals(**shape)
    alone = backbone(TOKENS[1:, :6], ALL[1:, :6], padded=False)[-1]

    padded = backbone(TOKENS, MASK)[-1]
    packing = Packing.of(MASK, MASK.flatten().nonzero().flatten())
    packed = packing.unpack(backbone(TOKENS, MASK, packing=packing)[-1])

    assert_close(padded[1:, :6], alone)
    assert_close(packed[MASK], padded[MASK])


def test_it_is_an_attention_between_two_shared_projections():
    layer = with_pals(heads=4).blocks[0].sites[BESIDE_BLOCK]
    hidden = torch.randn(1, 5, 16)
    (shared,) = layer._shared

    found = layer(hidden, AttentionInputs(causal=True))

    query, key, value = layer.packed(shared.encode(hidden))[0].chunk(3, dim=1)
    seen, mixed = torch.ones(5, 5).tril().bool(), torch.empty(5, 12)
    for head in range(4):
        at = slice(3 * head, 3 * head + 3)
        scores = query[:, at] @ key[:, at].T / math.sqrt(3)
        mixed[:, at] = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[:, at]
    assert_close(found[0], mixed @ shared.decode.weight.T)


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
    changed = other(TOKENS, ALL)[-1]
    assert not torch.allclose(changed, backbone(TOKENS, ALL)[-1])
    for block in other.blocks:
        del block.sites[BESIDE_BLOCK]
    assert_close(changed, other(TOKENS, ALL)[-1])


def test_a_second_one_is_refused():
    model = tiny.model()
    PALs(3)(model, {})

    with pytest.raises(ValueError, match="beside_block of block 0 is taken by another Projected"):
        PALs(3)(model, {})
