"""Real tokens alone are computed: same states and gradients as with padding."""

import pytest
import torch
from torch.testing import assert_close

from transfer_cli.batch import with_facts
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.block import RESIDUALS
from transfer_cli.model.packing import Packing
from transfer_cli.model.positions import POSITIONS

LENGTHS = torch.tensor([3, 9, 0, 12, 7])  # one sequence is not there
MASK = torch.arange(12) < LENGTHS[:, None]
TOKENS = torch.randint(0, 50, MASK.shape, generator=torch.Generator().manual_seed(0))
PACKING = Packing.of(MASK, with_facts({"tokens": TOKENS, "mask": MASK})["real_rows"])


def passed(backbone, mask, packing, prefix):
    """Return the hidden states at real tokens, and the gradients of a sum over them."""
    backbone.zero_grad()
    states = backbone(TOKENS, mask, MASK.long().cumsum(1) % 2, prefix_B=prefix, packing=packing)
    found = [each[mask] if packing is None else each[0] for each in states]
    sum((each * each.cos()).sum() for each in found).backward()
    return found, [each.grad.clone() for each in backbone.parameters()]


def check(prefix=None, mask=MASK, **changes):
    """Check that a packed pass equals the padded one."""
    torch.manual_seed(0)
    shape = {"direction": "bidirectional", "residual": "pre", "position_kind": "learned"} | changes
    backbone = Backbone(
        BackboneShape(
            width=8, depth=3, heads=2, feedforward=16, positions=12, segments=2, dropout=0.0,
            attention_dropout=0.0, **shape,
        ),
        50,
    ).double()  # fmt: skip
    packing = Packing.of(mask, mask.flatten().nonzero().squeeze(1))
    whole, packed = (passed(backbone, mask, each, prefix) for each in (None, packing))
    assert_close(packed, whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_packed_pass_equals_the_padded_one(residual):
    check(residual=residual)


@pytest.mark.parametrize("position_kind", POSITIONS)
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_with_positions_and_directions(position_kind, direction):
    check(position_kind=position_kind, direction=direction)


def test_with_padding_on_the_left_prefixes_and_windows():
    check(mask=MASK.flip(1))
    check(prefix=torch.tensor([1, 4, 0, 12, 2]))
    check(attention_pattern="window", window=4)


def test_layers_see_real_tokens_alone():
    backbone = Backbone(
        BackboneShape(
            width=8, depth=2, heads=2, feedforward=16, positions=12, direction="causal"
        ),
        50,
    )  # fmt: skip
    seen = []
    for block in backbone.blocks:
        for part in (block.feed_forward, block.attention_norm, block.attention.output):
            part.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[:2]))
    backbone(TOKENS, MASK, packing=PACKING)
    assert seen == [(1, int(LENGTHS.sum()))] * 6


def test_unpacking_restores_what_was_packed():
    values = TOKENS + 1
    assert torch.equal(PACKING.unpack(PACKING.pack(values)), values * MASK)
    assert "real_rows" not in with_facts({"tokens": TOKENS[:1, :3], "mask": MASK[:1, :3]})


def test_lengths_reach_to_the_last_real_token():
    assert PACKING.lengths == tuple(LENGTHS.tolist())
    assert Packing.of(MASK.flip(1), PACKING.rows).lengths == (12, 12, 0, 12, 12)
