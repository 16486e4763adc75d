"""Averages of weights, against torch's `AveragedModel` in a loop written by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.engine.averaging import EMA, LastK
from transfer_cli.errors import ConfigError

LATER = 6
"""The step after which the first layer trains, too."""
TRAINS = {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight"}


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained(model, average, steps, *, first=0):
    """Yield the number of steps after each of them; the bias at the top never trains."""
    for step in range(first, steps):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in TRAINS and (step >= LATER or name[0] != "0"))
        generator = torch.Generator().manual_seed(step)
        model.zero_grad()
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.02 * parameter.grad
        average.on_step()
        yield step + 1


def floats(module):
    return {n: t for n, t in tiny.weights_of(module).items() if t.is_floating_point()}


def averaged(model, average):
    with average.in_place():
        return floats(model)


def warmed(mine, current, count):
    decay = min(0.8, (1 + int(count)) / (10 + int(count)))
    get_ema_multi_avg_fn(decay)(mine, current, count)


@pytest.mark.parametrize("steps", [1, 2, LATER, 60])
def test_the_moving_average_is_that_of_torch(steps):
    model = a_model()
    average = EMA(model, TRAINS, 0.8)
    theirs = AveragedModel(model, multi_avg_fn=warmed, use_buffers=True)
    start = floats(model)

    for _ in trained(model, average, steps):
        theirs.update_parameters(model)
    plain, mean = floats(model), averaged(model, average)

    assert tiny.same(mean, floats(theirs.module))
    assert tiny.same(floats(model), plain)
    changes = {name for name in mean if not torch.equal(mean[name], start[name])}
    statistics = {"1.running_mean", "1.running_var"}
    assert changes == statistics | {n for n in TRAINS if steps > LATER or n[0] != "0"}


def test_the_mean_of_the_last_weights_is_that_of_torch():
    model = a_model()
    average, snapshots = LastK(model, TRAINS, 3), []

    for done in trained(model, average, 20):
        if done % 4 == 0:
            average.on_validation()
            snapshots.append(copy.deepcopy(model))
            theirs = AveragedModel(model, use_buffers=True)
            for snapshot in snapshots[-3:]:
                theirs.update_parameters(snapshot)
            assert_close(averaged(model, average), floats(theirs.module), rtol=1e-6, atol=1e-7)
            assert tiny.same(floats(model), floats(snapshots[-1]))


def test_what_never_trains_costs_no_memory():
    model = a_model()
    average = EMA(model, {"2.weight"}, 0.8)
    average.on_step()

    [kept] = average.state_dict()["copies"]

    assert kept.keys() == {"2.weight", "1.running_mean", "1.running_var"}


@pytest.mark.parametrize("make", [lambda m: EMA(m, TRAINS, 0.8), lambda m: LastK(m, TRAINS, 2)])
def test_an_average_goes_on_from_its_state_bit_for_bit(make, tmp_path):
    whole, model, other = a_model(), a_model(), a_model()
    averages = [make(each) for each in (whole, model, other)]
    for average, module in ((averages[0], whole), (averages[1], model)):
        for done in trained(module, average, 8):
            if done % 3 == 0:
                average.on_validation()
    torch.save({"model": model.state_dict(), "average": averages[1].state_dict()}, tmp_path / "s")
    state = torch.load(tmp_path / "s", weights_only=True)
    other.load_state_dict(state["model"])
    averages[2].load_state_dict(state["average"])

    for average, module in ((averages[0], whole), (averages[2], other)):
        for done in trained(module, average, 16, first=8):
            if done % 3 == 0:
                average.on_validation()

    assert tiny.same(averaged(whole, averages[0]), averaged(other, averages[2]))


def test_an_error_while_the_average_is_in_place_brings_the_plain_weights_back():
    model = a_model()
    average = EMA(model, TRAINS, 0.8)
    for _ in trained(model, average, 3):
        pass
    plain = floats(model)

    with pytest.raises(ConfigError), average.in_place():
        raise ConfigError("stop")

    assert tiny.same(floats(model), plain)
