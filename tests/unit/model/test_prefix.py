"""What a position sees of a prefix, and what it does not see of what follows.

Legend: B batch, T positions.
"""

import pytest
import torch

from tests import tiny
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.patterns import PATTERNS, prefix_mask

TOKENS = torch.tensor([[7, 8, 9, 10, 11, 12]])
ALL = torch.ones_like(TOKENS, dtype=torch.bool)


def backbone(direction="causal"):
    made = Backbone(tiny.shape(direction=direction), 48).eval()
    tiny.lively(made, 0)
    return made


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

    torch.testing.assert_close(both[:1], top(model, prefix=2))
    torch.testing.assert_close(both[1:], top(model, prefix=4))


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_a_prefix_is_cached_in_one_pass_and_what_follows_token_by_token(direction):
    model, cache = backbone(direction), KVCache(len(backbone().blocks), 6)

    parts = [
        top(model, TOKENS[:, a:b], ALL[:, a:b], 3, padded=False, kv_cache=cache)
        for a, b in ((0, 3), (3, 4), (4, 5), (5, 6))
    ]

    torch.testing.assert_close(torch.cat(parts, 1), top(model, prefix=3))


def test_recomputed_blocks_have_the_same_gradient():
    def gradient(*, recompute):
        model = backbone()
        model.recompute(blocks=recompute)
        model(TOKENS, ALL, prefix_B=torch.tensor([3]))[-1].square().sum().backward()
        return model.token_embedding.weight.grad

    assert torch.equal(gradient(recompute=False), gradient(recompute=True))


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_in_a_window_a_prefix_sees_near_tokens_on_both_sides(direction):
    shape = tiny.shape(direction=direction, attention="window", window=2)
    pattern = PATTERNS["window"](shape)

    inputs = pattern(ALL, padded=False, cached=0, prefix_B=torch.tensor([4]))

    local = next(each for each, near in zip(inputs, pattern.has_window, strict=True) if near)
    assert local.attn_mask[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]
