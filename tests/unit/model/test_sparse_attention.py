"""Strided and fixed attention computes by views what attention with a mask does."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import GatedPrefix, LoRA, PALs
from transfer_cli.errors import ConfigError
from transfer_cli.model import sparse_attention
from transfer_cli.model.attention_dropout import attend
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.picked_blocks import shape_of_blocks
from transfer_cli.model.probes import set_probe
from transfer_cli.model.sparse_attention import (
    OwnBlock,
    SparseView,
    Stride,
    Summary,
    Window,
    _block_mask,
    attend_with_flex,
    sparse_parts,
)
from transfer_cli.objectives.causal_lm import CausalLM

PARTS = {
    "window": Window, "stride": Stride, "block": OwnBlock, "summary": partial(Summary, count=2)
}  # fmt: skip
KINDS = [("strided", "split"), ("strided", "alternate"), ("fixed", "split"), ("fixed", "alternate")]
LENGTHS = (1, 3, 4, 9, 16, 17)
TOKENS = torch.randint(5, 48, (2, 11), generator=torch.Generator().manual_seed(0))
ALL = torch.ones_like(TOKENS, dtype=torch.bool)


def drawn(*size, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(size))
    return [torch.randn(*size, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def seen(length, *parts):
    place = torch.arange(length)
    return torch.stack([part.sees(place[:, None], place) for part in parts]).any(0)


def build_backbone(attention="strided", sparse="split", **changes):
    options = {"summary": 2} if attention == "fixed" else {}
    backbone = tiny.backbone(attention=attention, sparse=sparse, window=4, **options, **changes)
    tiny.lively(backbone)
    return backbone.double().eval()


# --- the parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_and_its_gradients_are_those_of_attention_with_a_mask(kind):
    for length in LENGTHS:
        for part in (PARTS[kind](block=4), PARTS[kind](block=32)):
            states = drawn(2, 3, length, 8)
            attended = part.attend(*states, 0.0)
            expected = attend(*states, attn_mask=seen(length, part))

            assert_close(attended, expected, rtol=0, atol=1e-6)
            upstream = torch.randn_like(attended)
            gradients, expected_gradients = (
                torch.autograd.grad(output, states, upstream, materialize_grads=True)
                for output in (attended, expected)
            )
            assert_close(gradients, expected_gradients, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", PARTS)
def test_no_position_reaches_one_that_does_not_see_it(kind):
    part, states = PARTS[kind](block=4), drawn(1, 1, 14, 4)
    is_seen = seen(14, part)

    for query, row in enumerate(part.attend(*states, 0.0)[0, 0]):
        of_keys, of_values = torch.autograd.grad(
            row.sum(), states[1:], retain_graph=True, materialize_grads=True
        )
        assert ((of_values[0, 0] != 0).any(-1) == is_seen[query]).all()
        assert (of_keys[0, 0, ~is_seen[query]] == 0).all()


@pytest.mark.parametrize(
    ("length", "block", "count", "strided", "fixed"),
    [
        (8, 4, 1, 30, 24),
        (512, 32, 4, 19_728, 23_808),
        pytest.param(2048, 64, 4, 160_800, 193_536, marks=pytest.mark.slow),
    ],
)
def test_pairs_are_as_many_as_are_seen(length, block, count, strided, fixed):
    parts = Window(block), Stride(block), OwnBlock(block), Summary(block, count)

    assert int(seen(length, *parts[:2]).sum()) == strided
    assert int(seen(length, *parts[2:]).sum()) == fixed
    for part in parts:
        for size in (0, 1, block, length, length - 3):
            assert part.pairs_seen(size) == int(seen(size, part).sum())
        assert part.pairs_computed(length) <= length**2


@pytest.mark.parametrize("kind", PARTS)
def test_dropout_keeps_the_mean_and_repeats_with_its_seed(kind):
    part, (query, key, value) = PARTS[kind](block=4), drawn(256, 8, 9, 4)
    query, key, value = (vectors[:1].expand_as(vectors) for vectors in (query, key, value + 3))
    with torch.no_grad():
        torch.manual_seed(0)
        dropped = part.attend(query, key, value, 0.2)
        torch.manual_seed(0)

        assert torch.equal(dropped, part.attend(query, key, value, 0.2))
        mean, whole = dropped.mean(0), part.attend(query, key, value, 0.0)[0]
        assert not torch.isclose(dropped[0], whole).all()
        assert_close(mean, whole, rtol=0, atol=1.0)
        assert_close(mean.mean(), whole.mean(), rtol=0, atol=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")  # the mask is cheap to find anew
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_has_the_same_masks(compiled, monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    length, block = (300, 48) if compiled else (37, 8)
    states = [state.detach() for state in drawn(1, 2, length, 16, dtype=torch.float32)]
    for kind in (PARTS[name] for name in ("window", "summary")):
        part = kind(block=block)

        # Only compiled it leaves out tiles.
        monkeypatch.setattr(sparse_attention, "_compiled_flex", lambda: flex_attention)
        work = partial(attend_with_flex, part)
        attended = (torch.compile(work, fullgraph=True) if compiled else work)(*states)

        assert_close(attended, part.attend(*states, 0.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 100, 256, 517])
@pytest.mark.parametrize("block", [9, 48, 200])
@pytest.mark.parametrize("kind", ["window", "summary"])
def test_the_tiles_are_those_that_torch_finds_in_a_table_of_all_pairs(kind, block, length):
    from torch.nn.attention.flex_attention import create_block_mask

    part, device = PARTS[kind](block=block), torch.device("cpu")
    expected = create_block_mask(
        lambda b, h, query, key: part.sees(query, key), None, None, length, length, device=device
    ).to_dense()

    tiles = _block_mask(part, length, device).to_dense()

    assert torch.equal(tiles, expected)


# --- in a model --------------------------------------------------------------------------------


@pytest.mark.parametrize(("attention", "sparse"), KINDS)
def test_a_model_says_the_same_with_tables_of_probabilities(attention, sparse):
    backbone = build_backbone(attention, sparse, position_kind="rotary", key_value_heads=1)
    near, far = (Window(4), Stride(4)) if attention == "strided" else (OwnBlock(4), Summary(4, 2))

    states = backbone(TOKENS, ALL, padded=False)
    shares = {}
    with set_probe(backbone, probabilities=shares.__setitem__):
        expected = backbone(TOKENS, ALL, padded=False)

    assert_close(states, expected, rtol=0, atol=1e-6)
    heads = [(near, far)] * 3 if sparse == "split" else [(near, near), (far, far), (near, near)]
    for of_heads, probabilities in zip(heads, shares.values(), strict=True):
        for head, part in enumerate(of_heads):
            assert ((probabilities[:, head] > 0) == seen(11, part)).all()


@pytest.mark.parametrize("part", [(Window(16),), (OwnBlock(16), OwnBlock(16))])
def test_a_text_within_a_block_is_seen_as_a_whole(part):
    states = drawn(2, 2, 11, 8)

    assert torch.equal(SparseView(part).attend(*states), attend(*states, causal=True))


@pytest.mark.parametrize(("attention", "sparse"), KINDS)
def test_padding_and_caches_change_nothing(attention, sparse):
    backbone = build_backbone(attention, sparse, key_value_heads=1)
    short = TOKENS[:1, :7]
    alone, whole = backbone(short, short > 0, padded=False)[-1], backbone(TOKENS, ALL)[-1]
    pad = partial(torch.nn.functional.pad, value=0)

    after, before = (
        torch.cat([pad(short, (0, 4)), TOKENS[1:]]),
        torch.cat([pad(short, (4, 0)), TOKENS[1:]]),
    )
    assert_close(backbone(after, after > 0)[-1][0, :7], alone[0])
    packing = tiny.packing(before > 0)
    packed = backbone(before, before > 0, packing=packing)[-1][0]
    assert_close(packed, torch.cat([alone[0], whole[1]]))

    # The last four of both go on from a cache, the second text's before them.
    tokens = torch.cat([torch.cat([pad(short[:, :3], (4, 0)), short[:, 3:]], 1), TOKENS[1:]])
    cache = KVCache(3, 11, padding_B=torch.tensor([4, 0]))
    first = backbone(tokens[:, :7], tokens[:, :7] > 0, kv_cache=cache)[-1]
    steps = tiny.read_in_parts(backbone, tokens[:, 7:], [1, 2, 1], cache)
    states = torch.cat([first, steps], dim=1)
    assert_close(states[0, 4:], alone[0])
    assert_close(states[1], whole[1])


@pytest.mark.slow
def test_a_model_learns_and_its_recomputed_blocks_learn_the_same():
    changes = {"attention": "fixed", "window": 4, "share": 1, "attention_dropout": 0.1}
    run, again = (
        tiny.run(CausalLM(), tiny.blocks(), tiny.Recipe(total=30), **changes) for _ in range(2)
    )
    again.step.model.backbone.set_activation_checkpointing(True)

    losses = run.go().losses

    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert losses == again.go().losses


def test_edits_see_what_the_model_sees():
    model = tiny.model(CausalLM(), attention="strided", window=4)
    for edit in (LoRA(rank=2), GatedPrefix(length=2), PALs(head_width=4)):
        edit(model, {"cls": 2, "sep": 3, "mask": 4, "unk": 1, "pad": 0})
    tiny.lively(model)
    model.eval()
    tokens = TOKENS.clone()
    tokens[:, 5] = 4

    before, after = (model.backbone(text, ALL, padded=False)[1] for text in (TOKENS, tokens))

    changed = (before != after).any(-1).any(0).nonzero().flatten().tolist()
    assert changed == [5, 6, 7, 8, 9]  # 9 by the stride; 10 sees neither


@pytest.mark.parametrize("rows", [{"document_BT": TOKENS}, {"prefix_B": torch.tensor([3, 4])}])
def test_rows_that_are_no_single_texts_are_refused(rows):
    with pytest.raises(ConfigError, match=r"^model.attention: strided and fixed "):
        build_backbone()(TOKENS, ALL, padded=False, **rows)


def test_picked_blocks_have_to_alternate():
    shape = tiny.shape(attention="fixed", window=4, sparse="alternate", depth=6)

    assert sparse_parts(shape_of_blocks(shape, (0, 3, 4))) == [
        sparse_parts(shape)[layer] for layer in (0, 3, 4)
    ]
    with pytest.raises(ValueError, match=r"^\[0, 2\] do not alternate"):
        shape_of_blocks(shape, (0, 2))
    assert shape_of_blocks(replace(shape, sparse="split"), (0, 2)).depth == 2


@pytest.mark.slow
def test_a_padded_batch_is_compiled_without_a_break():
    backbone, mask = build_backbone(), ALL.clone()
    mask[0, :3] = False
    compiled = torch.compile(backbone, backend="eager", fullgraph=True)

    assert_close(compiled(TOKENS, mask)[-1], backbone(TOKENS, mask)[-1])
