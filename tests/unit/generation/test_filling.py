"""Legend: B texts, T positions, N gaps, V vocabulary."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import NotFiniteError
from transfer_cli.generation.filling import (
    Candidate,
    encode_with_gaps,
    fill,
    fill_in,
    split_at_gaps,
)
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.masked_lm import MaskedLM


@pytest.fixture(scope="module")
def model(word_pieces):
    objective = MaskedLM()
    objective.setup(TaskInfo(word_pieces))
    torch.manual_seed(0)
    backbone = Backbone(tiny.shape(direction="bidirectional", residual="post"), word_pieces.size)
    made = TransferModel(backbone, objective.modules(backbone))
    tiny.lively(made)
    return made.eval()


@pytest.mark.parametrize("gap", ["[MASK]", "<mask>"])
def test_a_gap_has_the_names_that_people_know(word_pieces, gap):
    assert split_at_gaps(f"the {gap} sat{gap}", word_pieces) == ["the ", " sat", ""]


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_around_a_gap_stand_the_tokens_of_the_whole_text(kind, request):
    tokenizer = request.getfixturevalue(kind)
    sep, mask = tokenizer.sep, tokenizer.mask
    whole = tokenizer.encode("the cat sat on the mat, the cat")
    words = [tokenizer.encode(word) for word in ("cat", "mat")]
    assert all(len(word) == 1 for word in words)
    hidden = [mask if [token] in words else token for token in whole]

    found = encode_with_gaps("the [MASK] sat on the [MASK], the [MASK]", tokenizer, "lines")

    assert found == [sep, *hidden, sep]


def test_lines_are_laid_out_as_in_text_to_pretrain_on(word_pieces):
    sep, mask, (the,) = word_pieces.sep, word_pieces.mask, word_pieces.encode("the")

    found = encode_with_gaps("the [MASK]\nthe", word_pieces, "lines")

    assert found == [sep, the, mask, sep, the, sep]


def test_a_sentence_stands_between_cls_and_sep(word_pieces):
    (the,) = word_pieces.encode("the")

    found = encode_with_gaps("the [MASK]", word_pieces, "sentence")

    assert found == [word_pieces.cls, the, word_pieces.mask, word_pieces.sep]


def test_candidates_are_the_likeliest_tokens_that_are_text(model, word_pieces):
    tokens = encode_with_gaps("the [MASK] sat on [MASK] mat", word_pieces, "lines")

    found = fill(model, word_pieces, tokens, 7)

    tokens_BT = torch.tensor([tokens])
    top_BTD = model.backbone(tokens_BT, torch.ones_like(tokens_BT) > 0)[-1]
    logits_BTV = model.heads["lm"](top_BTD, model.backbone.token_embedding.weight)
    shares_NV = logits_BTV.softmax(-1)[tokens_BT == word_pieces.mask]
    assert len(found) == 2
    for candidates, shares_V in zip(found, shares_NV, strict=True):
        ordinary = [t for t in range(word_pieces.size) if t not in word_pieces.special]
        best = sorted(ordinary, key=lambda token: -shares_V[token].item())[:7]
        assert [each.token for each in candidates] == word_pieces.pieces(best)
        shares = torch.tensor([each.probability for each in candidates])
        assert_close(shares, shares_V[best].detach(), rtol=1e-5, atol=1e-7)


def test_more_candidates_than_there_are_tokens_are_all_of_them(model, word_pieces):
    tokens = encode_with_gaps("[MASK]", word_pieces, "lines")

    (found,) = fill(model, word_pieces, tokens, 10_000)

    assert len(found) == word_pieces.size - len(word_pieces.special)


def test_gaps_are_filled_in_the_text_as_it_was_typed(word_pieces):
    words = [Candidate("cat", "cat", 0.5), Candidate("##s", "##s", 0.5), Candidate("##", "##", 0.5)]

    assert fill_in("The  [MASK] sit[MASK].<mask>", word_pieces, words) == "The  cat sits.##"


def test_gaps_are_not_filled_with_what_is_no_number(model, word_pieces):
    tokens = encode_with_gaps("the [MASK]", word_pieces, "lines")
    hook = model.heads["lm"].register_forward_hook(lambda head, given, logits: logits * torch.nan)

    with hook, pytest.raises(NotFiniteError, match="prediction is not finite"):
        fill(model, word_pieces, tokens, 7)
