"""Transformer-XL: scores by distance, and memory.

Legend: B batch, T positions, D width, H heads, W width of a head.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.generation.decoding import Sampling, TokenSampler, generate
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.memory import Memory
from transfer_cli.model.probes import set_probe
from transfer_cli.objectives.causal_lm import CausalLM

XL = {
    "position_kind": "relative", "residual": "post", "biases": "feed_forward", "recurrence": 8,
    "embedding_norm": False,
}  # fmt: skip


def lively_backbone(**changes):
    return tiny.lively(tiny.backbone(**{**XL, **changes}).eval())


def tokens(length=16, rows=2):
    return torch.randint(5, 48, (rows, length), generator=torch.Generator().manual_seed(0))


def read(backbone, tokens_BT, **given):
    mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    return backbone(tokens_BT, mask_BT, padded=False, **given)


def in_segments(backbone, tokens_BT, length, most, **given):
    """Return the last states of a text that is read segment by segment."""
    memory = Memory(most)
    parts = [
        read(backbone, part_BT, memory=memory, **given)[-1]
        for part_BT in tokens_BT.split(length, dim=1)
    ]
    return torch.cat(parts, dim=1)


def test_scores_are_those_of_the_formula():
    backbone, tokens_BT = lively_backbone(), tokens(9)
    attention, positions = backbone.blocks[0].attention, backbone.position_embedding
    shares = {}
    with set_probe(backbone, probabilities=shares.__setitem__):
        states = read(backbone, tokens_BT)

    query_BTHW, key_BTHW, _ = attention.packed(states[0]).view(2, 9, 3, 2, 8).unbind(2)
    u_HW, v_HW = positions.content.view(2, 8), positions.position.view(2, 8)
    rate_8 = 10_000 ** (-torch.arange(0, 16, 2) / 16)
    expected_BHTS = torch.full((2, 2, 9, 9), -math.inf)
    for i in range(9):
        for j in range(i + 1):
            encoded_16 = torch.cat([((i - j) * rate_8).sin(), ((i - j) * rate_8).cos()])
            distance_HW = attention.distance(encoded_16).view(2, 8)
            score_BHW = (query_BTHW[:, i] + u_HW) * key_BTHW[:, j]
            score_BHW = score_BHW + (query_BTHW[:, i] + v_HW) * distance_HW
            expected_BHTS[:, :, i, j] = score_BHW.sum(-1) / math.sqrt(8)
    assert_close(shares[0], expected_BHTS.softmax(-1))


@pytest.mark.parametrize(
    "changes",
    [{}, {"residual": "pre"}, {"residual": "sandwich"}, {"key_value_heads": 1}],
    ids=str,
)
def test_one_block_with_a_memory_reads_as_in_one_pass(changes):
    backbone, tokens_BT = lively_backbone(depth=1, **changes), tokens(16)

    found_BTD = in_segments(backbone, tokens_BT, 8, 8)

    assert_close(found_BTD, read(backbone, tokens_BT)[-1], rtol=0, atol=1e-5)


def test_a_memory_holds_the_last_states_and_no_others():
    backbone, tokens_BT = lively_backbone(depth=1), tokens(24)

    found_BTD = in_segments(backbone, tokens_BT, 8, 5)[:, 16:]

    assert_close(found_BTD, read(backbone, tokens_BT[:, 11:])[-1][:, 5:], rtol=0, atol=1e-5)


def test_with_several_blocks_a_memory_reaches_farther_back_than_it_is_long():
    backbone, tokens_BT = lively_backbone(depth=3), tokens(24)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 0] = 4

    states = [in_segments(backbone, text_BT, 8, 8)[:, 16:] for text_BT in (tokens_BT, changed_BT)]

    assert not torch.equal(*states)


def test_the_states_in_a_memory_get_no_gradient_and_the_weights_that_read_them_do():
    backbone, memory, tokens_BT = lively_backbone(depth=1), Memory(8), tokens(16, rows=1)
    embedded = []
    with set_probe(backbone, embeddings=lambda e: embedded.append(e.requires_grad_()) or e):
        for part_BT in tokens_BT.split(8, dim=1):
            last_BTD = read(backbone, part_BT, memory=memory)[-1]
    first, second = torch.autograd.grad(
        last_BTD.square().sum(), embedded, retain_graph=True, allow_unused=True
    )
    weight = backbone.blocks[0].attention.packed.weight
    (with_memory,) = torch.autograd.grad(last_BTD.square().sum(), weight)
    memory.clear()
    (without,) = torch.autograd.grad(
        read(backbone, tokens_BT[:, 8:], memory=memory)[-1].square().sum(), weight
    )

    assert first is None
    assert second.abs().max() > 0
    assert not torch.allclose(with_memory[16:], without[16:])
    assert not any(state.requires_grad for state in memory.states)


def test_seven_positions_more_before_a_text_change_nothing():
    backbone, tokens_BT = lively_backbone(), tokens(9)
    padded_BT = torch.nn.functional.pad(tokens_BT, (7, 0))

    states = backbone(padded_BT, padded_BT > 0)[-1][:, 7:]

    assert_close(states, read(backbone, tokens_BT)[-1], rtol=0, atol=1e-5)


def test_what_is_not_finite_is_forgotten():
    memory = Memory(2)

    memory.append([torch.tensor([[[1.0], [math.nan], [math.inf]]])], None)

    assert memory.states[0].tolist() == [[[0.0], [0.0]]]


def test_documents_end_what_is_remembered():
    backbone, tokens_BT = lively_backbone(), tokens(16)
    document_BT = (torch.arange(16) >= 11).long().expand(2, -1)
    memory = Memory(8)

    parts = [
        read(backbone, part_BT, memory=memory, document_BT=numbers_BT)[-1]
        for part_BT, numbers_BT in zip(
            tokens_BT.split(8, dim=1), document_BT.split(8, dim=1), strict=True
        )
    ]

    alone_BTD = read(backbone, tokens_BT[:, 11:])[-1]
    assert_close(parts[1][:, 3:], alone_BTD, rtol=0, atol=1e-5)
    first_BTD = in_segments(backbone, tokens_BT[:, :11], 8, 8)
    assert_close(torch.cat(parts, dim=1)[:, :11], first_BTD, rtol=0, atol=1e-5)


def test_a_cache_that_keeps_the_last_positions_is_a_memory():
    backbone, tokens_BT = lively_backbone(), tokens(20)
    cache = KVCache(3, 6, keep=5)

    found_BTD = tiny.read_in_parts(backbone, tokens_BT, 1, cache)

    assert_close(found_BTD, in_segments(backbone, tokens_BT, 1, 5), rtol=0, atol=1e-5)
    assert cache.length == 5


def test_scores_of_one_token_begin_where_a_gpu_can_read_them():
    backbone, text = lively_backbone(), tokens(8, rows=1)
    projections, cache = {}, KVCache(3, 8)
    with set_probe(backbone, projections=projections.__setitem__):
        for part in (text[:, :7], text[:, 7:]):
            read(backbone, part, kv_cache=cache)

    scores = projections[0].inputs.attn_mask
    assert scores.shape[2:] == (1, 8)
    assert scores.storage_offset() == 0
    assert scores.is_contiguous()


def test_a_text_may_be_longer_than_a_block():
    model = tiny.lively(tiny.model(CausalLM(), **XL, positions=8))
    prompt = tokens(11, rows=1)[0].tolist()
    with torch.inference_mode():
        steps = list(generate(
            model.eval(), prompt, rows=1, max_new_tokens=30, use_cache=True, memory=8,
            sampling=Sampling(0.0), sampler=TokenSampler(0, 1),
            allowed_V=torch.ones(tiny.VOCABULARY.size, dtype=torch.bool),
        ))  # fmt: skip

    text_BT = torch.tensor([[*prompt, *(token for (token,) in steps)]])
    with torch.no_grad():
        memory = Memory(8)
        parts_BT = text_BT.split([8, 3, *[1] * 30], dim=1)
        states = [read(model.backbone, part_BT, memory=memory)[-1] for part_BT in parts_BT]
        table_VD = model.backbone.token_embedding.weight
        said = model.heads["lm"](torch.cat(states, dim=1)[0], table_VD).argmax(-1)
    assert said[10:-1].tolist() == text_BT[0, 11:].tolist()
