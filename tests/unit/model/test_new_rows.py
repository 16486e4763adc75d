import pytest
import torch

from tests import tiny
from transfer_cli.model.new_rows import AddedRows
from transfer_cli.model.positions import count_positions
from transfer_cli.objectives.causal_lm import CausalLM

TOKENS = torch.tensor([[2, 9, 3, 10], [11, 2, 2, 0]])


def test_rows_are_added_where_their_tokens_stand():
    rows = AddedRows([2, 3], width=16)
    tiny.lively(rows)

    added = rows(TOKENS).detach()

    assert torch.equal(added[TOKENS == 2], rows.delta[0].expand(3, -1))
    assert torch.equal(added[TOKENS == 3], rows.delta[1:])
    assert not added[(TOKENS != 2) & (TOKENS != 3)].any()


@pytest.mark.parametrize("position_kind", ["learned", "sinusoidal"])
def test_fresh_rows_change_no_state(position_kind):
    backbone = tiny.backbone(position_kind=position_kind)
    before = backbone(TOKENS, TOKENS > 0)

    backbone.new_rows = AddedRows([2], width=16)

    after = backbone(TOKENS, TOKENS > 0)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("position_kind", ["learned", "sinusoidal"])
def test_a_row_is_seen_as_if_it_were_the_embedding_itself(position_kind):
    changed, added = (tiny.backbone(position_kind=position_kind) for _ in range(2))
    delta = torch.randn(16)
    with torch.no_grad():
        changed.token_embedding.weight[2] += delta
    added.new_rows = AddedRows([2], width=16)
    added.new_rows.delta.data[0] = delta

    states = [backbone.embed(TOKENS, count_positions(TOKENS > 0)) for backbone in (changed, added)]

    torch.testing.assert_close(*states)


def test_only_the_row_of_a_frozen_table_learns_and_only_from_its_own_token():
    backbone = tiny.backbone().requires_grad_(requires_grad=False)
    backbone.new_rows = AddedRows([2, 4], width=16)
    direction = torch.randn(2, 4, 16)

    (backbone(TOKENS, TOKENS > 0)[-1] * direction).sum().backward()

    gradient = backbone.new_rows.delta.grad
    assert gradient[0].any()
    assert not gradient[1].any()
    assert backbone.token_embedding.weight.grad is None


def test_a_tied_output_table_does_not_change():
    model = tiny.model(CausalLM())
    table = model.backbone.token_embedding.weight.clone()
    model.backbone.new_rows = AddedRows([2], width=16)

    tiny.lively(model.backbone.new_rows)

    assert torch.equal(model.backbone.token_embedding.weight, table)


def test_weights_hold_the_rows_and_not_the_numbers_of_their_tokens():
    assert list(AddedRows([2], width=16).state_dict()) == ["delta"]
