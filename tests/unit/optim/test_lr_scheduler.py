import itertools
import math

import pytest
import torch

from tests import tiny
from transfer_cli.assembly.optimizer import parameter_groups
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric, PerGroup, Uniform
from transfer_cli.optim.lr_scheduler import LRScheduler
from transfer_cli.optim.schedules import Constant, Cosine, InverseSqrt, Linear, Slanted

TOTAL = 50


def adamw(model, scale, rate=1e-3, **options):
    groups = parameter_groups(model, layer_groups(model, set()), scale, **options)
    return torch.optim.AdamW(groups, lr=rate, weight_decay=0.01)


def test_a_scale_by_name_multiplies_the_groups_rate():
    optimizer = adamw(tiny.model(Classification()), PerGroup({"block.*": 0.5, "head.*": 2.0}))

    LRScheduler(1e-3, Constant(), TOTAL).set_lr(optimizer, 0)

    rates = {group["layer"]: group["lr"] for group in optimizer.param_groups}
    assert rates["block.1"] == pytest.approx(0.5e-3)
    assert rates["head.class"] == pytest.approx(2e-3)
    assert rates["embeddings"] == pytest.approx(1e-3)


def linear(step, total):
    return (step + 1) / 5 if step < 5 else (total - step) / (total - 5)


def cosine(step, total):
    share = (step - 5) / (total - 5)
    return (step + 1) / 5 if step < 5 else 0.5 * (1 + math.cos(math.pi * share))


def inverse_sqrt(step, total):
    return (step + 1) / 5 if step < 5 else math.sqrt(5 / (step + 1))


def constant(step, total):
    return (step + 1) / 5 if step < 5 else 1.0


def slanted(step, total):
    cut = math.floor(total * 0.1)
    height = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / 0.1 - 1))
    return (1 + height * 31) / 32


SCHEDULES = [
    (Constant(5), constant),
    (Linear(5), linear),
    (Cosine(5), cosine),
    (InverseSqrt(5), inverse_sqrt),
    (Slanted(), slanted),
]


@pytest.mark.parametrize("factor", [2.6, 1.2])
@pytest.mark.parametrize(
    ("schedule", "formula"), SCHEDULES, ids=[type(each).__name__ for each, _ in SCHEDULES]
)
def test_rates_follow_base_times_depth_times_schedule_at_every_step(schedule, formula, factor):
    optimizer = adamw(tiny.model(Classification()), Geometric(factor))
    order = ["embeddings", "block.0", "block.1", "block.2", "head.class"]
    scheduler = LRScheduler(1e-3, schedule, TOTAL)

    for step in range(TOTAL):
        scheduler.set_lr(optimizer, step)
        by_layer = {group["layer"]: group["lr"] for group in optimizer.param_groups}
        for place, layer in enumerate(order):
            expected = 1e-3 / factor ** (4 - place) * formula(step, TOTAL)
            assert by_layer[layer] == pytest.approx(expected, rel=1e-9)
            assert by_layer[layer] > 0
        for lower, upper in itertools.pairwise(order):
            assert by_layer[upper] / by_layer[lower] == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize(("schedule", "formula"), SCHEDULES[1:3], ids=["Linear", "Cosine"])
def test_rates_end_at_zero(schedule, formula):
    optimizer = adamw(tiny.model(Classification()), Geometric(1.2))

    LRScheduler(1e-3, schedule, TOTAL).set_lr(optimizer, TOTAL)

    assert all(group["lr"] == pytest.approx(0, abs=1e-15) for group in optimizer.param_groups)


@pytest.mark.parametrize("scale", [Geometric(1.2), PerGroup({"block.*": 0.5})], ids=type)
def test_what_an_edit_added_has_the_rate_of_the_heads(scale):
    model = tiny.model(Classification())
    model.backbone.blocks[0].sites["after_attention"] = tiny.AddedLinear(16, 16)

    optimizer = adamw(model, scale)
    LRScheduler(1e-3, Linear(5), TOTAL).set_lr(optimizer, 7)

    rates = {group["layer"]: group["lr"] for group in optimizer.param_groups}
    assert rates["added.0"] == rates["head.class"] > rates["block.0"]


@pytest.mark.parametrize(("begin", "end"), [(0, 20), (20, 50)])
def test_a_schedule_per_stage_spans_the_stage(begin, end):
    optimizer = adamw(tiny.model(Classification()), Uniform())
    scheduler = LRScheduler(1e-3, Linear(5), TOTAL, per_stage=True)

    for step in range(begin, end):
        scheduler.set_lr(optimizer, step, begin=begin, end=end)
        wanted = 1e-3 * linear(step - begin, end - begin)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted, rel=1e-9)


def test_a_schedule_per_run_does_not_know_of_stages():
    optimizer = adamw(tiny.model(Classification()), Uniform())
    scheduler = LRScheduler(1e-3, Linear(5), TOTAL)

    scheduler.set_lr(optimizer, 30, begin=20, end=40)

    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * linear(30, TOTAL), rel=1e-9)


def test_a_stages_factor_multiplies_every_rate():
    plain, slowed = (adamw(tiny.model(Classification()), Geometric(1.2)) for _ in range(2))
    scheduler = LRScheduler(1e-3, Cosine(5), TOTAL)

    scheduler.set_lr(plain, 12)
    scheduler.set_lr(slowed, 12, factor=0.1)

    for one, other in zip(plain.param_groups, slowed.param_groups, strict=True):
        assert other["lr"] == pytest.approx(0.1 * one["lr"], rel=1e-12)


def test_both_groups_of_a_layer_have_the_same_rate():
    optimizer = adamw(tiny.model(Classification()), Geometric(1.2))
    LRScheduler(1e-3, Linear(5), TOTAL).set_lr(optimizer, 7)

    rates: dict[str, set[float]] = {}
    for group in optimizer.param_groups:
        rates.setdefault(group["layer"], set()).add(group["lr"])

    assert all(len(each) == 1 for each in rates.values())


def test_rates_do_not_depend_on_the_steps_before():
    straight, jumping = (adamw(tiny.model(Classification()), Geometric(1.2)) for _ in range(2))
    scheduler = LRScheduler(1e-3, Cosine(5), TOTAL)

    for step in range(31):
        scheduler.set_lr(straight, step)
    scheduler.set_lr(jumping, 30)

    assert [g["lr"] for g in straight.param_groups] == [g["lr"] for g in jumping.param_groups]
