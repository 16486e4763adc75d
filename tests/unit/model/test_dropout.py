"""Our dropout: torch's, but for where its random numbers come from."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from transfer_cli.model.dropout import LEAST_ELEMENTS, Dropout

LARGE = (64, 1024)


def drawn(seed=0, shape=LARGE, probability=0.1):
    torch.manual_seed(seed)
    return Dropout(probability)(torch.ones(shape))


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_zeroes_that_share_and_keeps_the_mean(probability):
    out = drawn(shape=(512, 1024), probability=probability)
    kept = (out != 0).double().mean().item()
    deviation = (probability * (1 - probability) / out.numel()) ** 0.5
    assert abs(1 - kept - probability) < 5 * deviation
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - probability)], rel=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_are_drawn_independently(axis):
    dropped = (drawn(shape=(512, 1024), probability=0.3) == 0).double() - 0.3
    neighbours = (dropped * dropped.roll(1, axis)).mean().item() / 0.21
    assert abs(neighbours) < 5 / dropped.numel() ** 0.5


def test_draws_follow_from_the_seed_and_differ_from_call_to_call():
    assert drawn(1).equal(drawn(1))
    assert not drawn(1).equal(drawn(2))
    torch.manual_seed(0)
    layer, ones = Dropout(0.1), torch.ones(LARGE)
    assert not layer(ones).equal(layer(ones))


def test_the_gradient_passes_where_the_value_did():
    torch.manual_seed(0)
    states = torch.randn(LARGE, requires_grad=True)
    out = Dropout(0.25)(states)
    out.backward(torch.full_like(out, 3.0))
    torch.testing.assert_close(states.grad, 3 * (out / states).detach())


def test_no_dropout_outside_of_training_or_at_zero():
    states = torch.randn(LARGE)
    assert Dropout(0.5).eval()(states) is states
    assert Dropout(0.0)(states) is states


def test_a_pass_that_is_computed_again_drops_the_same():
    states = torch.randn(LARGE, requires_grad=True)
    layer = Dropout(0.5)
    out = checkpoint(lambda z: layer(z).square(), states, use_reentrant=False)
    out.sum().backward()
    torch.testing.assert_close(states.grad != 0, out != 0)


def test_few_elements_and_half_precision_are_dropped_as_well():
    few = Dropout(0.5)(torch.ones(LEAST_ELEMENTS // 8))
    assert set(few.tolist()) == {0.0, 2.0}
    half = Dropout(0.1)(torch.ones(LARGE, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.float().mean().item() == pytest.approx(1, abs=0.01)
