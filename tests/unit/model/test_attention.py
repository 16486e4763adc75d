"""What a position sees: masks and prefixes; attention with dropout, piece by piece.

Legend: B batch, H heads, T positions, S keys, W width of a head, D width.
"""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests import tiny
from transfer_cli.model import attention_dropout
from transfer_cli.model.attention import AttentionInputs, SelfAttention
from transfer_cli.model.attention_dropout import attend_with_dropout
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.dropout import LEAST_ELEMENTS, LEVELS, Dropout
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.patterns import PATTERNS, attention_mask, prefix_mask
from transfer_cli.model.shape import BackboneShape


@pytest.mark.parametrize("causal", [True, False])
def test_no_position_sees_a_padded_key_but_each_sees_itself(causal):
    mask_BT = torch.tensor([[True, True, False], [False, True, True]])

    attn_mask = attention_mask(mask_BT, causal=causal)[:, 0]

    for row, query, key in itertools.product(range(2), range(3), range(3)):
        seen = mask_BT[row, key] and (key <= query or not causal)
        assert attn_mask[row, query, key] == (seen or key == query)


TOKENS = torch.tensor([[7, 8, 9, 10, 11, 12]])
ALL = torch.ones_like(TOKENS, dtype=torch.bool)


def backbone(direction="causal"):
    return tiny.lively(Backbone(tiny.shape(direction=direction), 48).eval(), 0)


@torch.no_grad()
def top(model, tokens=TOKENS, mask=ALL, prefix=None, **options):
    prefix_B = None if prefix is None else torch.full((len(tokens),), prefix)
    return model(tokens, mask, prefix_B=prefix_B, **options)[-1]


def test_a_prefix_is_seen_by_all_and_sees_itself_alone():
    mask = prefix_mask(ALL, torch.tensor([3]))[0, 0].int()

    assert mask.tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ]


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("changed", range(6))
def test_a_token_of_the_prefix_changes_everything_a_later_one_only_what_follows(direction, changed):
    other = TOKENS.clone()
    other[0, changed] = 20
    model = backbone(direction)

    differs = (top(model, prefix=3) != top(model, other, prefix=3)).any(-1)[0].tolist()

    assert differs == [changed < 3 or at >= changed for at in range(6)]


def test_without_a_prefix_attention_is_causal_and_with_nothing_else_bidirectional():
    model, padded = backbone(), ALL.clone()
    padded[0, 4:] = False

    assert torch.equal(top(model, mask=padded, prefix=0), top(model, mask=padded))
    other = backbone("bidirectional")
    assert torch.equal(top(other, mask=padded, prefix=6), top(other, mask=padded))
    assert torch.equal(top(backbone(), mask=padded, prefix=6), top(other, mask=padded))


def test_rows_of_a_batch_have_prefixes_of_their_own():
    model, tokens, mask = backbone(), TOKENS.expand(2, -1), ALL.expand(2, -1)

    both = model(tokens, mask, prefix_B=torch.tensor([2, 4]))[-1]

    assert_close(both[:1], top(model, prefix=2))
    assert_close(both[1:], top(model, prefix=4))


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_a_prefix_is_cached_in_one_pass_and_what_follows_token_by_token(direction):
    model, cache = backbone(direction), KVCache(len(backbone().blocks), 6)

    states = tiny.read_in_parts(model, TOKENS, [3, 1, 1, 1], cache, prefix_B=torch.tensor([3]))

    assert_close(states, top(model, prefix=3))


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_in_a_window_a_prefix_sees_near_tokens_on_both_sides(direction):
    shape = tiny.shape(direction=direction, attention="window", window=2)
    pattern = PATTERNS["window"](shape)

    inputs = pattern(ALL, padded=False, cached=0, prefix_B=torch.tensor([4]))

    assert inputs[1].attn_mask[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


BATCH, NUM_HEADS, QUERIES, KEYS, HEAD_WIDTH = 5, 4, 9, 11, 8
DROPOUT = 0.3


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def given(keys=KEYS):
    """Return queries, keys and values."""
    return tuple(
        drawn(BATCH, NUM_HEADS, count, HEAD_WIDTH, seed=seed)
        for seed, count in enumerate((QUERIES, keys, keys))
    )


def plain(query, key, value, seen, kept):
    """Return attention with those probabilities kept."""
    scores = query @ key.mT / math.sqrt(HEAD_WIDTH)
    scores = scores.masked_fill(~seen, -math.inf) if seen.dtype == torch.bool else scores + seen
    return (scores.softmax(-1) * kept) @ value


def kept_of(query, key, seen, dropout=DROPOUT, lengths=None):
    """Return what `attend_with_dropout` multiplies probabilities with, `[B, H, T, S]`.

    With unit vectors as values, its result is the probabilities, and what is dropped of them.
    """
    torch.manual_seed(1)
    ones = torch.eye(KEYS, dtype=torch.float64).expand(BATCH, NUM_HEADS, KEYS, KEYS)
    query, key = (
        torch.cat((vectors, vectors.new_zeros(*vectors.shape[:3], KEYS - HEAD_WIDTH)), -1)
        for vectors in (query, key)
    )
    # Wider queries are scaled down by more.
    query = query * math.sqrt(KEYS / HEAD_WIDTH)
    dropped = attend_with_dropout(query, key, ones, seen, dropout, lengths)
    return (dropped.detach() != 0).double() * LEVELS / (LEVELS - round(dropout * LEVELS))


SEEN = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(5)) > 0.4
SEEN[..., 0] = True
MASKS = {
    "of each sequence": SEEN,
    "of all": SEEN[0, 0],
    "floats": torch.where(SEEN, 0.5, -2.0).double().expand(-1, NUM_HEADS, -1, -1),
}


@pytest.mark.parametrize("chunk", [1, 300, 2**18])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_those_of_the_whole(mask, chunk, monkeypatch):
    monkeypatch.setattr(attention_dropout, "CHUNK", chunk)
    inputs, seen = given(), MASKS[mask]
    kept, upstream = (
        kept_of(*inputs[:2], seen),
        drawn(BATCH, NUM_HEADS, QUERIES, HEAD_WIDTH, seed=9),
    )
    torch.manual_seed(1)
    ours, theirs = attend_with_dropout(*inputs, seen, DROPOUT), plain(*inputs, seen, kept)
    assert_close(ours, theirs)
    assert_close(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream)
    )


def test_padding_is_not_computed(monkeypatch):
    monkeypatch.setattr(attention_dropout, "CHUNK", 2 * NUM_HEADS * QUERIES * KEYS)  # two sequences
    lengths, before = (3, 5, 0, 0, 9), KEYS - QUERIES
    inputs = given()
    real = torch.arange(QUERIES) < torch.tensor(lengths)[:, None]
    seen = torch.cat((torch.ones(BATCH, before, dtype=torch.bool), real), 1)[:, None, None]
    kept = kept_of(*inputs[:2], seen, lengths=lengths)
    torch.manual_seed(1)
    ours = attend_with_dropout(*inputs, seen, DROPOUT, lengths)
    theirs = plain(*inputs, seen, kept)
    there = real[:, None, :, None]
    assert_close(ours * there, theirs * there)
    assert not ours[2:4].any()
    assert not ours[0, :, 5:].any()
    assert_close(
        torch.autograd.grad(ours, inputs, there.expand_as(ours).double()),
        torch.autograd.grad(theirs, inputs, there.expand_as(ours).double()),
    )


def test_that_share_is_dropped_and_the_mean_stays():
    torch.manual_seed(0)
    query = torch.zeros(16, 4, 64, 8)
    out = attend_with_dropout(query, query, torch.ones_like(query), None, 0.25)
    assert out.mean().item() == pytest.approx(1, abs=0.005)
    assert out.var().item() == pytest.approx(0.25 / 0.75 / 64, rel=0.1)
    torch.manual_seed(0)
    assert out.equal(attend_with_dropout(query, query, torch.ones_like(query), None, 0.25))
    assert not out.equal(attend_with_dropout(query, query, torch.ones_like(query), None, 0.25))


@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_sees_what_it_sees_without_dropout(causal):
    shape = {"width": 8, "depth": 1, "heads": 2, "feedforward": 8, "positions": 8}
    layer = SelfAttention(BackboneShape(**shape, attention_dropout=0.5))
    states, inputs = torch.randn(2, 6, 8), AttentionInputs(causal=causal)
    whole = layer.eval()(states, inputs)
    assert not torch.allclose(whole, layer.train()(states, inputs))
    layer.dropout = 1e-9  # so little that nothing is dropped
    assert_close(layer(states, inputs), whole)


LARGE = (64, 1024)


def drawn_of_dropout(seed=0, shape=LARGE, probability=0.1):
    torch.manual_seed(seed)
    return Dropout(probability)(torch.ones(shape))


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_zeroes_that_share_and_keeps_the_mean(probability):
    out = drawn_of_dropout(shape=(512, 1024), probability=probability)
    kept = (out != 0).double().mean().item()
    deviation = (probability * (1 - probability) / out.numel()) ** 0.5
    assert abs(1 - kept - probability) < 5 * deviation
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - probability)], rel=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_are_drawn_independently(axis):
    dropped = (drawn_of_dropout(shape=(512, 1024), probability=0.3) == 0).double() - 0.3
    neighbours = (dropped * dropped.roll(1, axis)).mean().item() / 0.21
    assert abs(neighbours) < 5 / dropped.numel() ** 0.5


def test_draws_follow_from_the_seed_and_differ_from_call_to_call():
    assert drawn_of_dropout(1).equal(drawn_of_dropout(1))
    assert not drawn_of_dropout(1).equal(drawn_of_dropout(2))
    torch.manual_seed(0)
    layer, ones = Dropout(0.1), torch.ones(LARGE)
    assert not layer(ones).equal(layer(ones))


def test_the_gradient_passes_where_the_value_did():
    torch.manual_seed(0)
    states = torch.randn(LARGE, requires_grad=True)
    out = Dropout(0.25)(states)
    out.backward(torch.full_like(out, 3.0))
    assert_close(states.grad, 3 * (out / states).detach())


def test_no_dropout_outside_of_training_or_at_zero():
    states = torch.randn(LARGE)
    assert Dropout(0.5).eval()(states) is states
    assert Dropout(0.0)(states) is states


def test_a_pass_that_is_computed_again_drops_the_same():
    states = torch.randn(LARGE, requires_grad=True)
    layer = Dropout(0.5)
    out = checkpoint(lambda z: layer(z).square(), states, use_reentrant=False)
    out.sum().backward()
    assert_close(states.grad != 0, out != 0)


def test_few_elements_and_half_precision_are_dropped_as_well():
    few = Dropout(0.5)(torch.ones(LEAST_ELEMENTS // 8))
    assert set(few.tolist()) == {0.0, 2.0}
    half = Dropout(0.1)(torch.ones(LARGE, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.float().mean().item() == pytest.approx(1, abs=0.01)
