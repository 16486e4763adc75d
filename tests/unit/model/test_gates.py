"""Legend: L blocks, B sequences, H heads."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import with_facts
from transfer_cli.model.block import RESIDUALS
from transfer_cli.model.gates import all_heads, gated
from transfer_cli.model.packing import Packing

BATCH = tiny.Questions(examples=5).batch(range(5))
KINDS = [*({"residual": name} for name in RESIDUALS), tiny.MODERN, {"share": "all"}]


def lively(**changes):
    made = tiny.backbone(heads=4, **changes).eval()
    tiny.lively(made)
    return made


def states(backbone):
    with torch.no_grad():
        return backbone(BATCH["tokens"], BATCH["mask"])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_factors_of_one_change_no_bit(kind):
    backbone = lively(**kind)
    before = states(backbone)

    with gated(backbone, all_heads(backbone)):
        found = states(backbone)

    assert all(map(torch.equal, found, before))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_without_any_head_attention_is_the_bias_of_its_output(kind):
    backbone, without = lively(**kind), lively(**kind)
    with torch.no_grad():
        for block in without.blocks:
            block.attention.output.weight.zero_()

    with gated(backbone, torch.zeros(3, 4)):
        found = states(backbone)

    assert all(bool(each.isfinite().all()) for each in found)
    assert_close(found, states(without))


@pytest.mark.parametrize("residual", ["pre", "sandwich", "reordered", "parallel"])
def test_the_stream_passes_a_block_that_is_left_out(residual):
    backbone = lively(residual=residual)

    with gated(backbone, all_heads(backbone), without_attention={1}, without_feed_forward={1}):
        found = states(backbone)

    assert torch.equal(found[2], found[1])


def test_the_norms_of_post_stay_where_a_block_is_left_out():
    backbone = lively(residual="post")
    block = backbone.blocks[1]

    with gated(backbone, all_heads(backbone), without_attention={1}, without_feed_forward={1}):
        found = states(backbone)

    assert_close(found[2], block.feed_forward_norm(block.attention_norm(found[1])))


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_a_sub_layer_is_left_out_by_itself(part):
    backbone, without = lively(), lively()
    output = getattr(without.blocks[1], part).output
    with torch.no_grad():
        output.weight.zero_()
        output.bias.zero_()

    with gated(backbone, all_heads(backbone), **{f"without_{part}": {1}}):
        found = states(backbone)

    assert_close(found, states(without))


def test_a_block_that_places_share_is_gated_at_each_by_itself():
    backbone, heads = lively(share="all"), torch.ones(3, 4)
    before = states(backbone)
    heads[1] = 0

    with gated(backbone, heads):
        found = states(backbone)

    assert torch.equal(found[1], before[1])
    assert not torch.equal(found[2], before[2])


@pytest.mark.parametrize("packs", [False, True])
def test_each_sequence_may_have_factors_of_its_own(packs):
    backbone, factors = lively(), torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0))
    mask, rows = BATCH["mask"], with_facts(BATCH)["real_rows"]
    packing = Packing.of(mask, rows) if packs else None

    with gated(backbone, factors), torch.no_grad():
        together = backbone(BATCH["tokens"], mask, packing=packing)[-1]
    together = packing.unpack(together) if packs else together

    for number, mask_T in enumerate(mask):
        with gated(backbone, factors[:, number]), torch.no_grad():
            alone = backbone(BATCH["tokens"][number : number + 1, mask_T], mask_T[None, mask_T])
        assert_close(together[number, mask_T], alone[-1][0])


def test_a_model_is_left_as_it_was_also_after_an_error():
    backbone = lively()
    before = states(backbone)

    with pytest.raises(RuntimeError, match="on purpose"), gated(backbone, torch.zeros(3, 4)):
        raise RuntimeError("on purpose")

    assert backbone.gates is None
    assert all(map(torch.equal, states(backbone), before))


def test_factors_of_other_heads_than_there_are_end_in_an_error():
    with pytest.raises(ValueError, match="3 places and 4 heads"), gated(lively(), torch.ones(3, 2)):
        pass
