"""Real tokens alone are computed, and documents in a row are apart: states are as with padding."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import with_facts, with_packed_rows
from transfer_cli.errors import ConfigError
from transfer_cli.model.block import RESIDUALS
from transfer_cli.model.packing import Packing, RowPacking
from transfer_cli.model.positions import POSITIONS
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding

LENGTHS = torch.tensor([3, 9, 0, 12, 7])  # one sequence is not there
MASK = torch.arange(12) < LENGTHS[:, None]
TOKENS = torch.randint(0, 48, MASK.shape, generator=torch.Generator().manual_seed(0))
PACKING = Packing.from_mask(MASK, with_facts({"tokens": TOKENS, "mask": MASK})["real_rows"])


SEGMENT = MASK.long().cumsum(1) % 2


def built(**changes):
    return tiny.backbone(**{"positions": 12, "segments": 2, **changes}).double()


def with_gradients(part, real_states):
    """Return the hidden states at real tokens, and the gradients of a sum over them."""
    loss = sum((state * state.cos()).sum() for state in real_states)
    return real_states, torch.autograd.grad(loss, list(part.parameters()))


def check(prefix=None, mask=MASK, **changes):
    """Check that a packed pass equals the padded one."""
    backbone = built(**{"direction": "bidirectional", **changes})
    whole = backbone(TOKENS, mask, SEGMENT, prefix_B=prefix)
    packed = backbone(TOKENS, mask, SEGMENT, prefix_B=prefix, packing=tiny.packing(mask))
    assert_close(
        with_gradients(backbone, [state[0] for state in packed]),
        with_gradients(backbone, [state[mask] for state in whole]),
        rtol=0, atol=1e-10,
    )  # fmt: skip


@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_packed_pass_equals_the_padded_one(residual):
    check(residual=residual)


BOTH = [
    (kind, direction)
    for kind in POSITIONS
    for direction in ("causal", "bidirectional")
    if direction == "causal" or kind != "relative"  # those look back alone
]


@pytest.mark.parametrize(("position_kind", "direction"), BOTH)
def test_with_positions_and_directions(position_kind, direction):
    check(position_kind=position_kind, direction=direction)


def test_with_padding_on_the_left_prefixes_and_windows():
    check(mask=MASK.flip(1))
    check(prefix=torch.tensor([1, 4, 0, 12, 2]))
    check(attention="window", window=4)


@pytest.mark.parametrize(("position_kind", "direction"), BOTH)
def test_texts_in_rows_have_the_states_and_gradients_of_the_padded_pass(position_kind, direction):
    model = TransferModel(built(direction=direction, position_kind=position_kind), {})
    batch = {"tokens": TOKENS, "mask": MASK, "segment": SEGMENT}

    whole, rows = (
        with_gradients(model, [state[MASK] for state in Encoding(model, laid_out).states])
        for laid_out in (batch, with_packed_rows(batch))
    )

    assert_close(rows, whole, rtol=0, atol=1e-10)


def test_texts_go_into_the_first_row_with_room():
    rows = with_packed_rows({"tokens": TOKENS, "mask": MASK})["row_text"]

    assert rows.tolist() == [[3] * 12, [1] * 9 + [0] * 3, [4] * 7 + [-1] * 5]


def test_the_first_row_of_a_batch_without_room_is_another():
    batch = {"tokens": TOKENS[:2], "mask": torch.ones(2, 12, dtype=torch.bool)}
    facts = with_packed_rows(batch)

    rows = RowPacking(facts["real_rows"], facts["row_places"], facts["row_text"], 2, 12)

    assert rows.mask.all()
    assert torch.equal(rows.unpack(rows.pack(TOKENS[:2])), TOKENS[:2])


def test_texts_with_prefixes_are_not_put_into_rows():
    batch = {"tokens": TOKENS, "mask": MASK, "prefix": LENGTHS}

    with pytest.raises(ConfigError, match=r"loop\.pack: texts whose positions all see a prefix"):
        with_packed_rows(batch)


def test_layers_see_real_tokens_alone():
    backbone, seen = tiny.backbone(depth=2), []
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
    assert Packing.from_mask(MASK.flip(1), PACKING.rows).lengths == (12, 12, 0, 12, 12)


DOCUMENTS_LENGTHS = (5, 1, 6)
DOCUMENTS_TOKENS = torch.randint(5, 48, (1, 12), generator=torch.Generator().manual_seed(0))
DOCUMENTS = torch.tensor([[7] * 5 + [8] + [9] * 6])
KINDS = {
    "learned": {}, "sinusoidal": {"position_kind": "sinusoidal"},
    "relative_bias": {"position_kind": "relative_bias"}, "modern": tiny.MODERN,
}  # fmt: skip


def alone(backbone):
    """Return the states of each document that has a row of its own."""
    parts = DOCUMENTS_TOKENS.split(DOCUMENTS_LENGTHS, dim=1)
    return [backbone(part, part > 0, padded=False) for part in parts]


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_documents_in_a_row_have_the_states_of_each_alone(direction, kind, padding, packed):
    backbone = tiny.lively(tiny.backbone(direction=direction, **KINDS[kind]))
    tokens = torch.nn.functional.pad(DOCUMENTS_TOKENS, (0, padding))
    mask, documents = tokens > 0, torch.nn.functional.pad(DOCUMENTS, (0, padding), value=9)
    packing = tiny.packing(mask) if packed else None

    states = backbone(tokens, mask, padded=padding > 0, document_BT=documents, packing=packing)

    expected = [torch.cat(parts, dim=1) for parts in zip(*alone(backbone), strict=True)]
    assert_close([state[:, :12] for state in states], expected, rtol=1e-4, atol=1e-5)
    before = backbone(tokens, mask, padded=padding > 0)[-1]
    assert not torch.isclose(before[:, 6:12], states[-1][:, 6:12], atol=1e-3).all()
