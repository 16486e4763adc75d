"""Legend: B batch, H heads, T positions, D width."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.attention import AttentionInputs, SelfAttention
from transfer_cli.model.patterns import attention_mask

WIDTH, HEADS = 16, 4
CAUSAL = AttentionInputs(causal=True)


def attention(seed=0, dropout=0.0):
    made = SelfAttention(tiny.shape(heads=HEADS, attention_dropout=dropout)).eval()
    tiny.lively(made, seed)
    return made


@pytest.mark.parametrize("causal", [True, False])
def test_no_position_sees_a_padded_key_but_each_sees_itself(causal):
    mask_BT = torch.tensor([[True, True, False], [False, True, True]])

    attn_mask = attention_mask(mask_BT, causal=causal)[:, 0]

    for row in range(2):
        for query in range(3):
            for key in range(3):
                seen = mask_BT[row, key] and (key <= query or not causal)
                assert attn_mask[row, query, key] == (seen or key == query)


def test_attention_dropout_acts_in_training_only():
    made, hidden_BTD = attention(dropout=0.5), torch.ones(1, 6, WIDTH)
    plain = attention()(hidden_BTD, CAUSAL)

    assert_close(made(hidden_BTD, CAUSAL), plain)
    torch.manual_seed(0)
    assert not torch.allclose(made.train()(hidden_BTD, CAUSAL), plain)
