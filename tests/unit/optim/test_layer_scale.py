"""Multipliers by depth, and weights of losses by step."""

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.optim.layer_scale import Geometric, PerGroup, Uniform
from transfer_cli.optim.loss_weight import Annealed


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

    found = [weight(10 * epoch, 200, 10) for epoch in range(20)]

    assert found[0] == 0.2
    assert found[14:] == [0.1] * 6
    ratios = [after / before for before, after in pairwise(found[:15])]
    assert ratios == pytest.approx([0.5 ** (1 / 14)] * 14)


@given(step=st.integers(0, 500), steps_per_epoch=st.integers(1, 50))
def test_the_weight_is_the_same_throughout_an_epoch(step, steps_per_epoch):
    weight = Annealed(0.2, 0.1, "5 epochs")
    first = step // steps_per_epoch * steps_per_epoch

    assert weight(step, 500, steps_per_epoch) == weight(first, 500, steps_per_epoch)


@pytest.mark.parametrize(("over", "last"), [("11 steps", 10), ("rest", 40), ("1 step", 1)])
def test_over_steps_it_falls_at_each_of_them(over, last):
    weight = Annealed(8.0, 2.0, over)

    found = [weight(step, 41, 10) for step in range(41)]

    assert found[last:] == [2.0] * (41 - last)
    wanted = [8.0 * 0.25 ** (step / last) for step in range(last)]
    assert found[:last] == pytest.approx(wanted)


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
