"""Schedules and the rate that they give each parameter group."""

import itertools
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.assembly.optimizer import parameter_groups
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric, PerGroup, Uniform
from transfer_cli.optim.loss_weight import Annealed
from transfer_cli.optim.schedules import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    LRScheduler,
    Slanted,
    Trapezoid,
)

ALL = (Constant(5), Linear(0.1), Cosine(0.25, floor=0.1), InverseSqrt(10), Slanted())

totals = st.integers(1, 10_000)
warmups = st.one_of(st.integers(0, 200).map(float), st.floats(0, 0.99))


def by_formula(name, step, total, warmup):
    """Return f(s) as the method reference writes it, for a warm-up in steps."""
    if name == "slanted":  # its cut is a whole step here
        height = (
            step / warmup
            if step < warmup
            else 1 - (step - warmup) / (warmup * (total / warmup - 1))
        )
        return (1 + height * 31) / 32
    if step < warmup:
        return (step + 1) / warmup
    return {
        "constant": lambda: 1.0,
        "linear": lambda: (total - step) / (total - warmup),
        "cosine": lambda: (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2,
        "inverse_sqrt": lambda: math.sqrt(warmup / (step + 1)),
    }[name]()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("constant", Constant), ("linear", Linear), ("cosine", Cosine), ("inverse_sqrt", InverseSqrt)],
)
@pytest.mark.parametrize(("total", "warmup"), [(921, 10), (100, 1), (100, 99), (7, 3)])
def test_schedules_follow_their_formulas_at_every_step(name, kind, total, warmup):
    schedule = kind(warmup)

    for step in range(total):
        expected = by_formula(name, step, total, warmup)
        assert schedule(step, total) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("total", "cut"), [(921, 0.1), (100, 0.37), (1000, 0.5)])
def test_slanted_follows_its_formula_at_every_step(total, cut):
    schedule, peak = Slanted(cut, 32.0), math.floor(total * cut)

    for step in range(total):
        height = step / peak if step < peak else 1 - (step - peak) / (total - peak)
        assert schedule(step, total) == pytest.approx((1 + height * 31) / 32, rel=1e-9)


@pytest.mark.parametrize("total", [1, 3, 9])
def test_a_cut_of_no_step_is_one_step(total):
    assert Slanted()(0, total) == 1 / 32
    assert Slanted()(1, total) == 1


def test_a_cosine_ends_at_its_floor():
    assert Cosine(10, floor=0.1)(100, 100) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", [Constant, Linear, Cosine, InverseSqrt])
@given(warmup=warmups, total=totals)
def test_a_warm_up_rises_in_equal_parts_from_above_zero_to_one(kind, warmup, total):
    schedule = kind(warmup)
    steps = min(schedule.warmup_steps(total), total)

    values = [schedule(step, total) for step in range(steps)]

    expected = [(step + 1) / schedule.warmup_steps(total) for step in range(steps)]
    assert values == pytest.approx(expected)


@given(total=st.integers(1, 300), cut=st.floats(0.01, 0.99), ratio=st.floats(1, 100))
def test_slanted_rises_then_falls_between_its_floor_and_one(total, cut, ratio):
    values = [Slanted(cut, ratio)(step, total) for step in range(total + 1)]
    top = values.index(max(values))

    assert all(1 / ratio - 1e-9 <= value <= 1 + 1e-9 for value in values)
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top:] == sorted(values[top:], reverse=True)


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (0.1, 20), (1, 1), (10, 10), (0.001, 0)])
def test_a_warm_up_is_a_share_below_one_and_steps_from_one_on(warmup, steps):
    assert Linear(warmup).warmup_steps(200) == steps


# Bounded by time.

shares = st.floats(0, 1)


@pytest.mark.parametrize("schedule", ALL)
@given(total=totals, step=st.integers(0, 10_000))
def test_a_run_whose_steps_are_ahead_of_its_time_is_one_without_a_limit(schedule, total, step):
    step = min(step, total)

    assert schedule(step, total, step / total / 2) == schedule(step, total)


@pytest.mark.parametrize("schedule", [Linear(10), Linear(0.1), Cosine(0.25), Slanted()])
@given(total=st.integers(1_000, 10_000), used=shares, later=shares)
def test_the_rate_falls_with_the_time_to_where_it_ends(schedule, total, used, later):
    used, later = sorted((used, later))
    peak = 0.3  # behind every warm-up

    assert schedule(10, total, max(peak, later)) <= schedule(10, total, max(peak, used)) + 1e-12
    assert schedule(10, total, 1.0) == pytest.approx(schedule(total, total))


@given(total=totals, used=shares)
def test_no_rate_is_above_its_peak_however_far_the_time_is(total, used):
    assert Linear(0.3)(0, total, used) <= 1


def test_a_warm_up_in_steps_counts_those_taken_and_a_share_of_the_run_the_time():
    assert [Linear(4)(step, 10_000, 0.01 * step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert Linear(0.5)(1, 10_000, 0.25) == pytest.approx(0.5, rel=1e-3)
    assert Linear(0.5)(1, 10_000, 0.75) == pytest.approx(0.5)


def test_it_rises_stays_and_falls():
    schedule = Trapezoid(warmup=10, fall=0.2)

    factors = [schedule(step, 100) for step in (0, 4, 9, 10, 50, 80, 81, 90, 99, 100)]

    assert factors == pytest.approx([0.1, 0.5, 1, 1, 1, 1, 0.95, 0.5, 0.05, 0])


def test_a_fall_over_all_of_the_run_is_straight():
    schedule = Trapezoid(fall=1.0)

    assert [schedule(step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_warmup_may_reach_into_the_fall():
    schedule = Trapezoid(warmup=9, fall=0.5)

    factors = [schedule(step, 10) for step in range(11)]
    assert max(factors) == 1.0
    assert factors[9:] == pytest.approx([0.2, 0.0])


TOTAL = 50


def adamw(model, scale, rate=1e-3, **options):
    groups = parameter_groups(model, layer_groups(model, set()), scale, **options)
    return torch.optim.AdamW(groups, lr=rate, weight_decay=0.01)


SCHEDULES = {
    "constant": Constant(5), "linear": Linear(5), "cosine": Cosine(5),
    "inverse_sqrt": InverseSqrt(5), "slanted": Slanted(),
}  # fmt: skip


@pytest.mark.parametrize("factor", [2.6, 1.2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_follow_base_times_depth_times_schedule_at_every_step(name, factor):
    optimizer = adamw(tiny.model(Classification()), Geometric(factor))
    order = ["embeddings", "block.0", "block.1", "block.2", "head.class"]
    scheduler = LRScheduler(1e-3, SCHEDULES[name], TOTAL)

    for step in range(TOTAL):
        scheduler.set_lr(optimizer, step)
        by_layer = {group["layer"]: group["lr"] for group in optimizer.param_groups}
        for place, layer in enumerate(order):
            expected = 1e-3 / factor ** (4 - place) * by_formula(name, step, TOTAL, 5)
            assert by_layer[layer] == pytest.approx(expected, rel=1e-9)
            assert by_layer[layer] > 0
        for lower, upper in itertools.pairwise(order):
            assert by_layer[upper] / by_layer[lower] == pytest.approx(factor, rel=1e-9)


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
        wanted = 1e-3 * by_formula("linear", step - begin, end - begin, 5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted, rel=1e-9)


def test_a_schedule_per_run_does_not_know_of_stages():
    optimizer = adamw(tiny.model(Classification()), Uniform())
    scheduler = LRScheduler(1e-3, Linear(5), TOTAL)

    scheduler.set_lr(optimizer, 30, begin=20, end=40)

    assert optimizer.param_groups[0]["lr"] == pytest.approx(
        1e-3 * by_formula("linear", 30, TOTAL, 5), rel=1e-9
    )


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

    assert all(len(layer_rates) == 1 for layer_rates in rates.values())


# --- rates by layer, weights of losses -----------------------------------------------------------


@given(st.integers(1, 40), st.sampled_from([2.6, 1.2, 1.0, 0.9]))
def test_geometric_neighbours_differ_by_exactly_the_factor(top, factor):
    scales = [Geometric(factor)("block.0", depth, top) for depth in range(top + 1)]

    assert scales[-1] == 1
    for lower, upper in itertools.pairwise(scales):
        assert upper / lower == pytest.approx(factor, rel=1e-12)


@given(st.integers(0, 40), st.integers(0, 40))
def test_uniform_is_one_everywhere(depth, top):
    assert Uniform()("block.0", depth, top) == 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("embeddings", 0.1), ("block.1", 0.25), ("block.11", 0.5), ("block.2", 0.75),
     ("head.class", 1.0), ("added.1", 1.0)],
)  # fmt: skip
def test_the_first_pattern_that_matches_counts_and_others_keep_the_full_rate(name, wanted):
    rates = {"embeddings": 0.1, "block.1": 0.25, "block.1*": 0.5, "block.*": 0.75}

    assert PerGroup(rates)(name, 1, 4) == wanted


def test_patterns_that_match_fit_the_model():
    PerGroup({"embeddings": 0.1, "block.*": 0.5}).check(["embeddings", "block.0", "head.class"])


def test_a_pattern_that_matches_no_group_is_refused_with_the_nearest_and_all_groups():
    with pytest.raises(ValueError, match="matches no layer group") as refused:
        PerGroup({"head.*": 2.0, "blok.1": 0.5}).check(["embeddings", "block.1", "head.class"])

    text = str(refused.value)
    assert text.startswith("rates.blok.1 matches no layer group. Did you mean 'block.1'?")
    assert text.endswith("The groups are embeddings, block.1, head.class")


WEIGHTS = st.floats(1e-3, 1e3)


def test_the_weight_falls_geometrically_from_epoch_to_epoch_then_stays():
    weight = Annealed(0.2, 0.1, "15 epochs")

    weights = [weight(10 * epoch, 200, 10) for epoch in range(20)]

    assert weights[0] == 0.2
    assert weights[14:] == [0.1] * 6
    ratios = [after / before for before, after in pairwise(weights[:15])]
    assert ratios == pytest.approx([0.5 ** (1 / 14)] * 14)


@given(step=st.integers(0, 500), steps_per_epoch=st.integers(1, 50))
def test_the_weight_is_the_same_throughout_an_epoch(step, steps_per_epoch):
    weight = Annealed(0.2, 0.1, "5 epochs")
    first = step // steps_per_epoch * steps_per_epoch

    assert weight(step, 500, steps_per_epoch) == weight(first, 500, steps_per_epoch)


@pytest.mark.parametrize(("over", "last"), [("11 steps", 10), ("rest", 40), ("1 step", 1)])
def test_over_steps_it_falls_at_each_of_them(over, last):
    weight = Annealed(8.0, 2.0, over)

    weights = [weight(step, 41, 10) for step in range(41)]

    assert weights[last:] == [2.0] * (41 - last)
    wanted = [8.0 * 0.25 ** (step / last) for step in range(last)]
    assert weights[:last] == pytest.approx(wanted)


def test_over_a_share_of_the_run_it_falls_within_that_share():
    weight = Annealed(8.0, 2.0, "50%")

    assert [weight(step, 6, 2) for step in range(6)] == pytest.approx([8, 4, 2, 2, 2, 2])


@given(
    start=WEIGHTS, end=WEIGHTS, step=st.integers(0, 300),
    over=st.sampled_from(["3 epochs", "2.5 epochs", "70 steps", "rest"]),
)  # fmt: skip
def test_the_weight_stays_between_its_ends_and_never_turns_back(start, end, step, over):
    weight = Annealed(start, end, over)

    now, then = weight(step, 200, 20), weight(step + 1, 200, 20)

    assert min(start, end) * (1 - 1e-9) <= now <= max(start, end) * (1 + 1e-9)
    assert (then - now) * (end - start) >= -1e-9 * max(start, end) ** 2
