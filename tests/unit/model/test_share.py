"""Blocks that share their weights, and biases of distances."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import FreshTop
from transfer_cli.adaptation.plans import GradualUnfreezing
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.positions import RelativeBias
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.causal_lm import CausalLM

TOKENS = torch.randint(5, 48, (2, 12), generator=torch.Generator().manual_seed(0))
ALL = torch.ones_like(TOKENS, dtype=torch.bool)


def copies(shared):
    """Return the same model with blocks of their own."""
    plain = Backbone(tiny.shape(depth=4), tiny.VOCABULARY.size)
    weights = shared.state_dict()
    for place, number in enumerate(shared.shape.visits):
        block = f"blocks.{number}."
        weights |= {
            f"own.{place}.{name.removeprefix(block)}": tensor
            for name, tensor in shared.state_dict().items()
            if name.startswith(block)
        }
    plain.load_state_dict(
        {
            name.replace("own.", "blocks."): tensor
            for name, tensor in weights.items()
            if not name.startswith("blocks.")
        }
    )
    return plain


def model_with(share):
    backbone = tiny.backbone(depth=4, share=share)
    tiny.lively(backbone)
    return backbone


@pytest.mark.parametrize(
    ("share", "visits"), [("all", [0] * 4), (2, [0, 0, 1, 1]), (3, [0, 0, 1, 2])]
)
def test_a_shared_block_is_its_copies_and_its_gradient_their_sum(share, visits):
    shared = model_with(share)
    plain = copies(shared)

    states, expected = (model(TOKENS, ALL, padded=False) for model in (shared, plain))
    for found in (states, expected):
        found[-1].pow(2).sum().backward()

    assert shared.shape.visits == visits
    assert len(states) == 5
    assert_close(states, expected)
    for number, block in enumerate(shared.blocks):
        places = [plain.blocks[place] for place, visit in enumerate(visits) if visit == number]
        for name, parameter in block.named_parameters():
            total = sum(place.get_parameter(name).grad for place in places)
            assert total.abs().sum() > 0
            assert_close(parameter.grad, total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"share": "all"}, {"share": 2}, {"position_kind": "relative_bias"}]
)
def test_a_cache_and_recomputation_change_nothing(changes):
    backbone = tiny.backbone(depth=4, **changes).eval()
    tiny.lively(backbone)
    whole = backbone(TOKENS, ALL, padded=False)
    kv_cache = KVCache(4, 12)

    parts = [
        backbone(TOKENS[:, part], ALL[:, part], padded=False, kv_cache=kv_cache)[-1]
        for part in (slice(0, 5), slice(5, 6), slice(6, 12))
    ]
    backbone.recompute(True)
    again = backbone(TOKENS, ALL, padded=False)

    assert_close(torch.cat(parts, dim=1), whole[-1], rtol=1e-4, atol=1e-5)
    assert_close(again, whole)


def test_groups_and_stages_are_those_of_distinct_blocks():
    model = tiny.model(CausalLM(), depth=4, share="all")
    names = {name for name, _ in model.named_parameters()}

    groups = layer_groups(model, names)
    stages = GradualUnfreezing()(groups)

    assert [group.name for group in groups][:2] == ["embeddings", "block.0"]
    assert len(stages) == 3


def test_what_sharing_rules_out_is_refused():
    with pytest.raises(ValueError, match="blocks are shared, so the top ones are not apart"):
        FreshTop()(tiny.model(CausalLM(), share="all"), {})
    with pytest.raises(ValueError, match="residual=pre_first_plain the first block is unlike"):
        tiny.shape(share="all", residual="pre_first_plain")
    with pytest.raises(ValueError, match="share must be at most 3, got 4"):
        tiny.shape(share=4)
    with pytest.raises(ValueError, match="share: 'al' is not one of none, all"):
        tiny.shape(share="al")


def test_biases_belong_to_ranges_of_distances():
    positions = RelativeBias(tiny.shape(position_kind="relative_bias"))

    found = positions._range(torch.tensor([0, -1, -7, -8, -15, -127, -128, -999, 1, 7, 8, 999]))

    grown = 8 + int(math.log(15 / 8) / math.log(16) * 8)
    assert found.tolist() == [0, 1, 7, 8, grown, 15, 15, 15, 17, 23, 24, 31]


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("side", [0, 1])
def test_padding_changes_no_state_of_a_model_with_biases(direction, side):
    backbone = tiny.backbone(position_kind="relative_bias", direction=direction).eval()
    tiny.lively(backbone)
    tokens, mask = torch.zeros(2, 16, dtype=torch.long), torch.zeros(2, 16, dtype=torch.bool)
    place = slice(0, 12) if side else slice(4, 16)
    tokens[:, place], mask[:, place] = TOKENS, True

    alone, padded = backbone(TOKENS, ALL, padded=False)[-1], backbone(tokens, mask)[-1]

    assert_close(padded[:, place], alone, rtol=1e-4, atol=1e-5)
