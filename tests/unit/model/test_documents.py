"""Documents beside each other in a row, and each alone."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.packing import Packing

LENGTHS = (5, 1, 6)
TOKENS = torch.randint(5, 48, (1, 12), generator=torch.Generator().manual_seed(0))
DOCUMENTS = torch.tensor([[7] * 5 + [8] + [9] * 6])
KINDS = {
    "learned": {}, "sinusoidal": {"position_kind": "sinusoidal"},
    "relative_bias": {"position_kind": "relative_bias"}, "modern": tiny.MODERN,
}  # fmt: skip


def alone(backbone):
    """Return the states of each document that has a row of its own."""
    parts = TOKENS.split(LENGTHS, dim=1)
    return [backbone(part, part > 0, padded=False) for part in parts]


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_documents_in_a_row_have_the_states_of_each_alone(direction, kind, padding, packed):
    backbone = tiny.backbone(direction=direction, **KINDS[kind])
    tiny.lively(backbone)
    tokens = torch.nn.functional.pad(TOKENS, (0, padding))
    mask, documents = tokens > 0, torch.nn.functional.pad(DOCUMENTS, (0, padding), value=9)
    packing = Packing.of(mask, mask.flatten().nonzero().squeeze(1)) if packed else None

    states = backbone(
        tokens, mask, padded=padding > 0, document_BT=documents, packing=packing
    )  # fmt: skip

    expected = zip(*alone(backbone), strict=True)
    for found, parts in zip(states, expected, strict=True):
        assert_close(found[:, :12], torch.cat(parts, dim=1), rtol=1e-4, atol=1e-5)
    before = backbone(tokens, mask, padded=padding > 0)[-1]
    assert not torch.isclose(before[:, 6:12], states[-1][:, 6:12], atol=1e-3).all()
