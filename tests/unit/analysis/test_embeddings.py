"""Legend: N vectors, D width."""

import numpy as np
import pytest

from transfer_cli.analysis.embeddings import principal_components


def test_components_lie_where_vectors_vary_and_point_to_the_positive():
    places = np.random.default_rng(0).normal(size=(50, 2)) * [5.0, 1.0]
    places -= places.mean(0)
    places = np.linalg.svd(places, full_matrices=False)[0] * [5.0, 1.0]  # at right angles
    directions = np.array([[0.6, 0, -0.8], [0.8, 0, 0.6]])
    vectors_ND = places @ directions + 7

    found, shares = principal_components(vectors_ND, 2)

    # The largest entry of the first direction is negative, so it is turned round.
    assert np.allclose(found, places * [-1, 1], atol=1e-9)
    assert shares == pytest.approx([25 / 26, 1 / 26])


def test_of_vectors_that_are_all_the_same_nothing_varies():
    found, shares = principal_components(np.ones((4, 3)), 2)

    assert not found.any()
    assert shares == [0, 0]
