import torch

from tests import tiny
from transfer_cli.batch import (
    IGNORE,
    at_rows,
    is_padded,
    rows_with_target,
    size,
    to_device,
    with_facts,
)


def test_the_size_of_a_batch_is_its_number_of_examples():
    assert size(tiny.rows_to_batch([[5], [6, 7], [8]])) == 3


def test_moving_a_batch_keeps_every_key_and_value():
    batch = tiny.all_of(tiny.Questions(examples=4))

    moved = to_device(batch, torch.device("cpu"))

    assert tiny.same(batch, moved)


def test_what_the_host_knows_of_a_batch_stays_on_the_host():
    nowhere = torch.device("meta")
    full, padded = tiny.rows_to_batch([[5, 6], [7, 8]]), tiny.rows_to_batch([[5, 6], [7]])
    target = torch.tensor([[IGNORE, 6], [7, IGNORE]])

    moved = [
        to_device(with_facts({**batch, "target": target}), nowhere) for batch in (full, padded)
    ]

    assert [is_padded(batch) for batch in moved] == [is_padded(full), is_padded(padded)]
    assert [is_padded(batch) for batch in moved] == [False, True]
    assert all(batch["tokens"].device == nowhere for batch in moved)


def test_rows_with_a_target_are_counted_through_the_batch():
    batch = {**tiny.rows_to_batch([[5, 6], [7, 8]]), "target": torch.tensor([[-100, 6], [7, -100]])}

    assert rows_with_target(batch).tolist() == [1, 2]
    assert with_facts(batch)["target_rows"].tolist() == [1, 2]


def test_where_all_rows_are_asked_for_nothing_is_copied():
    values = torch.randn(3, 2)

    assert at_rows(values, torch.arange(3)) is values
    assert at_rows(values, torch.tensor([0, 2])).equal(values[[0, 2]])
