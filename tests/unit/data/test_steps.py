import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.data.steps import Order, in_portions

SIZES = {"examples": st.integers(1, 200), "batch": st.integers(1, 40), "seed": st.integers(0, 9)}


@given(**SIZES, epoch=st.integers(0, 5))
def test_each_epoch_shows_every_example_once(examples, batch, seed, epoch):
    order = Order(examples, batch, seed)
    first = epoch * order.steps_per_epoch

    seen = np.concatenate([order.indices(first + n) for n in range(order.steps_per_epoch)])

    assert sorted(seen) == list(range(examples))


@given(**SIZES, step=st.integers(0, 500))
def test_a_step_is_full_but_the_last_of_an_epoch(examples, batch, seed, step):
    order = Order(examples, batch, seed)
    last = (step + 1) % order.steps_per_epoch == 0

    taken = len(order.indices(step))

    assert taken == (examples - (order.steps_per_epoch - 1) * batch if last else batch)


@given(**SIZES, steps=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_step_has_the_same_examples_whenever_it_is_asked_for(examples, batch, seed, steps):
    asked = Order(examples, batch, seed)

    for step in steps:
        assert np.array_equal(asked.indices(step), Order(examples, batch, seed).indices(step))


def test_epochs_and_seeds_have_orders_of_their_own():
    one, other = Order(100, 100, seed=0), Order(100, 100, seed=1)

    assert not np.array_equal(one.indices(0), one.indices(1))
    assert not np.array_equal(one.indices(0), other.indices(0))


@pytest.mark.parametrize(("examples", "batch"), [(0, 4), (4, 0)])
def test_an_order_of_nothing_is_refused(examples, batch):
    with pytest.raises(ValueError, match="needs examples and a batch"):
        Order(examples, batch, seed=0)


@given(st.integers(0, 100), st.integers(1, 40))
def test_portions_keep_the_order_and_every_index(count, portion):
    indices = np.arange(count)

    portions = in_portions(indices, portion)

    assert [n for part in portions for n in part] == list(range(count))
    assert all(0 < len(part) <= portion for part in portions)
