"""Legend: B texts, V vocabulary."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from transfer_cli.generation.sampling import Sampling, TokenSampler

LOGITS = st.lists(
    st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=12
)  # few values, so that some are equal


def by_definition(logits, temperature, top_k, top_p):
    """Return the probabilities as the papers write them, one token after the other."""
    exponentials = [math.exp((each - max(logits)) / temperature) for each in logits]
    shares = {token: each / sum(exponentials) for token, each in enumerate(exponentials)}
    ranked = sorted(shares, key=lambda token: (-shares[token], token))[:top_k]
    whole = sum(shares[token] for token in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached >= top_p * whole * (1 - 1e-12) and kept:
            break
        kept.append(token)
        reached += shares[token]
    return [shares[token] / reached if token in kept else 0.0 for token in range(len(logits))]


@pytest.mark.slow
@settings(deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.25, 1.0, 3.0]),
    top_k=st.sampled_from([None, 1, 2, 5, 100]),
    top_p=st.sampled_from([0.11, 0.53, 0.907, 1.0]),
)
def test_probabilities_are_those_of_the_definition(logits, temperature, top_k, top_p):
    found = Sampling(temperature, top_k, top_p).probabilities(torch.tensor([logits]))

    expected = by_definition(logits, temperature, top_k, top_p)
    assert_close(found, torch.tensor([expected], dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_a_temperature_of_zero_takes_the_likeliest_and_of_equal_ones_the_first():
    shares_BV = Sampling(0.0).probabilities(torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 0.0]]))

    assert shares_BV.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_the_smallest_temperature_overflows_nowhere():
    shares_BV = Sampling(1e-300).probabilities(torch.tensor([[1e4, 1e4 - 1, -1e4]]))

    assert shares_BV.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_of_minus_infinity_is_never_drawn(temperature):
    logits_BV = torch.tensor([[5.0, -torch.inf, 1.0]]).repeat(200, 1)
    logits_BV[:, 0] = -torch.inf

    drawn_B = TokenSampler(0, 200)(Sampling(temperature).probabilities(logits_BV))

    assert set(drawn_B.tolist()) == {2}


def test_tokens_are_drawn_as_often_as_they_are_likely():
    rows = 20_000
    shares_V = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)

    drawn_B = TokenSampler(3, rows)(shares_V.expand(rows, -1))

    counts_V = torch.bincount(drawn_B, minlength=6)
    spread_V = (shares_V * (1 - shares_V) / rows).sqrt()
    assert ((counts_V / rows - shares_V).abs() <= 4 * spread_V).all()
    assert counts_V[[1, 5]].tolist() == [0, 0]


def test_the_largest_random_number_finds_a_token_that_can_be_drawn(monkeypatch):
    largest = torch.tensor([1 - 2**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: largest)
    shares_BV = torch.tensor([[0.1] * 10 + [0.0]], dtype=torch.float64)

    assert TokenSampler(0, 1)(shares_BV).tolist() == [9]


def test_a_text_draws_the_same_whoever_is_beside_it():
    shares_V = torch.full((1000,), 1e-3, dtype=torch.float64)

    def drawn(rows):
        sampler = TokenSampler(7, rows)
        return torch.stack([sampler(shares_V.expand(rows, -1)) for _ in range(5)], 1).tolist()

    assert drawn(1) == drawn(3)[:1]
    assert drawn(3)[0] != drawn(3)[1]
