import itertools

import pytest

from transfer_cli.adaptation.plans import AllAtOnce, GradualUnfreezing, Only, Stage
from transfer_cli.lengths import Length
from transfer_cli.optim.layer_scale import Geometric, PerGroup, Uniform
from transfer_cli.optim.schedules import Constant, Cosine, InverseSqrt, Linear, Slanted
from transfer_cli.testing.plans import (
    check_layer_scale,
    check_plan,
    check_schedule,
    example_models,
)

REMAINDER = Length(None)


def one(*patterns):
    return [Stage(patterns, REMAINDER)]


def counting():
    count = itertools.count(1)
    return lambda groups: [Stage(("*",), Length(next(count))), *one("*")]


def emptying(groups):
    groups.clear()
    return one("*")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda groups: [], "a pretrained model: there is no stage"),
        (lambda groups: one(), "stage 1 trains nothing"),
        (lambda groups: one("block.7"), "a pretrained model: 'block.7' matches no parameter"),
        (lambda groups: one("added.*", "*"), r"a pretrained model: 'added\.\*' matches no"),
        (lambda groups: one("block.*"), r"head\.class is new and never trains"),
        (lambda groups: one("head.*"), r"a model with added modules: .*added\.0 is new and never"),
        (lambda groups: [*one("head.*"), *one("*")], "stage 1 takes the rest of the run"),
        (lambda groups: [Stage("*", REMAINDER)], "its patterns are no tuple: '\\*'"),
        (lambda groups: [("*",)], "stage 1 is no Stage"),
        (lambda groups: [Stage(("*",), Length(2000)), *one("*")], "but the run has 1000"),
        (counting(), "gives other stages when it is asked again"),
        (emptying, "changes the layer groups"),
    ],
)
def test_the_contract_of_plans_catches(plan, message):
    with pytest.raises(AssertionError, match=message):
        check_plan(plan)


def test_a_plan_can_be_for_some_models_only():
    models = example_models()

    check_plan(Only(("head.*",)), {"plain": models["a pretrained model"]})


def test_a_plan_can_need_a_longer_run():
    check_plan(GradualUnfreezing("300 steps"), total=2000)

    with pytest.raises(AssertionError, match="make stages shorter or the run longer"):
        check_plan(GradualUnfreezing("300 steps"))


def test_the_example_models_differ_in_what_plans_look_at():
    found = example_models(depth=2)

    names = {what: [group.name for group in groups] for what, groups in found.items()}
    assert names["a pretrained model"] == ["embeddings", "block.0", "block.1", "head.class"]
    assert names["a model with added modules"][-3:] == ["added.0", "added.1", "head.class"]
    assert not any(group.inherited for group in found["a model from scratch"])
    assert all(group.inherited for group in found["a model of which all is inherited"])
    check_plan(AllAtOnce(), found)


class Forgetful:
    """A schedule that falls whenever it is asked."""

    def __init__(self):
        self.value = 1.0

    def __call__(self, step, total):
        self.value *= 0.9
        return self.value


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Forgetful(), "depends on which were asked for before"),
        (lambda step, total: step / total, "the first step of 1 has a rate of 0"),
        (
            lambda step, total: 1 - 2 * step / total,
            r"step 2 of 3 has the multiplier -0.3.*, which is not in \[0, 1\]",
        ),
        (lambda step, total: 1.5, r"step 0 of 1 has the multiplier 1.5, which is not in \[0, 1\]"),
        (lambda step, total: float("nan"), "step 0 of 1 has the multiplier nan"),
    ],
)
def test_the_contract_of_schedules_catches(schedule, message):
    with pytest.raises(AssertionError, match=message):
        check_schedule(schedule)


@pytest.mark.parametrize(
    "schedule",
    [Constant(), Constant(5), Linear(10), Linear(0.1), Cosine(0.02), Cosine(0.2, floor=0.1),
     InverseSqrt(10), Slanted(), Slanted(0.5, 4.0)],
)  # fmt: skip
def test_our_schedules_keep_the_contract(schedule):
    check_schedule(schedule)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (lambda name, depth, top: float(depth), "embeddings, at depth 0 of 2, has the multiplier"),
        (lambda name, depth, top: float("inf"), "the multiplier inf"),
        (lambda name, depth, top: 1.0 if name != "added.0" else -1.0, r"added\.0, at depth 2"),
        (PerGroup({"block.7": 0.5}), r"rates\.block\.7 matches no layer group"),
    ],
)
def test_the_contract_of_layer_scales_catches(scale, message):
    with pytest.raises(AssertionError, match=message):
        check_layer_scale(scale)


def test_a_layer_scale_may_not_remember():
    seen = []

    def slower_each_time(name, depth, top):
        seen.append(name)
        return 1 / len(seen)

    with pytest.raises(AssertionError, match="depends on which were asked for before"):
        check_layer_scale(slower_each_time)


def test_our_layer_scales_keep_the_contract():
    for scale in (Uniform(), Geometric(2.6), Geometric(1.2), PerGroup({"block.*": 0.5})):
        check_layer_scale(scale)


def test_a_layer_scale_can_be_for_one_model_only():
    names = ["embeddings", *(f"block.{number}" for number in range(8)), "head.class"]

    check_layer_scale(PerGroup({"block.7": 0.5}), names)
