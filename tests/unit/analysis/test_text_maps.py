"""Legend: L places, H heads, T tokens."""

import numpy as np

from transfer_cli.analysis.attention.text_maps import in_units, rollout

UNIFORM = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]


def drawn(*shape):
    found = np.random.default_rng(0).random(shape) ** 4
    return found / found.sum(-1, keepdims=True)


def test_heads_that_look_at_themselves_alone_mix_nothing():
    found = rollout(np.broadcast_to(np.eye(4), (3, 2, 4, 4)))

    np.testing.assert_array_equal(found, np.broadcast_to(np.eye(4), (3, 4, 4)))


def test_rollout_is_the_product_of_mean_attention_and_residual_over_two():
    heads = np.stack([UNIFORM, np.eye(4)])
    mixed = UNIFORM / 4 + 0.75 * np.eye(4)

    found = rollout(np.stack([heads, heads[::-1]]))

    np.testing.assert_allclose(found, [mixed, mixed @ mixed])


def test_later_places_are_multiplied_from_the_left():
    maps = drawn(2, 1, 4, 4)

    found = rollout(maps)

    first, second = ((maps[place, 0] + np.eye(4)) / 2 for place in (0, 1))
    np.testing.assert_allclose(found[1], second @ first)


def test_rows_of_rollout_sum_to_one_and_see_no_later_token_than_heads_do():
    maps = np.tril(drawn(5, 3, 6, 6))
    found = rollout(maps / maps.sum(-1, keepdims=True))

    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-12)
    assert not np.triu(found, 1).any()


def test_whole_numbers_sum_to_their_units_are_less_than_one_off_and_zero_stays():
    shares = np.tril(drawn(3, 50, 50).astype(np.float32))
    shares /= shares.sum(-1, keepdims=True)

    for units in (255, 10_000):
        found = in_units(shares, units)

        assert (found.sum(-1) == units).all()
        assert np.abs(found - shares * units).max() < 1.001
        assert not np.triu(found, 1).any()
        assert found.min() >= 0


def test_what_is_left_goes_to_the_largest_remainders():
    assert in_units(np.array([[0.5, 0.3, 0.2], [1, 1, 1]]), 8).tolist() == [[4, 2, 2], [3, 3, 2]]
