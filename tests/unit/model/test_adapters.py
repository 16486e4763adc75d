import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.adapters import Adapter


@given(width=st.integers(1, 40), size=st.integers(1, 40))
def test_an_adapter_has_the_parameters_of_the_formula(width, size):
    adapter = Adapter(width, size, "relu")

    found = sum(parameter.numel() for parameter in adapter.parameters())
    assert found == 2 * width * size + size + width


@pytest.mark.parametrize(("activation", "function"), [("relu", F.relu), ("gelu", F.gelu)])
def test_an_adapter_is_a_bottleneck_beside_its_input(activation, function):
    adapter, z = Adapter(6, 3, activation), torch.randn(2, 4, 6)
    tiny.lively(adapter)

    inner = function(z @ adapter.down.weight.T + adapter.down.bias)

    assert_close(adapter(z), z + inner @ adapter.up.weight.T + adapter.up.bias)


def test_a_fresh_adapter_is_exactly_the_identity():
    z = 100 * torch.randn(2, 4, 6)

    assert torch.equal(Adapter(6, 3, "relu")(z), z)


def test_a_fresh_adapter_can_learn():
    adapter = Adapter(200, 100, "relu")

    adapter(torch.randn(8, 200)).square().sum().backward()

    assert adapter.up.weight.grad.any()
    assert float(adapter.down.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert not adapter.down.bias.any()
