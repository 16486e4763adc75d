import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.optim.layer_scale import Geometric, Uniform


@given(st.integers(1, 40), st.sampled_from([2.6, 1.2, 1.0, 0.9]))
def test_geometric_neighbours_differ_by_exactly_the_factor(top, factor):
    scales = [Geometric(factor)(depth, top) for depth in range(top + 1)]

    assert scales[-1] == 1
    for lower, upper in itertools.pairwise(scales):
        assert upper / lower == pytest.approx(factor, rel=1e-12)


@given(st.integers(0, 40), st.integers(0, 40))
def test_uniform_is_one_everywhere(depth, top):
    assert Uniform()(depth, top) == 1


@pytest.mark.parametrize("factor", [0, -1.2])
def test_a_factor_that_is_not_positive_is_refused(factor):
    with pytest.raises(ValueError, match="factor must be above 0"):
        Geometric(factor)
