"""Layers that hold what edits have added: low-rank updates, factors; and what merges."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from tests import tiny
from tests.earlier_torch import EarlierAutocast
from transfer_cli.adaptation.edit import apply_edit
from transfer_cli.adaptation.edits import Adapters, LoRA, MixLayers, NewRows, Segments
from transfer_cli.model.added import (
    Added,
    Mergeable,
    added_modules,
    added_parameters,
    merge,
    unmerge,
    unmergeable_edits,
    unmerged_parameters,
)
from transfer_cli.model.edited_linear import add_ia3
from transfer_cli.model.lora import Decomposed, LowRank, add_lora
from transfer_cli.objectives.causal_lm import CausalLM

TARGETS = ("query", "key", "value", "output", "feed_forward")
TOKENS = torch.arange(5, 25).view(2, 10)
MASK = torch.arange(10) < torch.tensor([[10], [6]])


def updates(rank=3, *, alpha=4.0, dropout=0.0, kind=LowRank):
    return partial(kind, rank=rank, scale=alpha / rank, dropout=dropout)


def with_lora(targets, rank=3, dropout=0.0, kind=LowRank, **changes):
    backbone = tiny.backbone(**changes)
    for block in backbone.blocks:
        add_lora(block, targets, updates(rank, alpha=6.0, dropout=dropout, kind=kind))
    return backbone.eval()


def top(backbone):
    return backbone(TOKENS, MASK)[-1].detach()


def added(backbone):
    return sum(p.numel() for name, p in backbone.named_parameters() if ".lora." in name)


@settings(max_examples=30)
@given(
    targets=st.sets(st.sampled_from(TARGETS), min_size=1).map(tuple),
    rank=st.integers(1, 20),
    feedforward=st.integers(1, 40),
)
def test_a_matrix_gets_rank_times_its_rows_and_columns(targets, rank, feedforward):
    backbone = with_lora(targets, rank, width=16, feedforward=feedforward)

    square = sum(target != "feed_forward" for target in targets) * rank * (16 + 16)
    both = 2 * rank * (16 + feedforward) if "feed_forward" in targets else 0
    assert added(backbone) == 3 * (square + both)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_changes_the_output_once_it_has_learnt(target):
    backbone = with_lora((target,))
    before = top(backbone)

    tiny.lively(backbone.blocks[1].get_submodule("attention" if target in TARGETS[:4] else ""))

    assert not torch.allclose(before, top(backbone))


@pytest.mark.parametrize(("target", "rows"), [("query", 0), ("key", 16), ("value", 32)])
def test_a_packed_update_reaches_its_own_rows_only(target, rows):
    layer = with_lora((target,)).blocks[0].attention.packed
    hidden = torch.randn(5, 16)
    plain = nn.functional.linear(hidden, layer.weight, layer.bias)
    tiny.lively(layer.lora)

    changed = (layer(hidden) != plain).any(0)

    assert changed[rows : rows + 16].all()
    assert changed.sum() == 16


@pytest.mark.parametrize("kind", [LowRank, Decomposed])
def test_an_update_is_alpha_over_rank_times_b_a_and_dora_m_times_the_direction(kind):
    layer = tiny.lively(with_lora(("output",), kind=kind).blocks[0].attention.output)
    update, hidden = layer.lora["all"], torch.randn(5, 16)

    out = layer(hidden)

    changed = layer.weight + 6.0 / 3 * update.up @ update.down
    if kind is Decomposed:
        changed = update.magnitude[:, None] * changed / changed.norm(dim=1, keepdim=True)
    assert_close(out, hidden @ changed.T + layer.bias)


def test_fresh_factors_are_kaiming_uniform_and_zero():
    update = LowRank(torch.empty(60, 400), slice(0, 50), rank=8, scale=1.0, dropout=0.0)

    # Kaiming with a = sqrt(5): uniform within 1 / sqrt(inputs).
    bound = 1 / math.sqrt(400)
    assert float(update.down.detach().abs().max()) == pytest.approx(bound, rel=0.02)
    assert float(update.down.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not update.up.any()


@pytest.mark.parametrize("kind", [LowRank, Decomposed])
def test_the_input_of_an_update_is_dropped_in_training_and_that_of_the_matrix_never(kind):
    layer = with_lora(("output",), dropout=0.9, kind=kind).blocks[0].attention.output.train()
    hidden = torch.randn(5, 16)

    plain = layer(hidden)
    tiny.lively(layer.lora)

    assert torch.equal(plain, nn.functional.linear(hidden, layer.weight, layer.bias))
    assert not torch.equal(layer(hidden), layer(hidden))
    assert torch.equal(layer.eval()(hidden), layer(hidden))


def test_drawing_weights_does_not_depend_on_what_is_replaced():
    torch.manual_seed(0)
    expected = LowRank(torch.empty(16, 16), slice(0, 16), rank=2, scale=1.0, dropout=0.0).down
    block = tiny.backbone().blocks[0]
    torch.manual_seed(0)

    add_lora(block, ("output",), updates(2))

    assert torch.equal(block.attention.output.lora["all"].down, expected)


def test_merging_keeps_what_is_frozen_frozen():
    backbone = with_lora(("value",))
    backbone.blocks[0].attention.packed.weight.requires_grad_(requires_grad=False)

    merge(backbone)

    packed = [block.attention.packed.weight.requires_grad for block in backbone.blocks]
    assert packed == [False, True, True]


# DoRA.


def steps_of(backbone, count, rate=0.01):
    """Train what was added for a few steps of gradient descent, on nothing in particular."""
    trained = [p for name, p in backbone.named_parameters() if ".lora." in name]
    for _ in range(count):
        backbone.zero_grad()
        backbone(TOKENS, MASK)[-1].square().mean().backward()
        with torch.no_grad():
            for parameter in trained:
                parameter.sub_(rate * parameter.grad.sign())


@pytest.mark.parametrize("shape", [{}, {"biases": "none"}, tiny.MODERN], ids=str)
def test_rows_of_dora_have_their_magnitudes_at_first_and_after_each_step(shape):
    backbone = with_lora(TARGETS, kind=Decomposed, **shape)
    layer = backbone.blocks[1].attention.packed
    before = layer.lora["key"].magnitude.detach().clone()

    for count in (0, 1, 2):
        steps_of(backbone, count=count)
        norms = layer.merged().weight.norm(dim=1)
        assert_close(norms, torch.cat([part.magnitude for part in layer.lora.values()]))

    assert not torch.allclose(layer.lora["key"].magnitude, before)


def test_the_norm_of_dora_is_a_constant_to_the_backward_pass():
    layer = tiny.lively(with_lora(("output",), kind=Decomposed).blocks[0].attention.output)
    update, hidden = layer.lora["all"], torch.randn(5, 16)

    layer(hidden).sum().backward()

    changed = layer.weight + update.matrix()
    gain = (update.magnitude / changed.norm(dim=1)).detach()
    up = update.up.detach().requires_grad_()
    (gain * (hidden @ (update.scale * up @ update.down.detach()).T)).sum().backward()
    assert_close(update.up.grad, up.grad)


def test_dora_learns_all_of_it_though_torch_keeps_what_it_casts(monkeypatch):
    layer = tiny.lively(with_lora(("output",), kind=Decomposed).blocks[0].attention.output)

    with EarlierAutocast(monkeypatch):
        layer(torch.ones(3, 16)).float().square().sum().backward()

    assert all(parameter.grad is not None for parameter in layer.lora.parameters())


def test_a_row_of_zeros_stays_one_under_dora():
    block = tiny.backbone().blocks[0]
    with torch.no_grad():
        block.attention.output.weight[3] = 0
    add_lora(block, ("output",), updates(kind=Decomposed))
    layer, hidden = block.attention.output, torch.randn(5, 16)

    out = layer(hidden)
    out.sum().backward()

    assert torch.equal(out, nn.functional.linear(hidden, layer.weight, layer.bias))
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_a_block_takes_updates_once():
    block = with_lora(("value",)).blocks[0]

    with pytest.raises(ValueError, match="has LoRA already"):
        add_lora(block, ("query",), updates())


SHAPES = {
    "plain": {},
    "grouped, gated, without biases": tiny.MODERN,
    "biases of queries, keys and values": {"biases": "qkv", "key_value_heads": 1},
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def with_factors(*, lora=(), **shape):
    backbone = tiny.backbone(**shape)
    for block in backbone.blocks:
        add_ia3(block)
        if lora:
            add_lora(block, lora, updates())
    return backbone.eval()


@each_shape
def test_factors_are_as_many_as_features_of_keys_values_and_the_inner_activation(shape):
    backbone = with_factors(**shape)

    shared = backbone.shape.kv_heads * backbone.shape.head_size
    sizes = {
        name.partition(".")[2].removesuffix(".weight"): parameter.numel()
        for name, parameter in backbone.blocks.named_parameters()
        if "factors" in name
    }
    assert sizes == {
        "attention.packed.factors.key": shared,
        "attention.packed.factors.value": shared,
        "feed_forward.output.input_factors": backbone.shape.feedforward,
    }


def test_factors_multiply_keys_and_values_and_never_queries():
    layer = with_factors().blocks[0].attention.packed
    hidden = torch.randn(5, 16)
    plain = nn.functional.linear(hidden, layer.weight, layer.bias)
    layer.factors["key"].weight.data.fill_(2.0)
    layer.factors["value"].weight.data.fill_(3.0)

    out = layer(hidden)

    assert_close(out, plain * torch.tensor([1.0, 2.0, 3.0]).repeat_interleave(16))


def test_the_factors_of_a_gated_layer_multiply_its_product():
    layer = tiny.lively(with_factors(**tiny.MODERN).blocks[0].feed_forward)
    hidden = torch.randn(5, 16)

    out = layer(hidden)

    gate, up = layer.inner(hidden).chunk(2, dim=-1)
    scaled = layer.activation(gate) * up * layer.output.input_factors.weight
    assert_close(out, scaled @ layer.output.weight.T)


@pytest.mark.parametrize("backbone", [with_lora(TARGETS), with_factors(lora=("value",))])
def test_unmerging_restores_weights_and_biases_bit_for_bit(backbone):
    tiny.lively(backbone)
    before, parameters = tiny.weights_of(backbone), list(backbone.parameters())

    unmerge(backbone, merge(backbone))

    assert tiny.same(backbone.state_dict(), before)
    # An optimizer that holds the parameters still holds those of the model.
    assert [id(p) for p in backbone.parameters()] == [id(p) for p in parameters]


@pytest.mark.parametrize("first", ["lora", "ia3"])
def test_factors_are_of_the_updated_layer_whichever_came_first(first):
    block = tiny.backbone().blocks[0]
    adds = [lambda: add_lora(block, ("value",), updates()), lambda: add_ia3(block)]
    for add in adds if first == "lora" else adds[::-1]:
        add()
    layer = tiny.lively(block.attention.packed)
    hidden = torch.randn(5, 16)

    out = layer(hidden)

    value = layer.weight[32:] + layer.lora["value"].matrix()
    assert_close(out[:, 32:], (hidden @ value.T + layer.bias[32:]) * layer.factors["value"].weight)


EVERY = {"lora": LoRA(), "bottleneck": Adapters(4), "rows": NewRows(), "mix": MixLayers(),
         "segments": Segments()}  # fmt: skip


def edited(**edits):
    model = tiny.model(CausalLM()).eval()
    for name, edit in edits.items():
        apply_edit(edit, name, model, {"cls": 2})
    return model


def test_what_is_added_knows_the_name_of_its_edit():
    model = edited(**EVERY)

    of_group = {name: part.edit for name, part in added_parameters(model).items()}

    assert set(of_group.values()) == EVERY.keys()
    assert of_group["readout.gamma"] == "mix"
    assert of_group["backbone.new_rows.delta"] == "rows"


def test_only_edits_that_can_be_merged_are():
    model = edited(**EVERY)
    lasting = unmerged_parameters(model)

    merge(model)

    assert lasting == added_parameters(model)
    assert {part.edit for part in added_modules(model).values()} == EVERY.keys() - {"lora"}
    assert unmergeable_edits(model) == {
        "bottleneck": "adapters between its layers (adaptation.edits.bottleneck)",
        "rows": "embeddings that are added to others (adaptation.edits.rows)",
        "mix": "a mix of its layers (adaptation.edits.mix)",
        "segments": "embeddings of segments (adaptation.edits.segments)",
    }


class Doubled(nn.Linear):
    """A layer that can be merged, with a part that an edit has added."""

    def __init__(self):
        super().__init__(4, 4)
        self.extra = Extra()

    def merged(self):
        return nn.Linear(4, 4)


class Extra(Added):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


def test_an_edit_that_could_be_merged_in_part_is_not_merged_at_all():
    half = nn.ModuleDict({"layer": Doubled(), "alone": Extra()})

    assert isinstance(half["layer"], Mergeable)
    assert not merge(half)
    assert unmergeable_edits(half) == {"": "Extra (adaptation.edits.)"}
