import pytest
import torch
from torch.testing import assert_close

from transfer_cli.model.readout import ScalarMix, TopLayer

STATES = [torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(n)) * 3**n for n in range(4)]


def normed(state):
    centred = state - state.mean(-1, keepdim=True)
    return centred / (state.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


def test_a_fresh_mix_is_the_plain_average():
    mix = ScalarMix(4, norm=False)

    assert_close(mix(STATES), torch.stack(STATES).mean(0))
    assert torch.equal(mix.layer_weights(), torch.full((4,), 0.25))


def test_with_a_norm_every_state_counts_alike():
    mix = ScalarMix(4, norm=True)

    assert_close(mix(STATES), torch.stack([normed(state) for state in STATES]).mean(0))


@pytest.mark.parametrize("norm", [True, False])
def test_a_mix_is_gamma_times_the_states_by_their_shares(norm):
    mix = ScalarMix(4, norm=norm)
    mix.weight.data = torch.tensor([0.3, -1.0, 2.0, 0.0])
    mix.gamma.data = torch.tensor(1.7)

    shares = mix.layer_weights()

    seen = [normed(state) if norm else state for state in STATES]
    expected = 1.7 * sum(share * state for share, state in zip(shares, seen, strict=True))
    assert_close(mix(STATES), expected)
    assert_close(shares.sum(), torch.tensor(1.0))
    assert_close(shares, torch.tensor([0.3, -1.0, 2.0, 0.0]).softmax(0))


def test_a_mix_has_a_weight_for_each_layer_and_one_for_all_whatever_the_norm():
    for norm in (True, False):
        shapes = {name: tuple(t.shape) for name, t in ScalarMix(4, norm=norm).named_parameters()}
        assert shapes == {"weight": (4,), "gamma": ()}


def test_a_mix_refuses_another_number_of_layers():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ScalarMix(4, norm=False)(STATES[:3])


def test_readouts_say_which_states_they_read():
    states = [torch.full((1, 1, 2), float("nan"))] * 3 + [torch.ones(1, 1, 2)]

    assert torch.equal(TopLayer()(states), TopLayer()([states[n] for n in TopLayer.layers]))
    assert ScalarMix(4, norm=False).layers is None
