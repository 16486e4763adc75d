import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data import portions
from transfer_cli.data.portions import portions_of
from transfer_cli.data.split import Split, TextContext


@pytest.fixture
def short_lanes(monkeypatch):
    monkeypatch.setattr(portions, "LEAST_BLOCKS", 2)


@settings(max_examples=25)
@given(
    blocks=st.integers(1, 300),
    tokens=st.integers(1, 60),
    batch=st.integers(1, 20),
    world_size=st.integers(1, 3),
)
def test_in_lanes_every_block_counts_once_after_those_before_it(blocks, tokens, batch, world_size):
    split = Split("test", tiny.blocks(tokens=16 * blocks, length=16))
    context = TextContext("memory", tokens, 16)

    scored = []
    for own in portions_of(split, context, batch, world_size):
        before = None
        for portion in own:
            assert len(portion.rows) <= batch
            assert portion.begins == (before is None or portion.rows[0] != before[0] + 1)
            if portion.begins:
                first = portion.rows
            else:
                assert portion.rows.tolist() == (before[: len(portion.rows)] + 1).tolist()
            seen = 16 * (portion.rows - first[: len(portion.rows)])
            enough = np.minimum(tokens, 16 * portion.rows)
            assert (seen >= enough)[portion.is_scored].all()
            scored += portion.rows[portion.is_scored].tolist()
            before = portion.rows

    assert sorted(scored) == list(range(blocks))


def test_a_block_that_is_read_to_be_remembered_has_no_targets(short_lanes):
    split = Split("test", tiny.blocks(tokens=160, length=16))
    own, *_ = portions_of(split, TextContext("memory", 16, 16), 8, 1)

    batch = own[0].targets_in(split.data.batch(own[0].rows))

    has_target = (batch["next_tokens"] != IGNORE).all(1)
    assert has_target.tolist() == own[0].is_scored.tolist()
    assert 0 < has_target.sum() < len(has_target)


def test_without_a_memory_each_process_has_every_nth_batch():
    split = Split("test", tiny.blocks(tokens=160, length=16), order=np.arange(10)[::-1])

    shares = portions_of(split, None, 3, 2)

    rows = [[portion.rows.tolist() for portion in own] for own in shares]
    assert rows == [[[9, 8, 7], [3, 2, 1]], [[6, 5, 4], [0]]]
