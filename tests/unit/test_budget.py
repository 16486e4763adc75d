"""What a budget pays for: the choice of depth and length, without a clock."""

from dataclasses import replace

import pytest

from transfer_cli.budget import (
    Budget,
    Corpus,
    Law,
    affordable_runs,
    affordable_tokens,
    effective_tokens,
    interpolate_costs,
    scale_costs,
    vocabulary_factor,
)
from transfer_cli.dial import feedforward, parameters, width
from transfer_cli.errors import ConfigError

LAW = Law(6.4e13, 0.076, 1.8e13, 0.103)  # Kaplan et al. 2020, table 2
SIZES = {
    depth: parameters(depth, width(depth), feedforward(width(depth))) for depth in range(1, 33)
}
COSTS = {depth: 6.0 * size for depth, size in SIZES.items()}
ENDLESS = Corpus(1e15)


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("10min", 600, "s"), ("2h", 7200, "s"), ("1.5 h", 5400, "s"), ("90s", 90, "s"),
     ("1e17flop", 1e17, "flop")],
)  # fmt: skip
def test_a_budget_is_of_time_or_of_operations(text, amount, unit):
    assert Budget.parse(text) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["10", "0min", "-1h", "ten minutes", "1e999flop", "1e306h", ""])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ConfigError, match=r"^budget: "):
        Budget.parse(text)


@pytest.mark.parametrize("name", ["N", "alpha", "D", "beta"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "much", None])
def test_a_law_has_numbers_above_zero_and_foretells_infinity_beyond_all(name, value):
    with pytest.raises(ConfigError, match=rf"^dial\.law\.{name}: "):
        replace(LAW, **{name: value})
    assert replace(LAW, alpha=1e9)(1e6, 1e9) == float("inf")


@pytest.mark.parametrize("amount", [1e14, 1e16, 1e18])
def test_the_choice_is_the_depth_of_the_lowest_foreseen_loss(amount):
    planned_runs = affordable_runs(amount, COSTS, SIZES, ENDLESS, LAW)

    assert planned_runs[0].loss == min(LAW(SIZES[d], amount / COSTS[d]) for d in SIZES)
    assert planned_runs[0].tokens * COSTS[planned_runs[0].depth] == pytest.approx(amount)


def test_more_pays_for_a_deeper_model_a_longer_run_and_a_lower_loss():
    planned_runs = [
        affordable_runs(amount, COSTS, SIZES, ENDLESS, LAW)[0]
        for amount in (1e14, 1e15, 1e16, 1e17)
    ]

    for name in ("depth", "tokens"):
        values = [getattr(run, name) for run in planned_runs]
        assert values == sorted(set(values))
    losses = [run.loss for run in planned_runs]
    assert losses == sorted(losses, reverse=True)


def test_repeats_are_worth_less_from_the_first_and_never_more_than_a_bound():
    assert effective_tokens(0.5, 1) == 0.5
    assert effective_tokens(4, 1) == pytest.approx(3.72, abs=0.02)  # four epochs: nearly as new
    assert effective_tokens(40, 1) == pytest.approx(15.17, abs=0.02)
    assert effective_tokens(1e9, 1) == pytest.approx(1 + 15.387756)


def test_a_text_that_is_read_often_pays_for_a_deeper_model_than_one_without_end():
    short = affordable_runs(1e17, COSTS, SIZES, Corpus(1e7), LAW)[0]

    assert short.depth > affordable_runs(1e17, COSTS, SIZES, ENDLESS, LAW)[0].depth
    assert short.effective_tokens < short.tokens


def test_what_is_scored_is_paid_for_after_each_epoch_and_at_the_end():
    corpus = Corpus(1000, scored=300)

    tokens = affordable_tokens(50.0, 0.01, corpus)

    assert tokens * 0.01 + (tokens / 1000 + 1) * 300 * 0.01 / 3 == pytest.approx(50)
    assert affordable_tokens(0.5, 0.01, corpus) == 0
    assert not affordable_runs(1.0, COSTS, SIZES, Corpus(1e6, scored=1e5), LAW)


def test_depths_between_measured_ones_cost_what_lies_between():
    every = interpolate_costs({2: 1.0, 4: 8.0, 8: 128.0})

    assert every[3] == pytest.approx(27 / 8)
    assert sorted(every) == list(range(2, 9))
    assert [every[depth] for depth in sorted(every)] == sorted(every.values())


def test_costs_that_are_not_known_follow_the_size_from_the_nearest_that_is():
    costs = scale_costs({4: 2.0, 8: 5.0}, {2: 10.0, 4: 40.0, 5: 60.0, 7: 100.0, 8: 160.0})

    assert costs == {2: 0.5, 4: 2.0, 5: 3.0, 7: 3.125, 8: 5.0}


@pytest.mark.parametrize(
    ("size", "loss"), [(1024, 3.251), (2048, 3.818), (4096, 4.203), (8192, 4.522)]
)
def test_the_loss_a_token_grows_with_the_vocabulary(size, loss):
    # Depth 3 after 2.5M tokens of WikiText-2, as measured.
    assert 4.203 * vocabulary_factor(size) == pytest.approx(loss, rel=0.035)
