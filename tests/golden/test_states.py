"""States and gradients of fresh tiny backbones of every form, as they were before.

They hold the order in which weights are drawn, and what a form computes from them. See
`test_losses.py` for how to write the file anew.
"""

import itertools
import json
import os
from pathlib import Path

import pytest
import torch

from tests import tiny

FORMS = list(
    itertools.product(
        ["pre", "post", "tutorial"], ["learned", "sinusoidal"], ["causal", "bidirectional"]
    )
)
PATH = Path(__file__).with_name("states.json")


def sizes(residual, position_kind, direction):
    """Return how large a state and a gradient are, of a batch with padding on both sides."""
    backbone = tiny.backbone(residual=residual, position_kind=position_kind, direction=direction)
    tokens_BT = 5 + torch.arange(36).reshape(3, 12) * 7 % 43
    mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    mask_BT[1, 8:] = mask_BT[2, :3] = False
    weight_D = torch.arange(16.0)
    top_BTD = backbone(tokens_BT, mask_BT)[-1]
    (top_BTD[mask_BT] * weight_D).square().mean().backward()
    gradient = backbone.blocks[0].attention.packed.weight.grad.detach()
    return [float(top_BTD[mask_BT].detach().abs().sum()), float(gradient.abs().sum())]


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_a_fresh_backbone_computes_what_it_did_before(form):
    assert sizes(*form) == pytest.approx(json.loads(PATH.read_text())["-".join(form)], rel=1e-4)


if os.environ.get("TRANSFER_GOLDEN") == "write":
    states = {"-".join(form): sizes(*form) for form in FORMS}
    PATH.write_text(json.dumps(states, indent=1) + "\n")
