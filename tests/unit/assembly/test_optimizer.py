"""Rates and the optimizer's groups, from config nodes."""

import pytest
import torch

from tests import tiny
from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.edits import LoRA
from transfer_cli.adaptation.penalties import EWC, L2SP
from transfer_cli.adaptation.plans import AllAtOnce
from transfer_cli.assembly.optimizer import base_lr, parameter_groups
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric, Uniform


def made(layer_scale=None, penalty=None):
    """Return the model and its optimizer."""
    model = tiny.model(Classification())
    chosen = Adaptation(AllAtOnce(), layer_scale or Uniform(), penalty=penalty)
    groups = parameter_groups(
        model, layer_groups(model, frozenset()), chosen.layer_scale,
        weight_decay=chosen.uses_weight_decay,
    )  # fmt: skip
    return model, torch.optim.AdamW(groups, lr=0.5, weight_decay=0.25)


@pytest.mark.parametrize("rate", [1e-9, 1, 2.5])
def test_a_rate_is_a_number_above_0(rate):
    assert base_lr(rate, 128) == base_lr(rate, 768) == rate


@pytest.mark.parametrize(("width", "rate"), [(384, 1e-4), (128, 3e-4), (768, 5e-5)])
def test_a_rate_for_a_width_falls_with_the_width(width, rate):
    assert base_lr("1e-4*384/width", width) == pytest.approx(rate, rel=1e-12)
    assert base_lr("0.0001 * 384 / width", width) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    "rate",
    [
        0, -1, True, "fast", None, float("inf"), float("nan"), "1e-4/width", "0*384/width",
        "1e-4*384", "1.2.3*384/width",
    ],
)  # fmt: skip
def test_any_other_rate_is_refused(rate):
    with pytest.raises(ConfigError, match=r"^optimizer\.lr: must be a number above 0, got "):
        base_lr(rate, 128)


def test_every_parameter_is_in_one_group_of_the_optimizer():
    model, optimizer = made()

    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


@pytest.mark.parametrize(("penalty", "decay"), [(None, 0.25), (EWC(), 0.25), (L2SP(), 0.0)])
def test_a_penalty_in_place_of_weight_decay_switches_it_off(penalty, decay):
    model, optimizer = made(penalty=penalty)

    matrix = model.backbone.blocks[0].feed_forward.inner.weight
    (found,) = [
        group["weight_decay"]
        for group in optimizer.param_groups
        if any(parameter is matrix for parameter in group["params"])
    ]
    assert found == decay


def test_matrices_decay_and_vectors_do_not():
    _, optimizer = made()

    for group in optimizer.param_groups:
        matrices = {parameter.ndim >= 2 for parameter in group["params"]}
        assert matrices == {group["weight_decay"] > 0}


@pytest.mark.parametrize("dora", [False, True])
def test_the_second_matrix_of_lora_has_a_rate_of_its_own(dora):
    model = tiny.model()
    LoRA(lr_ratio=16.0, dora=dora)(model, {})

    groups = parameter_groups(model, layer_groups(model, set()), Geometric(2.0))

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scales = {names[id(p)]: group["scale"] for group in groups for p in group["params"]}
    added = {name: scale for name, scale in scales.items() if ".lora." in name}
    assert scales.keys() == set(names.values())
    assert all(scale == (16 if name.endswith(".up") else 1) for name, scale in added.items())
    # What is recorded of a layer group is its own rate.
    assert {group["layer"]: group["scale"] for group in groups}["added.0"] == 1


def test_groups_know_how_high_they_stand():
    _, optimizer = made(Geometric(2.0))

    scales = {group["layer"]: group["scale"] for group in optimizer.param_groups}
    assert scales == {
        "embeddings": 2**-4, "block.0": 2**-3, "block.1": 2**-2, "block.2": 2**-1, "head.class": 1,
    }  # fmt: skip


def test_device_and_precision_are_made_from_two_words():
    found = device_and_precision("cpu", "fp32")

    assert (found.device.type, found.kind) == ("cpu", "fp32")
