import pytest
import torch

from tests import tiny
from transfer_cli.assembly.optimizer import parameter_groups
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import PerGroup, Uniform


def adamw(model, scale, **options):
    groups = parameter_groups(model, layer_groups(model, set()), scale, **options)
    return torch.optim.AdamW(groups, weight_decay=0.01)


def test_every_parameter_is_in_exactly_one_group():
    model = tiny.model(Classification())

    held = [p for group in adamw(model, Uniform()).param_groups for p in group["params"]]

    assert len(held) == len(list(model.parameters()))
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}


def test_matrices_decay_and_vectors_do_not():
    for group in adamw(tiny.model(Classification()), Uniform()).param_groups:
        matrices = {parameter.ndim >= 2 for parameter in group["params"]}
        assert matrices == {group["weight_decay"] > 0}


def test_nothing_decays_where_weight_decay_is_off():
    model = tiny.model(Classification())

    optimizer = adamw(model, Uniform(), weight_decay=False)

    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}
    assert [group["layer"] for group in optimizer.param_groups] == [
        group.name for group in layer_groups(model, set())
    ]
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in model.parameters()
    }


def test_a_scale_sees_the_names_of_all_groups():
    scale = PerGroup({"block.7": 0.5})

    with pytest.raises(ConfigError, match=r"^adaptation\.layer_scale: rates\.block\.7 matches no"):
        adamw(tiny.model(Classification()), scale)
