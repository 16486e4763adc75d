from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.data.mixture import Mixture, annealed, mixed_epoch, probabilities
from transfer_cli.data.sampler import StepSampler

SIZES = {"main": 100, "big": 1600, "small": 25}

sizes = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(1, 10_000), max_size=4)
sizes_with_main = sizes.map(lambda found: {**found, "main": 60})
powers = st.floats(0, 2)


def mixture(given=SIZES, **settings):
    return Mixture(given, **{"total": 400, "steps_per_epoch": 40, "seed": 0, **settings})


def streams(mix):
    return [mix.at(step)[0] for step in range(mix.total)]


# ----------------------------------------------------------------------------- which stream


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (0, {"main": 1 / 3, "big": 1 / 3, "small": 1 / 3}),
        (0.5, {"main": 10 / 55, "big": 40 / 55, "small": 5 / 55}),
        (1, {"main": 100 / 1725, "big": 1600 / 1725, "small": 25 / 1725}),
    ],
)
def test_streams_are_drawn_in_proportion_to_a_power_of_their_size(power, expected):
    drawn = Counter(streams(mixture(total=20_000, power=power)))

    assert probabilities(SIZES, power) == pytest.approx(expected)
    for name, share in expected.items():
        # Five standard errors.
        assert drawn[name] / 20_000 == pytest.approx(share, abs=5 * (share / 20_000) ** 0.5)


@given(sizes=sizes_with_main, power=powers, seed=st.integers(0, 9), total=st.integers(1, 300))
def test_whoever_asks_gets_the_same_streams(sizes, power, seed, total):
    one, other = (
        mixture(found, power=power, seed=seed, total=total)
        for found in (sizes, dict(reversed(sizes.items())))
    )

    assert streams(one) == streams(other)
    assert set(streams(one)) <= set(sizes)


@given(power=powers, total=st.integers(1, 100), longer=st.integers(0, 100))
def test_a_longer_run_begins_like_the_shorter_one(power, total, longer):
    last = total // 4
    short = mixture(power=power, total=total, target_only=last)
    long = mixture(power=power, total=total + longer, target_only=last)

    for step in range(total - last):
        assert short.at(step) == long.at(step)


def test_seeds_draw_differently():
    assert streams(mixture(seed=0)) != streams(mixture(seed=1))


@given(target_only=st.integers(0, 50), anneal=st.booleans())
def test_the_last_steps_are_those_of_the_target_alone(target_only, anneal):
    whole = streams(mixture(total=50, anneal=anneal))
    first = 50 - target_only

    drawn = streams(mixture(total=50, anneal=anneal, target_only=target_only))

    assert drawn == whole[:first] + ["main"] * target_only


def test_the_annealed_power_falls_from_one_to_a_fifth():
    assert annealed(5) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    assert annealed(1) == pytest.approx([1])


def test_annealing_draws_each_epoch_with_its_own_power():
    mix = mixture(total=3 * 5000, steps_per_epoch=5000, anneal=True, power=0)

    for epoch, power in enumerate([1, 0.6, 0.2]):
        drawn = Counter(mix.at(epoch * 5000 + step)[0] for step in range(5000))
        expected = probabilities(SIZES, power)
        for name, share in expected.items():
            assert drawn[name] / 5000 == pytest.approx(share, abs=5 * (share / 5000) ** 0.5)


# ------------------------------------------------------------------------------- which visit


@given(sizes=sizes_with_main, power=powers, target_only=st.integers(0, 100))
def test_each_stream_is_visited_in_order_and_without_gaps(sizes, power, target_only):
    mix = mixture(sizes, power=power, total=100, target_only=target_only)

    seen = Counter()
    for step in range(100):
        name, visit = mix.at(step)
        assert visit == seen[name]
        seen[name] += 1


def test_the_visits_of_a_stream_go_through_all_its_examples():
    mix, order = mixture(), StepSampler(100, 7, seed=0)

    main = [step for step in range(400) if mix.at(step)[0] == "main"][: order.steps_per_epoch]
    seen = np.concatenate([order.indices(mix.at(step)[1]) for step in main])

    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("step", [-1, 400])
def test_a_step_beyond_the_run_is_refused(step):
    with pytest.raises(IndexError, match="a mixture for 400 steps"):
        mixture().at(step)


# -------------------------------------------------------------------------------- the epoch


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({"power": 0}, 30), ({"power": 0.5}, 55), ({"power": 1}, 172), ({"anneal": True}, 67)],
)
def test_an_epoch_passes_about_once_over_the_main_data(settings, steps):
    assert mixed_epoch(SIZES, 10, **settings) == steps


def test_an_epoch_of_main_alone_is_its_own():
    assert mixed_epoch({"main": 3}, 7, power=0.5) == 7


# ------------------------------------------------------------------------------ bad values


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"power": -0.1}, "power must be 0 or more"),
        ({"power": float("nan")}, "power must be 0 or more"),
        ({"target_only": -1}, "target_only must be from 0"),
        ({"target_only": 401}, "target_only must be from 0 to the run's 400 steps; got 401"),
        ({"total": 0}, "needs steps"),
        ({"given": {"other": 5}}, "needs the stream 'main', got other"),
        ({"given": {"main": 5, "other": 0}}, "nothing to draw from in other"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        mixture(**settings)
