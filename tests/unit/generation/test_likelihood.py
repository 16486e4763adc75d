"""Log-probabilities: padding, batches and caches change nothing. Legend: V vocabulary."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import NotFiniteError
from transfer_cli.generation.likelihood import (
    Ending,
    Gap,
    ReadBeginning,
    score_endings,
    score_gaps,
)
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.masked_lm import MaskedLM

ROWS = [
    Ending([3, 9, 17, 30, 8], 1),
    Ending([3, 9, 17, 30, 8, 11, 12], 5),
    Ending([3, 9, 17, 5], 3),
    Ending([3, 9, 17, 30, 8, 11, 13, 14, 15], 4),
]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def lively(objective, **changes):
    made = tiny.model(objective, **changes)
    tiny.lively(made, std=0.25)
    return made.eval()


def by_definition(model, tokens, first):
    """Return the log-probability of each token from `first` on, from one pass without padding."""
    tokens_1T = torch.tensor([tokens])
    hidden = model.backbone(tokens_1T, torch.ones_like(tokens_1T, dtype=torch.bool), padded=False)
    logits = model.heads["lm"](model.readout(hidden), model.backbone.token_embedding.weight)
    shares = logits[0].log_softmax(-1)
    return torch.stack([shares[at - 1, tokens[at]] for at in range(first, len(tokens))])


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_ends_are_scored_as_alone_in_any_batch(batch, kind):
    model = lively(CausalLM(), position_kind=kind)

    found = score_endings(model, ROWS, batch)

    for row, own in zip(ROWS, found, strict=True):
        assert_close(own, by_definition(model, list(row.tokens), row.first))


@pytest.mark.parametrize("begun", [[], [3], [3, 9, 17], [3, 9, 17, 30, 8], [7, 7]])
@pytest.mark.parametrize("kind", ["learned", "rotary"])
def test_what_is_read_once_changes_nothing(begun, kind):
    model = lively(CausalLM(), position_kind=kind)
    read = ReadBeginning(model, begun)

    for rows in (ROWS, ROWS[:1], ROWS[1:3]):
        for one, other in zip(read.score(rows), score_endings(model, rows, 8), strict=True):
            assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gaps_are_scored_as_alone_in_any_batch():
    model = lively(MaskedLM())
    rows = [
        Gap([2, 9, 4, 8, 3], 2, [10, 11, 12]),
        Gap([2, 4, 3], 1, [9]),
        Gap([2, 9, 4, 4, 8, 13, 3], 3, [5, 6]),
    ]

    found = score_gaps(model, rows, 0, 8)

    for row, own in zip(rows, found, strict=True):
        (alone,) = score_gaps(model, [row], 0, 1)
        assert_close(own, alone)
        everything = Gap(row.tokens, row.place, range(tiny.VOCABULARY.size))
        assert_close(score_gaps(model, [everything], 0, 1)[0].exp().sum(), torch.tensor(1.0))


def test_a_model_that_knows_nothing_gives_every_token_the_same():
    model = tiny.model(CausalLM()).eval()
    for parameter in model.parameters():
        parameter.zero_()

    for own in score_endings(model, ROWS, 2):
        assert_close(own, torch.full_like(own, -math.log(tiny.VOCABULARY.size)))


def test_a_diverged_model_is_an_error():
    model = tiny.model(CausalLM()).eval()
    model.backbone.token_embedding.weight[9] = torch.nan

    with pytest.raises(NotFiniteError):
        score_endings(model, ROWS, 2)
