"""Legend: H heads, S sequences, T tokens."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.analysis.attention.head_summaries import KINDS, MEASURES, HeadSummaries
from transfer_cli.model.captures import attention_by_place

SEP = tiny.VOCABULARY.sep


def batch_of(*rows):
    return tiny.rows_to_batch(rows)


def summarised(maps_SHTT, batch):
    summaries = HeadSummaries(1, maps_SHTT.shape[1], SEP)
    summaries.add(0, maps_SHTT, batch)
    return {name: found[0].tolist() for name, found in summaries.means().items()}


def test_queries_of_zero_look_everywhere_alike_with_an_entropy_of_ln_t():
    backbone, length = tiny.backbone().eval(), 7
    with torch.no_grad():
        for block in backbone.blocks:
            wide = block.attention.rows[0]
            block.attention.packed.weight[:wide] = 0
            block.attention.packed.bias[:wide] = 0
    summaries, batch = HeadSummaries(3, 2, SEP), batch_of([7] * length)

    with (
        torch.no_grad(),
        attention_by_place(backbone, lambda place, found: summaries.add(place, found, batch)),
    ):
        backbone(batch["tokens"], batch["mask"])

    entropy = sum(math.log(t) for t in range(1, length + 1)) / length
    distance = sum((t - 1) / 2 for t in range(1, length + 1)) / length
    before = sum(1 / t for t in range(2, length + 1)) / (length - 1)
    found = summaries.means()
    whole = torch.ones(3, 2, dtype=torch.float64)
    assert_close(found["entropy"], whole * entropy, rtol=0, atol=1e-6)
    assert_close(found["distance"], whole * distance, rtol=0, atol=1e-6)
    assert_close(found["previous"], whole * before, rtol=0, atol=1e-6)
    assert_close(found["first"], whole * before, rtol=0, atol=1e-6)
    assert not found["next"].any()


def test_a_head_that_looks_at_one_kind_of_token_has_all_of_its_share():
    tokens, size = [2, 9, SEP, 9, 9, SEP], 6
    maps = torch.zeros(1, 5, size, size)
    for t in range(size):
        places = [max(t - 1, 0), min(t + 1, size - 1), t, 0, size - 1]
        for head, place in enumerate(places):
            maps[0, head, t, place] = 1

    found = summarised(maps, batch_of(tokens))

    for head, kind in enumerate(["previous", "next", "self", "first", "end"]):
        assert found[kind][head] == pytest.approx(1)
        assert found["entropy"][head] == 0
    assert found["separator"] == pytest.approx([1 / 6, 3 / 6, 2 / 6, 0, 1])
    assert found["distance"] == pytest.approx([5 / 6, 5 / 6, 0, 15 / 6, 15 / 6])


def test_padding_counts_nowhere_and_batches_add_up():
    rows, generator = [[2, 9, 9, SEP], [2, SEP], [2, 9, 9, 9, 9, 9, SEP]], torch.Generator()
    maps = []
    for row in rows:
        drawn = torch.rand(1, 2, len(row), len(row), generator=generator.manual_seed(len(row)))
        maps.append(drawn / drawn.sum(-1, keepdim=True))
    together = torch.rand(3, 2, 7, 7)
    for at, each in enumerate(maps):
        size = each.shape[-1]
        together[at, :, :size] = 0
        together[at, :, :size, :size] = each[0]
    alone = HeadSummaries(1, 2, SEP)
    for row, each in zip(rows, maps, strict=True):
        alone.add(0, each, batch_of(row))

    found = HeadSummaries(1, 2, SEP)
    found.add(0, together, batch_of(*rows))

    assert found.num_tokens == 13
    assert list(found.means()) == list(MEASURES)
    for name, means in found.means().items():
        assert_close(means, alone.means()[name], rtol=0, atol=1e-6)


def test_what_no_text_has_has_no_share():
    found = summarised(torch.eye(3)[None, None], batch_of([9, 9, 9]))

    assert found.keys() == set(MEASURES) - {"separator"}
    assert found["self"] == [1]
    assert set(KINDS) < set(MEASURES)
