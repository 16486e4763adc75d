import torch

from tests import tiny
from transfer_cli.batch import size, to_device


def test_the_size_of_a_batch_is_its_number_of_examples():
    assert size(tiny.rows_to_batch([[5], [6, 7], [8]])) == 3


def test_moving_a_batch_keeps_every_key_and_value():
    batch = tiny.all_of(tiny.Questions(examples=4))

    moved = to_device(batch, torch.device("cpu"))

    assert tiny.same(batch, moved)
