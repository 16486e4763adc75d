"""Legend: B batch, H heads, T queries, S keys."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, GatedPrefix
from transfer_cli.model.attention import masked_scores
from transfer_cli.model.captures import attention_by_place, captures
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.patterns import attention_mask
from transfer_cli.objectives.causal_lm import CausalLM

TOKENS = torch.randint(5, 48, (3, 7), generator=torch.Generator().manual_seed(0))
MASKS = {
    "none": torch.ones(3, 7, dtype=torch.bool),
    "right": torch.arange(7) < torch.tensor([[7], [4], [1]]),
    "left": torch.arange(7) >= torch.tensor([[0], [3], [6]]),
}
NAMES = [f"blocks.{number}.attention" for number in range(3)]


def lively_backbone(**changes):
    made = tiny.backbone(heads=4, **changes).eval()
    tiny.lively(made, std=0.2)
    return made


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("padding", MASKS)
def test_states_are_the_same_whether_probabilities_are_written_out_or_not(direction, padding):
    backbone, mask_BT = lively_backbone(direction=direction), MASKS[padding]

    fast = backbone(TOKENS, mask_BT, padded=padding != "none")
    with captures(backbone, attention=True):
        slow = backbone(TOKENS, mask_BT, padded=padding != "none")

    assert_close(slow, fast, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("padding", MASKS)
def test_probabilities_are_shares_of_what_may_be_seen(direction, padding):
    backbone, mask_BT = lively_backbone(direction=direction), MASKS[padding]

    with captures(backbone, attention=True) as captured:
        backbone(TOKENS, mask_BT, padded=padding != "none")

    assert list(captured.attention) == NAMES
    unseen = ~attention_mask(mask_BT, causal=direction == "causal")
    for shares_BHTS in captured.attention.values():
        assert_close(shares_BHTS.sum(-1), torch.ones(3, 4, 7))
        assert not shares_BHTS[unseen.expand_as(shares_BHTS)].any()


def test_probabilities_of_a_text_read_in_parts_are_rows_of_those_of_the_whole():
    backbone, mask_BT, kv_cache = lively_backbone(), MASKS["none"], KVCache(3, 7)

    with captures(backbone, attention=True) as captured:
        backbone(TOKENS, mask_BT, padded=False)
        whole = dict(captured.attention)
        for start, end in ((0, 4), (4, 6), (6, 7)):
            part = slice(start, end)
            backbone(TOKENS[:, part], mask_BT[:, part], padded=False, kv_cache=kv_cache)
            for name, shares_BHTS in captured.attention.items():
                assert_close(shares_BHTS, whole[name][:, :, part, :end], rtol=0, atol=1e-6)


def test_outputs_of_named_modules_are_those_that_the_model_goes_on_with():
    model = tiny.model(CausalLM(), residual="post").eval()
    names = ["backbone.blocks.0", "backbone.blocks.1.feed_forward.inner", "backbone"]

    with captures(model, names) as captured:
        states = model.backbone(TOKENS, MASKS["none"])

    assert list(captured.hidden_states) == ["backbone.blocks.0", *names[1:]]
    assert captured.hidden_states["backbone.blocks.0"] is states[1]
    assert captured.hidden_states["backbone"] is states
    assert captured.hidden_states["backbone.blocks.1.feed_forward.inner"].shape == (3, 7, 32)
    assert not captured.attention


def test_a_model_forgets_its_captures():
    backbone = lively_backbone()
    with captures(backbone, ["blocks.0"], attention=True) as captured:
        pass

    states = backbone(TOKENS, MASKS["none"])

    assert not captured.hidden_states
    assert not captured.attention
    assert states[1].requires_grad


def test_gradients_reach_what_was_captured():
    backbone = lively_backbone()

    with captures(backbone, ["blocks.0"], attention=True) as captured:
        top_BTD = backbone(TOKENS, MASKS["none"])[-1]
    found = [captured.hidden_states["blocks.0"], captured.attention["blocks.1.attention"]]
    gradients = torch.autograd.grad(top_BTD.square().sum(), found)

    assert all(gradient.any() for gradient in gradients)


def test_captures_of_a_compiled_model_are_those_of_an_eager_one():
    backbone = lively_backbone()
    with captures(backbone, attention=True) as captured:
        backbone(TOKENS, MASKS["none"])
    eager = dict(captured.attention)
    # Nothing is ever traced here: while captures last, compiled passes run uncompiled.
    backbone.compile(fullgraph=True)

    with captures(backbone, ["blocks.2"], attention=True) as captured:
        states = backbone(TOKENS, MASKS["none"])

    assert_close(captured.attention, eager, rtol=0, atol=0)
    assert captured.hidden_states["blocks.2"].shape == states[-1].shape


def test_an_unknown_module_is_refused_with_the_nearest_name():
    backbone = tiny.backbone()
    wanted = r"no module 'blocks\.0\.atention'\. Did you mean 'blocks\.0\.attention'"

    with pytest.raises(ValueError, match=wanted), captures(backbone, ["blocks.0.atention"]):
        pass
    assert not backbone.blocks[0].attention._forward_hooks


def test_projections_are_those_that_attention_is_made_of_and_of_chosen_blocks_alone():
    backbone, mask_BT = lively_backbone(direction="causal"), MASKS["right"]

    with captures(backbone, attention=True, projections=NAMES[1:2]) as captured:
        backbone(TOKENS, mask_BT)

    (found,) = captured.projections.values()
    probabilities = masked_scores(found.query, found.key, found.inputs).softmax(-1)
    assert [*captured.projections] == NAMES[1:2]
    assert_close(probabilities, captured.attention[NAMES[1]])
    assert backbone.blocks[1].attention.on_projections is None


KINDS = {
    "causal": {},
    "bidirectional": {"direction": "bidirectional"},
    "modern": tiny.MODERN,
    "modern bidirectional": {**tiny.MODERN, "direction": "bidirectional"},
    "grouped": {"key_value_heads": 2},
    "relative bias": {"position_kind": "relative_bias"},
    "shared": {"share": "all"},
}


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
    fused, projections, maps = [], [], {}

    hooks = [
        block.attention.register_forward_hook(lambda module, given, out: fused.append(out))
        for block in backbone.blocks
    ]
    for block in backbone.blocks:
        block.attention.on_projections = projections.append
    backbone(TOKENS, mask_BT, padded=padding != "none")
    for hook in hooks:
        hook.remove()
    with attention_by_place(backbone, maps.__setitem__):
        backbone(TOKENS, mask_BT, padded=padding != "none")

    assert list(maps) == [0, 1, 2]
    for place, number in enumerate(backbone.shape.visits):
        attention, found = backbone.blocks[number].attention, projections[place]
        mixed_BHTW = maps[place] @ found.value.repeat_interleave(attention.sharing, dim=1)
        if attention.prefix is not None:
            mixed_BHTW = mixed_BHTW + attention.prefix(found.query)
        again = attention.output(mixed_BHTW.transpose(1, 2).flatten(2))
        assert_close(again[mask_BT], fused[place][mask_BT], rtol=0, atol=1e-5)
        rows = maps[place].transpose(1, 2)[mask_BT]
        assert_close(rows.sum(-1), torch.ones(rows.shape[:2]), rtol=0, atol=1e-5)
        assert not maps[place][
            (mask_BT[:, :, None] & ~mask_BT[:, None])[:, None].expand(-1, 4, -1, -1)
        ].any()
        if backbone.causal:
            assert not maps[place].triu(1).any()


def test_a_pass_that_fails_leaves_nothing_behind():
    backbone = lively_backbone()

    with pytest.raises(ZeroDivisionError), attention_by_place(backbone, lambda place, found: 1 / 0):
        backbone(TOKENS, MASKS["none"])

    assert all(block.attention.on_probabilities is None for block in backbone.blocks)
