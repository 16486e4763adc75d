import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.optim.layer_scale import Geometric, PerGroup, Uniform


@given(st.integers(1, 40), st.sampled_from([2.6, 1.2, 1.0, 0.9]))
def test_geometric_neighbours_differ_by_exactly_the_factor(top, factor):
    scales = [Geometric(factor)("block.0", depth, top) for depth in range(top + 1)]

    assert scales[-1] == 1
    for lower, upper in itertools.pairwise(scales):
        assert upper / lower == pytest.approx(factor, rel=1e-12)


@given(st.integers(0, 40), st.integers(0, 40))
def test_uniform_is_one_everywhere(depth, top):
    assert Uniform()("block.0", depth, top) == 1


@pytest.mark.parametrize("factor", [0, -1.2])
def test_a_factor_that_is_not_positive_is_refused(factor):
    with pytest.raises(ValueError, match="factor must be above 0"):
        Geometric(factor)


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


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({}, "rates must give at least one"),
        ({"block.*": 0}, r"rates\.block\.\* must be above 0"),
        ({"head.*": -1.0}, "must be above 0"),
        ({"head.*": float("inf")}, "must be above 0"),
        ({"head.*": float("nan")}, "must be above 0"),
    ],
)
def test_rates_that_cannot_work_are_refused(rates, message):
    with pytest.raises(ValueError, match=message):
        PerGroup(rates)
