"""Schedules and the rate that they give each parameter group."""

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
    StagePlan,
    Trapezoid,
)

ALL = (Constant(5), Linear(0.1), Cosine(0.25, floor=0.1), InverseSqrt(10), Slanted())

totals = st.integers(1, 10_000)
warmups = st.one_of(st.integers(0, 200).map(float), st.floats(0, 0.99))


KINDS = {
    "constant": Constant, "linear": Linear, "cosine": Cosine, "inverse_sqrt": InverseSqrt,
}  # fmt: skip


def made(name, warmup, total):
    """Return a schedule with a warm-up, or a rise, of so many steps."""
    return Slanted((warmup + 0.5) / total) if name == "slanted" else KINDS[name](warmup)


def by_formula(name, step, total, warmup):
    """Return f(s) as the method reference writes it, for a warm-up in steps."""
    if step < warmup:
        return (1 + 31 * step / warmup) / 32 if name == "slanted" else (step + 1) / warmup
    return {
        "constant": lambda: 1.0,
        "linear": lambda: (total - step) / (total - warmup),
        "cosine": lambda: (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2,
        "inverse_sqrt": lambda: math.sqrt(warmup / (step + 1)),
        "slanted": lambda: (1 + 31 * (1 - (step - warmup) / (total - warmup))) / 32,
    }[name]()


@pytest.mark.parametrize("name", [*KINDS, "slanted"])
@pytest.mark.parametrize(("total", "warmup"), [(921, 10), (100, 1), (100, 99), (7, 3), (921, 92)])
def test_schedules_follow_their_formulas_at_every_step(name, total, warmup):
    schedule = made(name, warmup, total)

    for step in range(total):
        expected = by_formula(name, step, total, warmup)
        assert schedule(step, total) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("total", [1, 3, 9])
def test_a_cut_of_no_step_is_one_step(total):
    assert Slanted()(0, total) == 1 / 32
    assert Slanted()(1, total) == 1


def test_a_cosine_ends_at_its_floor():
    assert Cosine(10, floor=0.1)(100, 100) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", KINDS.values())
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


@pytest.mark.parametrize(
    ("schedule", "total", "factors"),
    [
        (Trapezoid(fall=1.0), 4, {0: 1.0, 1: 0.75, 2: 0.5, 3: 0.25}),
        (Trapezoid(warmup=9, fall=0.5), 10, {8: 1.0, 9: 0.2, 10: 0.0}),  # into the fall
        (
            Trapezoid(warmup=10, fall=0.2), 100,
            {0: 0.1, 4: 0.5, 9: 1, 10: 1, 50: 1, 80: 1, 81: 0.95, 90: 0.5, 99: 0.05, 100: 0},
        ),
    ],
)  # fmt: skip
def test_a_trapezoid_rises_stays_and_falls(schedule, total, factors):
    assert {step: schedule(step, total) for step in factors} == pytest.approx(factors)


TOTAL = 50
RUN = StagePlan(0, TOTAL, frozenset())


def adamw(scale, model=None):
    model = model or tiny.model(Classification())
    groups = parameter_groups(model, layer_groups(model, set()), scale)
    return torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01)


@pytest.mark.parametrize("factor", [2.6, 1.2])
@pytest.mark.parametrize("name", [*KINDS, "slanted"])
def test_rates_follow_base_times_depth_times_schedule_at_every_step(name, factor):
    optimizer = adamw(Geometric(factor))
    order = ["embeddings", "block.0", "block.1", "block.2", "head.class"]
    scheduler = LRScheduler(1e-3, made(name, 5, TOTAL), TOTAL)

    for step in range(TOTAL):
        scheduler.set_lr(optimizer, step, RUN)
        for group in optimizer.param_groups:
            place = order.index(group["layer"])
            expected = 1e-3 / factor ** (4 - place) * by_formula(name, step, TOTAL, 5)
            assert group["lr"] == pytest.approx(expected, rel=1e-9)
            assert group["lr"] > 0
    assert {group["layer"] for group in optimizer.param_groups} == {*order}


@pytest.mark.parametrize("scale", [Geometric(1.2), PerGroup({"block.*": 0.5})], ids=type)
def test_what_an_edit_added_has_the_rate_of_the_heads(scale):
    model = tiny.model(Classification())
    model.backbone.blocks[0].sites["after_attention"] = tiny.AddedLinear(16, 16)

    optimizer = adamw(scale, model)
    LRScheduler(1e-3, Linear(5), TOTAL).set_lr(optimizer, 7, RUN)

    rates = {group["layer"]: group["lr"] for group in optimizer.param_groups}
    assert rates["added.0"] == rates["head.class"] > rates["block.0"]


@pytest.mark.parametrize(("begin", "end"), [(0, 20), (20, 50)])
@pytest.mark.parametrize("per_stage", [True, False])
def test_a_schedule_spans_the_stage_or_the_run_and_a_stages_factor_multiplies_it(
    begin, end, per_stage
):
    optimizer, stage = adamw(Uniform()), StagePlan(begin, end, frozenset(), rate=0.1)
    scheduler = LRScheduler(1e-3, Linear(5), TOTAL, per_stage=per_stage)
    first, total = (begin, end - begin) if per_stage else (0, TOTAL)

    for step in range(begin, end):
        scheduler.set_lr(optimizer, step, stage)
        wanted = 1e-4 * by_formula("linear", step - first, total, 5)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
            [wanted] * len(optimizer.param_groups), rel=1e-9
        )


# --- rates by layer, weights of losses -----------------------------------------------------------


@given(st.integers(1, 40), st.sampled_from([2.6, 1.2, 1.0, 0.9]))
def test_geometric_neighbours_differ_by_exactly_the_factor(top, factor):
    scales = [Geometric(factor)("block.0", depth, top) for depth in range(top + 1)]

    assert scales[-1] == 1
    for lower, upper in pairwise(scales):
        assert upper / lower == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("embeddings", 0.1), ("block.1", 0.25), ("block.11", 0.5), ("block.2", 0.75),
     ("head.class", 1.0), ("added.1", 1.0)],
)  # fmt: skip
def test_the_first_pattern_that_matches_counts_and_others_keep_the_full_rate(name, wanted):
    rates = {"embeddings": 0.1, "block.1": 0.25, "block.1*": 0.5, "block.*": 0.75}

    assert PerGroup(rates)(name, 1, 4) == wanted


def test_a_pattern_that_matches_no_group_is_refused_with_the_nearest_and_all_groups():
    names = ["embeddings", "block.1", "head.class"]
    PerGroup({"embeddings": 0.1, "block.*": 0.5}).check(names)

    with pytest.raises(ValueError, match="matches no layer group") as refused:
        PerGroup({"head.*": 2.0, "blok.1": 0.5}).check(names)

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


@pytest.mark.parametrize(
    ("over", "last"), [("11 steps", 10), ("rest", 40), ("1 step", 1), ("50%", 19)]
)
def test_over_steps_it_falls_at_each_of_them(over, last):
    weight = Annealed(8.0, 2.0, over)

    weights = [weight(step, 41, 10) for step in range(41)]

    assert weights[last:] == [2.0] * (41 - last)
    wanted = [8.0 * 0.25 ** (step / last) for step in range(last)]
    assert weights[:last] == pytest.approx(wanted)


@given(
    start=WEIGHTS, end=WEIGHTS, step=st.integers(0, 300),
    over=st.sampled_from(["3 epochs", "2.5 epochs", "70 steps", "rest"]),
)  # fmt: skip
def test_the_weight_stays_between_its_ends_and_never_turns_back(start, end, step, over):
    weight = Annealed(start, end, over)

    now, then = weight(step, 200, 20), weight(step + 1, 200, 20)

    assert min(start, end) * (1 - 1e-9) <= now <= max(start, end) * (1 + 1e-9)
    assert (then - now) * (end - start) >= -1e-9 * max(start, end) ** 2
