"""Legend: N tokens, F units, P properties, K contexts, W tokens of a context, T positions."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.analysis.unit_sums import (
    PropertySums,
    TokenProperties,
    UnitSums,
    contexts_of,
)
from transfer_cli.batch import with_facts
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.model.probes import units_by_place
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM


def summed(units_NF, properties_NP, contexts=4, at=(5, 9)):
    """Return the sums of tokens that came in three parts; the context of a token is its number."""
    sums, units = PropertySums(), UnitSums(contexts)
    numbers_NW = torch.arange(len(units_NF))[:, None].int()
    parts = zip(*(each.tensor_split(at) for each in (units_NF, properties_NP, numbers_NW)),
                strict=True)  # fmt: skip
    for units_RF, properties_RP, numbers_RW in parts:
        sums.add(properties_RP)
        units.add(units_RF, properties_RP, numbers_RW)
    return sums, units


def drawn():
    generator = torch.Generator().manual_seed(0)
    units_NF = torch.randn(20, 3, generator=generator)
    properties_NP = torch.randint(0, 2, (20, 2), generator=generator).double()
    properties_NP[:, 1] = torch.arange(20)
    return units_NF, properties_NP


def test_sums_of_parts_are_those_of_the_whole():
    units_NF, properties_NP = drawn()

    sums, units = summed(units_NF, properties_NP)

    assert_close(units.means(20), units_NF.double().mean(0))
    assert_close(units.positive_shares(20), (units_NF > 0).float().mean(0))
    wanted = np.corrcoef(properties_NP.T.numpy(), units_NF.T.numpy())[:2, 2:]
    assert_close(units.correlations(sums).numpy(), wanted)


def test_the_top_contexts_are_where_a_unit_is_highest():
    units_NF, properties_NP = drawn()

    _, units = summed(units_NF, properties_NP)

    top_KF, place_KF = units_NF.topk(4, dim=0)
    assert_close(units.top_KF, top_KF)
    assert torch.equal(units.context_KFW[..., 0], place_KF.int())


def test_there_are_no_more_contexts_than_tokens():
    units_NF, properties_NP = drawn()

    _, units = summed(units_NF, properties_NP, contexts=50)

    assert torch.equal(units.context_KFW[..., 0], units_NF.argsort(0, descending=True).int())


def test_what_does_not_vary_has_no_correlation():
    units_NF, properties_NP = drawn()
    units_NF[:, 1], properties_NP[:, 0] = 0.1, 1

    sums, units = summed(units_NF, properties_NP)

    found_PF = units.correlations(sums)
    assert found_PF.isnan().tolist() == [[True] * 3, [False, True, False]]


@pytest.mark.parametrize("changes", [{}, tiny.MODERN, {"share": "all", "residual": "post"}])
@pytest.mark.parametrize("padded", [False, True])
def test_units_are_what_the_second_layer_reads_at_each_place(changes, padded):
    model = tiny.model(CausalLM(), **changes).eval()
    tiny.lively(model)
    lengths = [7, 1, 2] if padded else [5, 5]
    batch = with_facts(tiny.rows_to_batch([list(range(5, 5 + length)) for length in lengths]))
    assert ("real_rows" in batch) == padded
    units, outputs, feed_forward = {}, [], model.backbone.blocks[0].feed_forward
    hook = feed_forward.register_forward_hook(lambda module, given, out: outputs.append(out))

    with hook, units_by_place(model.backbone, units.__setitem__):
        _ = Encoding(model, batch).states

    assert list(units) == [0, 1, 2]
    place = 2 if changes.get("share") == "all" else 0  # the latest one
    layer = feed_forward.output
    assert units[place].flatten(0, 1).shape == (sum(lengths), layer.in_features)
    assert_close(layer(units[place]), outputs[-1])
    assert not layer._forward_pre_hooks


TEXTS = ["The river , 7 rivers", "Rivers !"]


def test_properties_are_those_of_each_token_of_the_texts():
    tokenizer = WordPiece(200).make(lambda: iter(TEXTS))
    rows = [[tokenizer.cls, *row, tokenizer.sep] for row in tokenizer.encode_batch(TEXTS)]
    batch = {**tiny.rows_to_batch(rows), "label": torch.tensor([1, 0])}
    properties = TokenProperties(tokenizer, ["a", "b"])

    is_text_N = properties.is_text(batch)
    found = properties.of_batch(batch)[is_text_N]

    pieces = tokenizer.pieces([token for row in rows for token in row[1:-1]])
    columns = dict(zip(properties.names, found.T.tolist(), strict=True))
    assert columns["position"] == [at for row in rows for at in range(1, len(row) - 1)]
    assert columns["capital"] == [piece.strip("#")[0].isupper() for piece in pieces]
    assert columns["starts a word"] == [not piece.startswith("##") for piece in pieces]
    assert [piece for piece, yes in zip(pieces, columns["punctuation"], strict=True) if yes] == [
        ",", "!",
    ]  # fmt: skip
    assert [piece for piece, yes in zip(pieces, columns["number"], strict=True) if yes] == ["7"]
    first = len(rows[0]) - 2
    assert columns["label b"] == [1] * first + [0] * (len(rows[1]) - 2)


def test_a_context_ends_where_its_row_does():
    batch = tiny.rows_to_batch([[5, 6, 7], [8]])

    assert contexts_of(batch, 1).tolist() == [[-1, 5, 6], [5, 6, 7], [6, 7, -1], [-1, 8, -1]]
