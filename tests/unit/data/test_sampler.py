import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_cli.data.sampler import (
    LEAST_POOLS,
    POOL_BATCHES,
    LaneSampler,
    StepSampler,
    micro_batches,
    quotas,
    shard,
)
from transfer_cli.data.split import WeightedSource

SIZES = {
    "examples": st.integers(1, 200),
    "batch": st.integers(1, 40),
    "seed": st.integers(0, 9),
    "bucket": st.booleans(),
}


def order_of(examples, batch, seed, bucket):
    lengths = np.random.default_rng(seed).integers(2, 40, examples) if bucket else None
    return StepSampler(examples, batch, seed, lengths)


@given(**SIZES, epoch=st.integers(0, 5))
def test_each_epoch_shows_every_example_once(examples, batch, seed, bucket, epoch):
    order = order_of(examples, batch, seed, bucket)
    first = epoch * order.steps_per_epoch

    seen = np.concatenate([order.indices(first + n) for n in range(order.steps_per_epoch)])

    assert sorted(seen) == list(range(examples))


@given(**SIZES, step=st.integers(0, 500))
def test_a_step_is_full_but_the_last_of_an_epoch(examples, batch, seed, bucket, step):
    order = order_of(examples, batch, seed, bucket)
    last = (step + 1) % order.steps_per_epoch == 0

    taken = len(order.indices(step))

    assert taken == (examples - (order.steps_per_epoch - 1) * batch if last else batch)


@given(**SIZES, steps=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_step_has_the_same_examples_whenever_it_is_asked_for(
    examples, batch, seed, bucket, steps
):
    asked = order_of(examples, batch, seed, bucket)

    for step in steps:
        fresh = order_of(examples, batch, seed, bucket)
        assert np.array_equal(asked.indices(step), fresh.indices(step))


@pytest.mark.parametrize("lengths", [None, np.arange(100) // 10])
def test_epochs_and_seeds_have_orders_of_their_own(lengths):
    one, other = StepSampler(100, 20, 0, lengths), StepSampler(100, 20, 1, lengths)

    assert not np.array_equal(one.indices(0), one.indices(5))
    assert not np.array_equal(one.indices(0), other.indices(0))


def test_batches_of_like_length_have_little_padding_and_come_in_no_order_of_length():
    lengths = np.random.default_rng(0).integers(3, 38, 8000)
    order = StepSampler(8000, 16, 0, lengths)

    batches = [lengths[order.indices(step)] for step in range(order.steps_per_epoch)]

    padded = sum(len(batch) * batch.max() for batch in batches)
    assert padded < 1.05 * lengths.sum()
    longest = [batch.max() for batch in batches]
    assert longest != sorted(longest)


def test_who_is_in_a_batch_together_differs_from_epoch_to_epoch():
    lengths = np.random.default_rng(0).integers(3, 38, 2000)
    order = StepSampler(2000, 16, 0, lengths)

    one, other = (
        {frozenset(order.indices(epoch * 125 + step)) for step in range(125)} for epoch in (0, 1)
    )

    assert not one & other


def test_lengths_are_only_compared_within_a_pool():
    pools = 2 * LEAST_POOLS
    lengths = np.arange(pools * POOL_BATCHES * 2)
    order = StepSampler(len(lengths), 2, 0, lengths)

    spans = [np.ptp(order.indices(step)) for step in range(order.steps_per_epoch)]

    # Two of a pool that are neighbours by length are about as far apart in the whole as there are
    # pools.
    assert 0.75 * pools < np.mean(spans) < 1.5 * pools


def test_few_examples_are_not_sorted_so_that_all_may_meet():
    lengths = np.random.default_rng(0).integers(3, 38, 100)

    sorted_by_length, plain = StepSampler(100, 16, 0, lengths), StepSampler(100, 16, 0)

    seen = [
        {frozenset(order.indices(step)) for step in range(7)} for order in (sorted_by_length, plain)
    ]
    assert seen[0] == seen[1]


def test_lengths_of_other_examples_are_refused():
    with pytest.raises(ValueError, match="a sampler of 10 examples got 9 lengths"):
        StepSampler(10, 2, 0, np.ones(9))


@pytest.mark.parametrize(("examples", "batch"), [(0, 4), (4, 0)])
def test_an_order_of_nothing_is_refused(examples, batch):
    with pytest.raises(ValueError, match="needs examples and a batch"):
        StepSampler(examples, batch, seed=0)


@given(st.integers(0, 100), st.integers(1, 40))
def test_portions_keep_the_order_and_every_index(count, portion):
    indices = np.arange(count)

    portions = micro_batches(indices, portion)

    assert [n for part in portions for n in part] == list(range(count))
    assert all(0 < len(part) <= portion for part in portions)


def weighted(*sizes_and_weights):
    return [WeightedSource(f"s{n}", *each) for n, each in enumerate(sizes_and_weights)]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 3),
)
def test_weighted_sources_have_their_shares_of_each_epoch_and_are_passed_over_evenly(
    sizes, weights, seed
):
    sources = weighted(*zip(sizes, weights, strict=False))
    total = sum(sizes)
    sampler = StepSampler(total, 5, seed, sources=sources)
    epochs = [
        np.concatenate(
            [sampler.indices(epoch * sampler.steps_per_epoch + step)
             for step in range(sampler.steps_per_epoch)]
        )
        for epoch in range(3)
    ]  # fmt: skip

    begins = np.cumsum([0, *sizes])
    for number, (size, quota) in enumerate(zip(sizes, quotas(sources), strict=True)):
        first, last = begins[number], begins[number + 1]
        drawn = [np.sort(each[(each >= first) & (each < last)]) for each in epochs]
        assert [len(each) for each in drawn] == [quota] * 3
        times = np.bincount(np.concatenate(drawn) - first, minlength=size)
        assert times.max() - times.min() <= 1
    assert [len(each) for each in epochs] == [total] * 3
    again = StepSampler(total, 5, seed, sources=sources)
    assert again.indices(7).tolist() == sampler.indices(7).tolist()


def test_quotas_are_the_nearest_that_make_an_epoch():
    assert quotas(weighted((10, 3.0), (90, 1.0))) == [75, 25]
    assert quotas(weighted((1, 1.0), (1, 1.0), (1, 1.0), (1, 3.0))) == [1, 1, 0, 2]
    assert quotas([]) == []


@given(examples=st.integers(1, 200), batch=st.integers(1, 40), world_size=st.integers(1, 3))
def test_lanes_go_on_where_the_step_before_ended(examples, batch, world_size):
    batch = min(batch, examples)
    lanes = LaneSampler(examples, batch, seed=0)
    steps = [lanes.indices(number) for number in range(lanes.steps_per_epoch)]

    assert sorted(np.concatenate(steps)) == list(range(examples))
    for rank in range(world_size):
        own = [shard(step, rank, world_size) for step in steps]
        for before, after in itertools.pairwise(own):
            assert after.tolist() == (before[: len(after)] + 1).tolist()
    assert lanes.indices(lanes.steps_per_epoch).tolist() == steps[0].tolist()
