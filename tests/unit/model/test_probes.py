"""Legend: B batch, H heads, T queries, S keys, L blocks, E size of an embedding."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, GatedPrefix
from transfer_cli.batch import with_facts
from transfer_cli.model.added_embeddings import AddedRows
from transfer_cli.model.attention import masked_scores
from transfer_cli.model.block import RESIDUALS
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.patterns import attention_mask
from transfer_cli.model.probes import head_ones, replace_embeddings, set_gates, set_probe, zero_unit
from transfer_cli.objectives.causal_lm import CausalLM

TOKENS = torch.randint(5, 48, (3, 7), generator=torch.Generator().manual_seed(0))
MASKS = {
    "none": torch.ones(3, 7, dtype=torch.bool),
    "right": torch.arange(7) < torch.tensor([[7], [4], [1]]),
    "left": torch.arange(7) >= torch.tensor([[0], [3], [6]]),
}
BATCH = tiny.Questions(examples=5).batch(range(5))
GATED = [*({"residual": name} for name in RESIDUALS), tiny.MODERN, {"share": "all"}]
EMBEDDED = [
    {}, {"residual": "post", "segments": 2}, {"position_kind": "sinusoidal"}, tiny.MODERN,
    {"embedding_width": 6, "output_transform": True, "direction": "bidirectional"},
]  # fmt: skip
KINDS = {
    "causal": {},
    "bidirectional": {"direction": "bidirectional"},
    "modern": tiny.MODERN,
    "modern bidirectional": {**tiny.MODERN, "direction": "bidirectional"},
    "grouped": {"key_value_heads": 2},
    "relative bias": {"position_kind": "relative_bias"},
    "shared": {"share": "all"},
}


def lively(std=0.2, **changes):
    return tiny.lively(tiny.backbone(heads=4, **changes).eval(), std=std)


def states(backbone):
    with torch.no_grad():
        return backbone(BATCH["tokens"], BATCH["mask"])


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("padding", MASKS)
def test_probabilities_are_shares_of_what_may_be_seen_and_leave_states_as_they_are(
    direction, padding
):
    backbone, mask_BT, shares = lively(direction=direction), MASKS[padding], {}

    fast = backbone(TOKENS, mask_BT, padded=padding != "none")
    with set_probe(backbone, probabilities=shares.__setitem__):
        slow = backbone(TOKENS, mask_BT, padded=padding != "none")

    assert_close(slow, fast, rtol=1e-6, atol=1e-6)
    assert [*shares] == [0, 1, 2]
    unseen = ~attention_mask(mask_BT, causal=direction == "causal")
    for shares_BHTS in shares.values():
        assert_close(shares_BHTS.sum(-1), torch.ones(3, 4, 7))
        assert not shares_BHTS[unseen.expand_as(shares_BHTS)].any()


def test_probabilities_of_a_text_read_in_parts_are_rows_of_those_of_the_whole():
    backbone, mask_BT, kv_cache, shares = lively(), MASKS["none"], KVCache(3, 7), {}

    with set_probe(backbone, probabilities=shares.__setitem__):
        backbone(TOKENS, mask_BT, padded=False)
        whole = dict(shares)
        for start, end in ((0, 4), (4, 6), (6, 7)):
            part = slice(start, end)
            backbone(TOKENS[:, part], mask_BT[:, part], padded=False, kv_cache=kv_cache)
            for place, shares_BHTS in shares.items():
                assert_close(shares_BHTS, whole[place][:, :, part, :end], rtol=0, atol=1e-6)


def test_gradients_reach_probabilities():
    backbone, shares = lively(), {}

    with set_probe(backbone, probabilities=shares.__setitem__):
        top_BTD = backbone(TOKENS, MASKS["none"])[-1]
    (gradient,) = torch.autograd.grad(top_BTD.square().sum(), [shares[1]])

    assert gradient.any()


def test_probes_of_a_compiled_model_see_what_those_of_an_eager_one_see():
    backbone, eager, compiled = lively(), {}, {}
    with set_probe(backbone, probabilities=eager.__setitem__):
        backbone(TOKENS, MASKS["none"])
    # Nothing is ever traced here: while a probe is there, compiled passes run uncompiled.
    backbone.compile(fullgraph=True)

    with set_probe(backbone, probabilities=compiled.__setitem__):
        backbone(TOKENS, MASKS["none"])

    assert_close(compiled, eager, rtol=0, atol=0)


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", [None, Adapters(4), GatedPrefix(3)], ids=str)
def test_what_fused_attention_gives_out_is_made_of_the_probabilities_of_its_place(
    kind, padding, edit
):
    model = tiny.model(CausalLM(), heads=4, **KINDS[kind]).eval()
    if edit is not None:
        edit(model, {})
    tiny.lively(model, std=0.2)
    backbone, mask_BT = model.backbone, MASKS[padding]
    fused, projections, maps = [], {}, {}

    for block in backbone.blocks:
        block.attention.register_forward_hook(lambda module, given, out: fused.append(out))
    with set_probe(backbone, projections=projections.__setitem__):
        backbone(TOKENS, mask_BT, padded=padding != "none")
    with set_probe(backbone, probabilities=maps.__setitem__):
        backbone(TOKENS, mask_BT, padded=padding != "none")

    for place, number in enumerate(backbone.shape.block_order):
        attention, projection = backbone.blocks[number].attention, projections[place]
        keys = projection.key.repeat_interleave(attention.group_size, dim=1)
        assert_close(
            masked_scores(projection.query, keys, projection.inputs).softmax(-1), maps[place]
        )
        mixed_BHTW = maps[place] @ projection.value.repeat_interleave(attention.group_size, dim=1)
        if attention.prefix is not None:
            mixed_BHTW = mixed_BHTW + attention.prefix(projection.query)
        again = attention.output(mixed_BHTW.transpose(1, 2).flatten(2))
        assert_close(again[mask_BT], fused[place][mask_BT], rtol=0, atol=1e-5)
        rows = maps[place].transpose(1, 2)[mask_BT]
        assert_close(rows.sum(-1), torch.ones(rows.shape[:2]), rtol=0, atol=1e-5)
        unseen = (mask_BT[:, :, None] & ~mask_BT[:, None])[:, None].expand_as(maps[place])
        assert not maps[place][unseen].any()
        if backbone.causal:
            assert not maps[place].triu(1).any()


@pytest.mark.parametrize("kind", GATED, ids=str)
def test_factors_of_one_change_no_bit(kind):
    backbone = lively(**kind)
    before = states(backbone)

    with set_gates(backbone, head_ones(backbone)):
        gated_states = states(backbone)

    assert all(map(torch.equal, gated_states, before))


@pytest.mark.parametrize("kind", GATED, ids=str)
def test_without_any_head_attention_is_the_bias_of_its_output(kind):
    backbone, without = lively(**kind), lively(**kind)
    with torch.no_grad():
        for block in without.blocks:
            block.attention.output.weight.zero_()

    with set_gates(backbone, torch.zeros(3, 4)):
        gated_states = states(backbone)

    assert all(bool(state.isfinite().all()) for state in gated_states)
    assert_close(gated_states, states(without))


@pytest.mark.parametrize("residual", ["pre", "sandwich", "reordered", "parallel", "post"])
def test_the_stream_passes_a_block_that_is_left_out_and_only_norms_of_post_stay(residual):
    backbone = lively(residual=residual)
    block = backbone.blocks[1]

    with set_gates(backbone, head_ones(backbone), without_attention={1}, without_feed_forward={1}):
        gated_states = states(backbone)

    if residual == "post":
        assert_close(
            gated_states[2], block.feed_forward_norm(block.attention_norm(gated_states[1]))
        )
    else:
        assert torch.equal(gated_states[2], gated_states[1])


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_a_sub_layer_is_left_out_by_itself(part):
    backbone, without = lively(), lively()
    output = getattr(without.blocks[1], part).output
    with torch.no_grad():
        output.weight.zero_()
        output.bias.zero_()

    with set_gates(backbone, head_ones(backbone), **{f"without_{part}": {1}}):
        gated_states = states(backbone)

    assert_close(gated_states, states(without))


def test_a_block_that_places_share_is_gated_at_each_by_itself():
    backbone, heads = lively(share="all"), torch.ones(3, 4)
    before = states(backbone)
    heads[1] = 0

    with set_gates(backbone, heads):
        gated_states = states(backbone)

    assert torch.equal(gated_states[1], before[1])
    assert not torch.equal(gated_states[2], before[2])


@pytest.mark.parametrize("packs", [False, True])
def test_each_sequence_may_have_factors_of_its_own(packs):
    backbone, factors = lively(), torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0))
    mask, rows = BATCH["mask"], with_facts(BATCH)["real_rows"]
    packing = Packing.from_mask(mask, rows) if packs else None

    with set_gates(backbone, factors), torch.no_grad():
        together = backbone(BATCH["tokens"], mask, packing=packing)[-1]
    together = packing.unpack(together) if packs else together

    for number, mask_T in enumerate(mask):
        with set_gates(backbone, factors[:, number]), torch.no_grad():
            alone = backbone(BATCH["tokens"][number : number + 1, mask_T], mask_T[None, mask_T])
        assert_close(together[number, mask_T], alone[-1][0])


def test_factors_of_other_heads_than_there_are_end_in_an_error():
    with pytest.raises(ValueError, match="3 places and 4"), set_gates(lively(), torch.ones(3, 2)):
        pass


@pytest.mark.parametrize("kind", EMBEDDED, ids=str)
def test_embeddings_of_other_tokens_say_what_these_tokens_say(kind):
    backbone, other = lively(**kind), BATCH["tokens"].flip(0)
    backbone.new_rows = AddedRows([5, 6], backbone.shape.embedding_size)
    tiny.lively(backbone)
    given = backbone.embed_tokens(other).detach().requires_grad_()

    with replace_embeddings(backbone, given):
        top = backbone(BATCH["tokens"], BATCH["mask"])[-1]

    assert torch.equal(top, backbone(other, BATCH["mask"])[-1])
    (gradient,) = torch.autograd.grad(top.sum(), given)
    assert gradient.abs().sum() > 0


def test_embeddings_of_another_shape_are_refused_and_the_model_is_left_as_it_was():
    backbone = lively()
    before = states(backbone)

    with (
        pytest.raises(ValueError, match="those given in their place"),
        replace_embeddings(backbone, torch.zeros(1, 2, 16)),
    ):
        states(backbone)

    assert backbone.probe is None
    assert all(map(torch.equal, states(backbone), before))


def test_probes_of_several_sites_work_together():
    backbone, shares = lively(), {}

    with set_gates(backbone, torch.zeros(3, 4)):
        alone = states(backbone)
        with set_probe(backbone, probabilities=shares.__setitem__):
            together = states(backbone)

    assert [*shares] == [0, 1, 2]
    assert_close(together, alone)


@pytest.mark.parametrize("kind", GATED, ids=str)
def test_an_erased_unit_is_0_behind_its_block_and_nowhere_else(kind):
    backbone = tiny.lively(tiny.backbone(**kind).eval())

    with torch.no_grad():
        whole = backbone(TOKENS, MASKS["right"])
        for place in range(3):
            with zero_unit(backbone, 5, place):
                states = backbone(TOKENS, MASKS["right"])
            assert [bool((state[..., 5] == 0).all()) for state in states] == [
                number == place + 1 for number in range(4)
            ]
            for before, state in zip(whole[: place + 1], states, strict=False):
                assert torch.equal(before, state)
        assert_close(backbone(TOKENS, MASKS["right"]), whole, rtol=0, atol=0)
