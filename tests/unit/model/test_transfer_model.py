import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, LoRA, MixLayers, NewRows
from transfer_cli.model.transfer_model import TransferModel, layer_groups
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


def test_norms_outside_of_blocks_belong_to_their_neighbours():
    pre, post = tiny.model(residual="pre"), tiny.model(residual="post")

    by_name = {group.name: group.parameters for group in layer_groups(pre, set())}
    post_groups = {group.name: group.parameters for group in layer_groups(post, set())}

    assert "backbone.final_norm.weight" in by_name["block.2"]
    assert "backbone.embedding_norm.weight" in post_groups["embeddings"]


def test_a_group_is_inherited_only_when_all_of_it_was_loaded():
    model = tiny.model(CausalLM())
    names = {name for name, _ in model.named_parameters() if not name.startswith("heads.")}
    names.remove("backbone.blocks.1.attention.packed.bias")

    inherited = {group.name: group.inherited for group in layer_groups(model, names)}

    assert inherited == {
        "embeddings": True, "block.0": True, "block.1": False, "block.2": True, "head.lm": False,
    }  # fmt: skip


def test_a_new_readout_is_a_head():
    model = TransferModel(tiny.backbone(), {})
    model.readout = nn.Linear(16, 16)

    assert layer_groups(model, set())[-1].name == "head.readout"


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
    plain, model = edited(), edited(Adapters(4), LoRA(2), NewRows(), MixLayers())

    before = {group.name: group.parameters for group in layer_groups(plain, set())}
    after = {group.name: group.parameters for group in layer_groups(model, set())}

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


def test_plain_models_read_the_top_state():
    states = [torch.zeros(1, 2, 3), torch.ones(1, 2, 3)]
    readout = TransferModel(tiny.backbone(), {}).readout

    assert readout(states) is states[-1]
    assert readout.layers == (-1,)
