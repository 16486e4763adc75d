"""Attention with dropout, piece by piece: the same as the whole written down."""

import math

import pytest
import torch
from torch.testing import assert_close

from transfer_cli.model import attention_dropout
from transfer_cli.model.attention import AttentionInputs, SelfAttention
from transfer_cli.model.attention_dropout import attend_with_dropout
from transfer_cli.model.dropout import LEVELS
from transfer_cli.model.shape import BackboneShape

BATCH, HEADS, QUERIES, KEYS, WIDTH = 5, 4, 9, 11, 8
DROPOUT = 0.3


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def given(keys=KEYS):
    """Return queries, keys and values."""
    return tuple(
        drawn(BATCH, HEADS, count, WIDTH, seed=seed)
        for seed, count in enumerate((QUERIES, keys, keys))
    )


def plain(query, key, value, seen, kept):
    """Return attention with those probabilities kept."""
    scores = query @ key.mT / math.sqrt(WIDTH)
    scores = scores.masked_fill(~seen, -math.inf) if seen.dtype == torch.bool else scores + seen
    return (scores.softmax(-1) * kept) @ value


def kept_of(query, key, seen, dropout=DROPOUT, lengths=None):
    """Return what `attend_with_dropout` multiplies probabilities with, `[B, H, T, S]`.

    With unit vectors as values, its result is the probabilities, and what is dropped of them.
    """
    torch.manual_seed(1)
    ones = torch.eye(KEYS, dtype=torch.float64).expand(BATCH, HEADS, KEYS, KEYS)
    query, key = (
        torch.cat((each, each.new_zeros(*each.shape[:3], KEYS - WIDTH)), -1)
        for each in (query, key)
    )
    # Wider queries are scaled down by more.
    query = query * math.sqrt(KEYS / WIDTH)
    dropped = attend_with_dropout(query, key, ones, seen, dropout, lengths)
    return (dropped.detach() != 0).double() * LEVELS / (LEVELS - round(dropout * LEVELS))


SEEN = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(5)) > 0.4
SEEN[..., 0] = True
MASKS = {
    "of each sequence": SEEN,
    "of all": SEEN[0, 0],
    "floats": torch.where(SEEN, 0.5, -2.0).double().expand(-1, HEADS, -1, -1),
}


@pytest.mark.parametrize("chunk", [1, 300, 2**18])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_those_of_the_whole(mask, chunk, monkeypatch):
    monkeypatch.setattr(attention_dropout, "CHUNK", chunk)
    inputs, seen = given(), MASKS[mask]
    kept, upstream = kept_of(*inputs[:2], seen), drawn(BATCH, HEADS, QUERIES, WIDTH, seed=9)
    torch.manual_seed(1)
    ours, theirs = attend_with_dropout(*inputs, seen, DROPOUT), plain(*inputs, seen, kept)
    assert_close(ours, theirs)
    assert_close(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream)
    )


def test_padding_is_not_computed(monkeypatch):
    monkeypatch.setattr(attention_dropout, "CHUNK", 2 * HEADS * QUERIES * KEYS)  # two sequences
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
