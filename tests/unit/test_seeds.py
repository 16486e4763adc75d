import torch
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.seeds import ExampleNoise, derive


def test_derived_seeds_are_the_same_on_every_machine_and_in_every_version():
    assert derive(0, "weights") == 4283426181684004966
    assert derive(42, "order", 3) == 8019350747492242944


@given(st.integers(0, 2**63), st.lists(st.one_of(st.integers(), st.text())))
def test_derived_seeds_fit_every_generator(seed, parts):
    assert 0 <= derive(seed, *parts) < 2**63


def test_different_purposes_get_unrelated_seeds():
    asked = [(seed, name, step) for seed in range(5) for name in "ab" for step in range(100)]

    assert len({derive(*each) for each in asked}) == len(asked)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 4))
def test_a_longer_length_extends_the_numbers_of_a_shorter_one(more, length, channels):
    noise, index = ExampleNoise(0, "train", 7), torch.tensor([3, 11])

    short, long = (noise.uniform(index, n, channels) for n in (length, length + more))

    assert torch.equal(long[:, :length], short)


def test_noise_belongs_to_the_example_and_not_to_its_batch():
    noise = ExampleNoise(0, "train", 7)

    together = noise.uniform(torch.tensor([5, 2, 9]), 20, 2)

    assert torch.equal(noise.uniform(torch.tensor([9]), 20, 2)[0], together[2])


def test_noise_differs_between_examples_steps_and_seeds():
    index = torch.tensor([0])
    drawn = [
        ExampleNoise(seed, "train", step).uniform(index + example, 8, 1)
        for seed in range(2)
        for step in range(2)
        for example in range(2)
    ]

    distinct = {tuple(each.flatten().tolist()) for each in drawn}

    assert len(distinct) == 8


def test_noise_is_uniform_between_0_and_1():
    drawn = ExampleNoise(0).uniform(torch.arange(100), 1000, 1)

    assert 0 <= drawn.min() < 0.001
    assert 0.999 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.005


def test_noise_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)

    ExampleNoise(0).uniform(torch.arange(3), 5, 1)

    assert torch.equal(torch.rand(1), expected)
