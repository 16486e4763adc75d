"""Layer groups, blocks that share their weights, and blocks that are picked of a model."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, FreshTop, LoRA, MixLayers, NewRows
from transfer_cli.adaptation.plans import GradualUnfreezing
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.picked_blocks import evenly_spaced, shape_of_blocks, tensors_of_blocks
from transfer_cli.model.positions import RelativeBias
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification

RESIDUALS = ("pre", "post", "tutorial")


@settings(max_examples=50)
@given(
    depth=st.integers(1, 12),
    residual=st.sampled_from(RESIDUALS),
    position_kind=st.sampled_from(["learned", "sinusoidal"]),
    tie_output=st.booleans(),
    output_transform=st.booleans(),
    heads=st.sampled_from([(), ("lm",), ("class",), ("lm", "class")]),
)
def test_layer_groups_partition_the_parameters(heads, depth, **changes):
    objectives = {"lm": CausalLM(), "class": Classification()}
    model = tiny.model(*(objectives[head] for head in heads), depth=depth, **changes)

    groups = layer_groups(model, set())

    members = [name for group in groups for name in group.parameters]
    assert sorted(members) == sorted(dict(model.named_parameters()))
    blocks = [f"block.{n}" for n in range(depth)]
    named_heads = [f"head.{head}" for head in sorted(heads)]
    assert [group.name for group in groups] == ["embeddings", *blocks, *named_heads]
    depths = [*range(depth + 1), *[depth + 1] * len(heads)]
    assert [group.depth for group in groups] == depths


def by_name(model):
    return {group.name: group.parameters for group in layer_groups(model, set())}


def test_norms_outside_of_blocks_belong_to_their_neighbours():
    pre, post = by_name(tiny.model(residual="pre")), by_name(tiny.model(residual="post"))

    assert "backbone.final_norm.weight" in pre["block.2"]
    assert "backbone.embedding_norm.weight" in post["embeddings"]


def test_a_group_is_inherited_only_when_all_of_it_was_loaded():
    model = tiny.model(CausalLM())
    names = {name for name, _ in model.named_parameters() if not name.startswith("heads.")}
    names.remove("backbone.blocks.1.attention.packed.bias")

    inherited = {group.name: group.inherited for group in layer_groups(model, names)}

    assert inherited == {
        "embeddings": True, "block.0": True, "block.1": False, "block.2": True, "head.lm": False,
    }  # fmt: skip


def edited(*edits, depth=3):
    model = tiny.model(CausalLM(), Classification(), depth=depth)
    for edit in edits:
        edit(model, {"cls": 2})
    return model


def test_what_edits_add_has_groups_of_its_own_at_the_depth_of_heads():
    model = edited(Adapters(4), LoRA(2), NewRows(), MixLayers())

    groups = layer_groups(model, set())

    assert [(group.name, group.depth) for group in groups] == [
        ("embeddings", 0), ("block.0", 1), ("block.1", 2), ("block.2", 3),
        ("added.embeddings", 4), ("added.0", 4), ("added.1", 4), ("added.2", 4),
        ("head.class", 4), ("head.lm", 4), ("head.readout", 4),
    ]  # fmt: skip


def test_edits_leave_the_other_groups_as_they_were():
    model = edited(Adapters(4), LoRA(2), NewRows(), MixLayers())

    before, after = by_name(edited()), by_name(model)

    assert {name: after[name] for name in before} == before
    members = [name for names in after.values() for name in names]
    assert sorted(members) == sorted(dict(model.named_parameters()))


def test_added_groups_are_new_where_their_blocks_are_inherited():
    loaded = {name for name, _ in edited().named_parameters()}

    groups = layer_groups(edited(Adapters(4)), loaded)

    assert {group.name for group in groups if not group.inherited} == {
        "added.0", "added.1", "added.2",
    }  # fmt: skip


def test_added_groups_lie_in_the_order_of_their_blocks():
    groups = layer_groups(edited(Adapters(2), depth=12), set())

    added = [group.name for group in groups if group.name.startswith("added.")]
    assert added == [f"added.{number}" for number in range(12)]


def test_a_tied_table_is_one_parameter_and_stays_tied_in_a_copy():
    model = tiny.model(CausalLM())
    copied = copy.deepcopy(model)
    table = copied.backbone.token_embedding.weight
    hidden = torch.randn(4, 16)

    before = copied.heads["lm"](hidden, table)
    with torch.no_grad():
        table.mul_(2)

    assert not [name for name in copied.state_dict() if name.startswith("heads.lm.weight")]
    assert torch.allclose(copied.heads["lm"](hidden, table), 2 * before)
    assert not torch.equal(table, model.backbone.token_embedding.weight)


TOKENS = torch.randint(5, 48, (2, 12), generator=torch.Generator().manual_seed(0))
ALL = torch.ones_like(TOKENS, dtype=torch.bool)


def copies(shared):
    """Return the same model with blocks of their own."""
    plain = Backbone(tiny.shape(depth=4), tiny.VOCABULARY.size)
    weights = {n: t for n, t in shared.state_dict().items() if not n.startswith("blocks.")}
    plain.load_state_dict(weights, strict=False)
    for place, number in enumerate(shared.shape.block_order):
        plain.blocks[place].load_state_dict(shared.blocks[number].state_dict())
    return plain


def model_with(share):
    return tiny.lively(tiny.backbone(depth=4, share=share))


@pytest.mark.parametrize(
    ("share", "visits"), [("all", [0] * 4), (2, [0, 0, 1, 1]), (3, [0, 0, 1, 2])]
)
def test_a_shared_block_is_its_copies_and_its_gradient_their_sum(share, visits):
    shared = model_with(share)
    plain = copies(shared)

    states, expected = (model(TOKENS, ALL, padded=False) for model in (shared, plain))
    for outputs in (states, expected):
        outputs[-1].pow(2).sum().backward()

    assert shared.shape.block_order == visits
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
    backbone = tiny.lively(tiny.backbone(depth=4, **changes).eval())
    whole = backbone(TOKENS, ALL, padded=False)

    parts = tiny.read_in_parts(backbone, TOKENS, [5, 1, 6], KVCache(4, 12))
    backbone.set_activation_checkpointing(True)
    again = backbone(TOKENS, ALL, padded=False)

    assert_close(parts, whole[-1], rtol=1e-4, atol=1e-5)
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

    ranges = positions._bucket(torch.tensor([0, -1, -7, -8, -15, -127, -128, -999, 1, 7, 8, 999]))

    grown = 8 + int(math.log(15 / 8) / math.log(16) * 8)
    assert ranges.tolist() == [0, 1, 7, 8, grown, 15, 15, 15, 17, 23, 24, 31]


@pytest.mark.parametrize(
    ("depth", "blocks"), [(12, (1, 3, 5, 7, 9, 11)), (5, (0, 1, 2, 3, 4)), (5, (2,))]
)
def test_picked_blocks_are_the_middles_of_as_many_parts(depth, blocks):
    assert evenly_spaced(depth, len(blocks)) == blocks


@pytest.mark.parametrize("blocks", [0, 13, -1])
def test_more_blocks_than_there_are_cannot_be_spread(blocks):
    with pytest.raises(ValueError, match=f"{blocks} blocks cannot be picked of 12; give 1 to 12"):
        evenly_spaced(12, blocks)


def test_picked_blocks_and_all_around_them_are_those_of_the_model_bit_for_bit():
    model = tiny.backbone(depth=5)
    tensors = {f"backbone.{name}": tensor for name, tensor in model.state_dict().items()}

    picked = tensors_of_blocks({**tensors, "heads.lm.bias": torch.ones(3)}, (0, 3))

    shallow = tiny.backbone(seed=1, depth=2)
    weights = {name.removeprefix("backbone."): picked[name] for name in picked if name[0] == "b"}
    shallow.load_state_dict(weights)
    assert tiny.same(tiny.weights_of(shallow.blocks[0]), tiny.weights_of(model.blocks[0]))
    assert tiny.same(tiny.weights_of(shallow.blocks[1]), tiny.weights_of(model.blocks[3]))
    assert tiny.same(tiny.weights_of(shallow.final_norm), tiny.weights_of(model.final_norm))
    assert torch.equal(picked["heads.lm.bias"], torch.ones(3))


PLAIN_START = {"residual": "pre_first_plain"}
WINDOWS = {"attention": "window", "window": 4, "depth": 12, "global_every": 3}


@pytest.mark.parametrize(
    "row",
    [
        ((), "has to name a block or more"),
        ((2, 1), "ascending, each once"),
        ((1, 1), "ascending, each once"),
        ((0, 5), "goes beyond the model's blocks, which are 0 to 4"),
        ((-1, 0), "goes beyond the model's blocks"),
        ((0, 1), r"share their weights \(model.share=all\)", {"share": "all"}),
        ((1, 3), "has to begin with 0", PLAIN_START),
        ((0, 3, 4, 5, 6), "no rhythm of attention windows", WINDOWS),
    ],
)
def test_numbers_that_name_no_shallower_model_are_refused(row):
    layers, said, *changes = row

    with pytest.raises(ValueError, match=said):
        shape_of_blocks(tiny.shape(**{"depth": 5, **dict(*changes)}), layers)


def test_a_first_block_that_is_unlike_the_others_stays_the_first():
    assert shape_of_blocks(tiny.shape(depth=4, **PLAIN_START), (0, 3)).depth == 2


@pytest.mark.parametrize("layers", [(0, 2, 4, 6, 8, 10), (1, 2, 4, 5), (0, 3), (0, 2, 3, 5, 6, 8)])
def test_each_picked_block_keeps_its_window_or_goes_without(layers):
    shape = tiny.shape(**WINDOWS)

    picked_shape = shape_of_blocks(shape, layers)

    assert picked_shape.has_window == [shape.has_window[layer] for layer in layers]
