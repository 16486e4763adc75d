"""Tests of what is more than chance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.report.statistics import Estimate, Scored, bootstrap, holm, mcnemar


def identity(values):
    return values


def scored(ours, theirs):
    ours, theirs = np.atleast_2d(np.array(ours, float)), np.atleast_2d(np.array(theirs, float))
    return Scored(ours, theirs, np.ones(ours.shape[1]))


def estimate(ours, theirs, *, same_seeds=True, **more):
    return bootstrap([scored(ours, theirs)], identity, same_seeds=same_seeds, **more)


# --- McNemar


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        (1, 9, 0.021484375),  # 2 (1 + 10) / 2^10
        (0, 5, 0.0625),
        (3, 3, 1.0),
        (0, 0, 1.0),
        (2, 8, 2 * (1 + 10 + 45) / 1024),
    ],
)
def test_mcnemar_is_the_two_sided_binomial_test(ours, theirs, p):
    assert mcnemar(ours, theirs) == p
    assert mcnemar(theirs, ours) == p


def test_mcnemar_of_many_items_comes_near_the_normal_distribution():
    z = (10_300 - 9_700 - 1) / math.sqrt(20_000)

    assert mcnemar(9_700, 10_300) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.03)


@given(ours=st.integers(0, 60), theirs=st.integers(0, 60))
def test_mcnemar_is_a_probability_and_falls_as_one_side_gains(ours, theirs):
    p = mcnemar(ours, theirs)

    assert 0 < p <= 1
    assert mcnemar(max(ours, theirs) + 1, min(ours, theirs)) <= p


# --- several comparisons


def test_holm_multiplies_the_smallest_by_all_and_never_turns_the_order_round():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


# --- bootstrap


def test_the_same_numbers_give_the_same_answer_and_swapping_sides_turns_it_round():
    draw = np.random.default_rng(3)
    ours, theirs = draw.random((3, 50)), draw.random((3, 50))

    first, again, swapped = estimate(ours, theirs), estimate(ours, theirs), estimate(theirs, ours)

    assert first == again
    assert swapped.difference == pytest.approx(-first.difference)


def test_groups_that_are_equal_do_not_differ():
    errors = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1]])

    assert estimate(errors, errors) == Estimate(0.0, 0.0, 0.0, 1.0)


def test_a_single_run_differs_as_the_deviation_over_items_says():
    draw = np.random.default_rng(4)
    theirs = draw.normal(2.0, 1.0, 400)
    ours = theirs + draw.normal(0.1, 1.0, 400)
    error = (ours - theirs).std() / math.sqrt(400)

    found = estimate(ours, theirs)

    assert found.difference == pytest.approx((ours - theirs).mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_seeds_that_go_apart_widen_the_interval_by_students_t():
    # Items say nothing at all here: each seed has one difference everywhere.
    ours, theirs = np.array([[1.0] * 50, [2.0] * 50, [3.0] * 50]), np.zeros((3, 50))

    found = estimate(ours, theirs)

    half = 4.303 / math.sqrt(3)  # t of two degrees of freedom, at 97.5 %
    assert found.difference == pytest.approx(2.0)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    assert found.p == pytest.approx(0.0742, abs=0.02)  # the paired t-test of 1, 2, 3


def test_groups_of_other_seeds_are_not_paired():
    apart = np.repeat([[1.0], [5.0], [9.0]], 50, axis=1)

    paired = estimate(apart + 1, apart)
    unpaired = estimate(apart + 1, apart, same_seeds=False)

    assert paired.p < 0.01
    assert unpaired.p > 0.5


def test_items_of_each_seed_may_be_others():
    draw = np.random.default_rng(5)
    parts = [scored(draw.random(size) + 0.5, draw.random(size)) for size in (80, 90, 100)]

    found = bootstrap(parts, identity, same_seeds=True)

    assert found.difference == pytest.approx(
        np.mean([part.ours.mean() - part.theirs.mean() for part in parts])
    )
    assert found.low < 0.5 < found.high


def test_a_perplexity_is_made_of_the_mean_over_all_targets():
    ours, theirs, targets = np.array([[20.0, 30.0]]), np.array([[10.0, 30.0]]), np.array([10, 20])

    found = bootstrap([Scored(ours, theirs, targets.astype(float))], np.exp, same_seeds=True)

    assert found.difference == pytest.approx(math.exp(50 / 30) - math.exp(40 / 30))


@pytest.mark.parametrize("items", [60, 3000])
def test_many_items_are_drawn_by_their_kinds_with_the_same_result(items):
    """Few and many items go two ways; both must give the deviation of the mean."""
    ours = (np.arange(items) % 3 == 0).astype(float)

    found = estimate(ours, np.zeros(items))

    error = ours.std() / math.sqrt(items)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("seed_deviation", [0.0, 0.1, 1.0])
def test_without_a_difference_no_more_than_one_in_twenty_is_called_one(seeds, seed_deviation):
    draw = np.random.default_rng(6)
    items, trials = 100, 300
    false = covered = 0
    deviation = seed_deviation if seeds > 1 else 0.0
    for _ in range(trials):
        hard = draw.normal(0, 1, items)
        ours, theirs = (
            hard + draw.normal(0, 1, (seeds, items)) + draw.normal(0, deviation, (seeds, 1))
            for _ in range(2)
        )
        found = estimate(ours, theirs)
        false += found.p < 0.05
        covered += found.low <= 0 <= found.high

    assert false / trials < 0.08
    assert covered / trials > 0.92


@pytest.mark.parametrize("same_seeds", [True, False])
def test_no_interval_leaves_what_an_error_rate_can_be(same_seeds):
    """Seeds that differ wildly, beside a baseline that is nearly always right or wrong."""
    ours = [[1.0] * 20, [0.0] * 20, [0.0] * 20]
    right, wrong = [[0.0] * 20] * 3, [[1.0] * 20] * 3

    free = estimate(ours, right, same_seeds=same_seeds)
    above = estimate(ours, right, same_seeds=same_seeds, bounds=(0, 1))
    below = estimate(ours, wrong, same_seeds=same_seeds, bounds=(0, 1))

    assert free.low < 0
    assert free.high > 1
    assert 0 <= above.low < above.difference < above.high <= 1
    assert -1 <= below.low < below.difference < below.high <= 0


def test_bounds_change_nothing_that_is_far_from_them():
    rng = np.random.default_rng(5)
    ours, theirs = (rng.random((3, 200)) < 0.5 for _ in range(2))

    assert estimate(ours, theirs, bounds=(0, 1)) == estimate(ours, theirs)
