"""What a finished run says about itself beyond its measures."""

import torch

from tests import tiny
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.classification import Classification
from transfer_cli.training.measurements import layer_shares, peak_memory


def test_a_learnt_mix_tells_how_much_each_layer_counts():
    model = tiny.model(Classification())
    assert layer_shares(model) is None

    mix = ScalarMix(4, norm=False)
    model.readout = mix
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.0, 0.0, 0.0, 100.0]))

    assert layer_shares(model) == [0, 0, 0, 1]


def test_memory_is_in_bytes():
    assert peak_memory(torch.device("cpu")) > 50 * 2**20
