"""Legend: B batch, H heads, T positions, D width."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.attention import SelfAttention, attention_mask

WIDTH, HEADS = 16, 4


def attention(seed=0, dropout=0.0):
    made = SelfAttention(WIDTH, HEADS, dropout).eval()
    tiny.lively(made, seed)
    return made


def by_weights(made, hidden_BTD, allowed, *, causal):
    """Return what attention answers when its inspected weights are applied by hand."""
    value_BTD = made.packed(hidden_BTD)[..., 2 * WIDTH :]
    value_BHTW = value_BTD.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    weights_BHTT = made.weights(hidden_BTD, allowed, causal=causal)
    return made.output((weights_BHTT @ value_BHTW).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_the_fast_path_agrees_with_the_weights_for_inspection(causal, padding):
    hidden_BTD = torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(0))
    mask_BT = torch.ones(3, 7, dtype=torch.bool)
    if padding != "none":
        mask_BT[1, 4:] = False
        mask_BT[2, 1:] = False
    mask_BT = mask_BT.flip(1) if padding == "left" else mask_BT
    allowed, made = attention_mask(mask_BT, causal=causal), attention()

    fast = made(hidden_BTD, allowed, causal=causal)

    assert_close(fast, by_weights(made, hidden_BTD, allowed, causal=causal), rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_weights_are_probabilities_over_what_may_be_seen(causal):
    mask_BT = torch.tensor([[True, True, True, False], [False, False, True, True]])
    hidden_BTD = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(0))
    allowed = attention_mask(mask_BT, causal=causal)

    weights = attention().weights(hidden_BTD, allowed, causal=causal)

    assert_close(weights.sum(-1), torch.ones(2, HEADS, 4))
    assert not weights[~allowed.expand_as(weights)].any()


@pytest.mark.parametrize("causal", [True, False])
def test_no_position_sees_a_padded_key_but_each_sees_itself(causal):
    mask_BT = torch.tensor([[True, True, False], [False, True, True]])

    allowed = attention_mask(mask_BT, causal=causal)[:, 0]

    for row in range(2):
        for query in range(3):
            for key in range(3):
                seen = mask_BT[row, key] and (key <= query or not causal)
                assert allowed[row, query, key] == (seen or key == query)


def test_attention_dropout_acts_in_training_only():
    made, hidden_BTD = attention(dropout=0.5), torch.ones(1, 6, WIDTH)
    plain = attention()(hidden_BTD, None, causal=True)

    assert_close(made(hidden_BTD, None, causal=True), plain)
    torch.manual_seed(0)
    assert not torch.allclose(made.train()(hidden_BTD, None, causal=True), plain)
