import itertools

import pytest
import torch

from tests import tiny
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.groups import Height, Rates, optimizer_groups
from transfer_cli.optim.layer_scale import Geometric, Uniform
from transfer_cli.optim.schedules import Cosine, Linear, Slanted

TOTAL = 50


def heights_of(model):
    return [Height(g.name, g.depth, g.parameters) for g in layer_groups(model, set())]


def adamw(model, scale, rate=1e-3):
    groups = optimizer_groups(dict(model.named_parameters()), heights_of(model), scale)
    return torch.optim.AdamW(groups, lr=rate, weight_decay=0.01)


def test_every_parameter_is_in_exactly_one_group():
    model = tiny.model(Classification())

    held = [p for group in adamw(model, Uniform()).param_groups for p in group["params"]]

    assert len(held) == len(list(model.parameters()))
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}


def test_matrices_decay_and_vectors_do_not():
    for group in adamw(tiny.model(Classification()), Uniform()).param_groups:
        matrices = {parameter.ndim >= 2 for parameter in group["params"]}
        assert matrices == {group["weight_decay"] > 0}


@pytest.mark.parametrize("factor", [2.6, 1.2])
@pytest.mark.parametrize(
    "schedule", [Linear(5), Cosine(5), Slanted()], ids=lambda s: type(s).__name__
)
def test_rates_follow_base_times_depth_times_schedule_at_every_step(schedule, factor):
    optimizer = adamw(tiny.model(Classification()), Geometric(factor))
    order = ["embeddings", "block.0", "block.1", "block.2", "head.class"]

    for step in range(TOTAL):
        Rates(1e-3, schedule, TOTAL).set(optimizer, step)
        by_layer = {group["layer"]: group["lr"] for group in optimizer.param_groups}
        for place, layer in enumerate(order):
            expected = 1e-3 * factor ** -(4 - place) * schedule(step, TOTAL)
            assert by_layer[layer] == pytest.approx(expected, rel=1e-9)
        for lower, upper in itertools.pairwise(order):
            assert by_layer[upper] / by_layer[lower] == pytest.approx(factor, rel=1e-9)


def test_both_groups_of_a_layer_have_the_same_rate():
    optimizer = adamw(tiny.model(Classification()), Geometric(1.2))
    Rates(1e-3, Linear(5), TOTAL).set(optimizer, 7)

    rates: dict[str, set[float]] = {}
    for group in optimizer.param_groups:
        rates.setdefault(group["layer"], set()).add(group["lr"])

    assert all(len(each) == 1 for each in rates.values())


def test_rates_do_not_depend_on_the_steps_before():
    straight, jumping = (adamw(tiny.model(Classification()), Geometric(1.2)) for _ in range(2))
    rates = Rates(1e-3, Cosine(5), TOTAL)

    for step in range(31):
        rates.set(straight, step)
    rates.set(jumping, 30)

    assert [g["lr"] for g in straight.param_groups] == [g["lr"] for g in jumping.param_groups]
