"""Texts that several models write together, by the mean of their distributions."""

import numpy as np
import pytest
import torch

from tests import tiny
from tests.unit.tasks.test_seq2seq import PAIRS, TOKENIZER
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks.text_to_text.seq2seq import Seq2Seq, split_source_and_target
from transfer_cli.tasks.text_to_text.task import PrefixLM, TextToTextTask

MOST = 7
BOTH = pytest.mark.parametrize("beams", [1, 3])
DIRECTIONS = pytest.mark.parametrize("direction", ["causal", "bidirectional", "encoder_decoder"])


def at_work(direction, beams):
    """Return an objective, two models of other depths, and a batch of sources."""
    task = TextToTextTask(target_length=MOST)
    objective = (Seq2Seq if direction == "encoder_decoder" else PrefixLM)(beams=beams)
    models = [
        tiny.at_work(
            objective, task, TOKENIZER, seed, direction=direction, positions=24, depth=depth
        )
        for seed, depth in enumerate((2, 3))
    ]
    sources = [task.unlabelled(pair) for pair in PAIRS]
    data = task.encode(sources, TOKENIZER, 20, direction)
    return objective, models, data.batch(np.arange(len(sources)))


def together(objective, models, batch):
    predictions = objective.predictions_together([(objective, model, batch) for model in models])
    return predictions["answer"]


def read_anew(objective, models, batch, said):
    """Return the logarithm of the mean after tokens, `[V]`: all is read again, one text alone."""
    (row,) = batch["tokens"][batch["mask"]].split(int(batch["mask"].sum()))
    tokens = torch.tensor([[*row.tolist(), *said]])
    prefix = batch["prefix"]
    view = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool), "prefix": prefix}
    view["segment"] = (torch.arange(tokens.shape[1])[None] >= prefix[:, None]).long()
    if isinstance(objective, Seq2Seq):
        view = split_source_and_target(view, TOKENIZER.pad)
    shares = [
        model.heads["lm"](
            Encoding(model, view).top[:, -1], model.backbone.token_embedding.weight
        ).softmax(-1)
        for model in models
    ]
    return torch.stack(shares).mean(0).log()[0]


@torch.no_grad()
def slowly(objective, models, batch, end):
    """Return the text of one source, by what is read anew for each token."""
    allowed = torch.tensor([token == end or token not in TOKENIZER.special
                            for token in range(TOKENIZER.size)])  # fmt: skip
    if objective.search.beams == 1:
        said = []
        while len(said) < MOST and end not in said:
            log_V = read_anew(objective, models, batch, said)
            said.append(int(log_V.where(allowed, torch.tensor(-torch.inf)).argmax()))
        return said
    texts = [[]]

    def read(tokens_N, rows_N):
        rows = zip(rows_N.tolist(), tokens_N.tolist(), strict=True)
        texts[:] = [[*texts[row], token] for row, token in rows]
        return torch.stack([read_anew(objective, models, batch, text) for text in texts])

    first = read_anew(objective, models, batch, [])[None]
    (best,) = objective.search(first, read, max_tokens=MOST, end_tokens=[end], allowed_V=allowed)
    return best


@BOTH
@DIRECTIONS
def test_the_mean_of_the_distributions_decides_each_token(direction, beams):
    objective, models, batch = at_work(direction, beams)
    end = TOKENIZER.cls if direction == "causal" else TOKENIZER.sep

    answers = together(objective, models, batch)

    alone = [objective.predictions(model, batch, None)["answer"] for model in models]
    assert all(not torch.equal(answers, answer) for answer in alone)
    for number, said in enumerate(answers.tolist()):
        one = {key: value[number : number + 1] for key, value in batch.items()}
        text = said[: said.index(end) + 1] if end in said else said
        assert text == slowly(objective, models, one, end)


@BOTH
@DIRECTIONS
def test_a_model_with_itself_says_what_it_says(direction, beams):
    objective, (model, _), batch = at_work(direction, beams)

    alone = objective.predictions(model, batch, None)["answer"]

    assert torch.equal(together(objective, [model, model], batch), alone)
