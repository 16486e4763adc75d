"""Layers that hold what edits have added: factors, beside low-rank updates."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.added import merge, unmerge
from transfer_cli.model.edited_linear import EditedLinear
from transfer_cli.model.ia3 import add_ia3
from transfer_cli.model.lora import LowRank, add_lora

TARGETS = ("query", "key", "value", "output", "feed_forward")
TOKENS = torch.arange(5, 25).view(2, 10)
UPDATES = partial(LowRank, rank=3, scale=2.0, dropout=0.0)
MASK = torch.arange(10) < torch.tensor([[10], [6]])
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
            add_lora(block, lora, UPDATES)
    return backbone.eval()


def top(backbone):
    return backbone(TOKENS, MASK)[-1].detach()[MASK]


@each_shape
def test_factors_are_as_many_as_features_of_keys_values_and_the_inner_activation(shape):
    backbone = with_factors(**shape)

    shared = backbone.shape.shared_heads * backbone.shape.head_size
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


@each_shape
def test_factors_change_nothing_at_first(shape):
    assert torch.equal(top(with_factors(**shape)), top(tiny.backbone(**shape).eval()))


def test_factors_multiply_keys_and_values_and_never_queries():
    layer = with_factors().blocks[0].attention.packed
    hidden = torch.randn(5, 16)
    plain = nn.functional.linear(hidden, layer.weight, layer.bias)
    layer.factors["key"].weight.data.fill_(2.0)
    layer.factors["value"].weight.data.fill_(3.0)

    out = layer(hidden)

    assert_close(out, plain * torch.tensor([1.0, 2.0, 3.0]).repeat_interleave(16))


def test_the_factors_of_a_gated_layer_multiply_its_product():
    layer = with_factors(**tiny.MODERN).blocks[0].feed_forward
    tiny.lively(layer)
    hidden = torch.randn(5, 16)

    out = layer(hidden)

    gate, up = layer.inner(hidden).chunk(2, dim=-1)
    scaled = layer.activation(gate) * up * layer.output.input_factors.weight
    assert_close(out, scaled @ layer.output.weight.T)


@pytest.mark.parametrize("lora", [(), TARGETS])
@each_shape
def test_a_merged_model_has_plain_names_and_the_same_outputs(shape, lora):
    backbone = with_factors(lora=lora, **shape)
    tiny.lively(backbone, std=0.2)
    before = top(backbone)

    merge(backbone)

    assert backbone.state_dict().keys() == tiny.backbone(**shape).state_dict().keys()
    assert not any(isinstance(module, EditedLinear) for module in backbone.modules())
    assert_close(top(backbone), before, rtol=1e-5, atol=1e-5)


def test_unmerging_restores_weights_and_biases_bit_for_bit():
    backbone = with_factors(lora=("value",))
    tiny.lively(backbone)
    before, parameters = tiny.weights_of(backbone), list(backbone.parameters())

    unmerge(backbone, merge(backbone))

    assert tiny.same(backbone.state_dict(), before)
    assert [id(p) for p in backbone.parameters()] == [id(p) for p in parameters]


@pytest.mark.parametrize("first", ["lora", "ia3"])
def test_factors_are_of_the_updated_layer_whichever_came_first(first):
    block = tiny.backbone().blocks[0]
    adds = [lambda: add_lora(block, ("value",), UPDATES),
            lambda: add_ia3(block)]  # fmt: skip
    for add in adds if first == "lora" else adds[::-1]:
        add()
    layer = block.attention.packed
    tiny.lively(layer)
    hidden = torch.randn(5, 16)

    out = layer(hidden)

    value = layer.weight[32:] + layer.lora["value"].matrix()
    assert_close(out[:, 32:], (hidden @ value.T + layer.bias[32:]) * layer.factors["value"].weight)
