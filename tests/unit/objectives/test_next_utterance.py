"""The losses of a dialog: the right candidate, its words alone, what the model says itself."""

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.replies import replies
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.dialog.objective import NextUtterance
from transfer_cli.tasks.dialog.task import DialogExample, DialogTask
from transfer_cli.testing.claims import randomize

WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80).make(lambda: iter([WORDS] * 3))
TASK = DialogTask(speakers=("is", "and"))
TURNS = [
    DialogExample(["a river"], ["the old", "bridge", "red"], ["blue", "over a river", "new"], 2),
    DialogExample([], ["blue bridge"], ["the river is red", "new bridge"], 0),
]


@pytest.fixture
def asked():
    """Return an objective, its model, a batch of two turns, and the encoding of it."""
    objective = NextUtterance(pooling="cls_last", reply_tokens=4)
    objective.setup(TaskInfo(TOKENIZER, task=TASK))
    backbone = Backbone(tiny.shape(positions=48, segments=2), TOKENIZER.size)
    model = TransferModel(backbone, objective.modules(backbone)).eval()
    randomize(model)
    batch = TASK.encode(TURNS, TOKENIZER, 40, "causal").batch(np.arange(2))
    return objective, model, batch, Encoding(model, batch)


def test_words_count_in_the_right_candidate_alone(asked):
    objective, model, batch, encoded = asked

    loss = objective.loss_sums(model, batch, encoded)["words"]
    (gradient,) = torch.autograd.grad(loss, encoded.top)

    reached = gradient.flatten(1).any(1).view(2, 3)
    assert reached.tolist() == [[False, False, True], [True, False, False]]
    expected = sum(len(TOKENIZER.encode(each.choices[each.label])) + 1 for each in TURNS)
    assert objective.counts(batch) == {"loss": 2, "words": expected}


def test_a_language_model_beside_it_has_the_same_loss(asked):
    objective, model, batch, encoded = asked
    beside = CausalLM()
    beside.setup(TaskInfo(TOKENIZER))

    view = beside.prepare(batch, ExampleNoise(0, "test"))

    assert view["tokens"] is batch["tokens"]  # so both share one pass
    assert beside.counts(view) == {"loss": objective.counts(batch)["words"]}
    torch.testing.assert_close(
        beside.loss_sums(model, view, encoded)["loss"],
        objective.loss_sums(model, batch, encoded)["words"],
    )


def test_its_features_are_those_of_every_token(asked):
    objective, model, *_ = asked

    assert objective.pooling_of(model) is None


def test_equal_candidates_are_hit_by_chance_exactly(asked):
    objective, model, batch, encoded = asked
    torch.nn.init.zeros_(model.heads["class"].linear.weight)

    with torch.no_grad():
        sums = objective.metric_sums(model, batch, encoded)
    found = objective.compute_metrics(sums, objective.counts(batch), None)

    assert found["hits_at_1"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert found["chance"] == pytest.approx(found["hits_at_1"])


def test_what_is_said_follows_from_the_context_alone(asked):
    _, model, batch, _ = asked
    tokens, segment = batch["tokens"][:, 0], batch["segment"][:, 0]
    begin = torch.tensor([5, 3])

    found = replies(model, tokens, segment, begin, most=6, pick=lambda logits: logits.argmax(1))

    for row in range(2):
        so_far, speakers = tokens[row, : begin[row]], segment[row, : begin[row]]
        for said in found[row]:
            mask = torch.ones(1, len(so_far), dtype=torch.bool)
            with torch.no_grad():
                top = model.readout(model.backbone(so_far[None], mask, speakers[None]))[0, -1:]
                logits = model.heads["lm"](top, model.backbone.token_embedding.weight)
            assert int(logits.argmax()) == int(said)
            so_far = torch.cat([so_far, said[None]])
            speakers = torch.cat([speakers, torch.zeros(1, dtype=torch.long)])


def test_a_reply_ends_with_the_positions_of_the_model(asked):
    _, model, batch, _ = asked
    tokens, segment = batch["tokens"][:, 0], batch["segment"][:, 0]

    found = replies(
        model, tokens, segment, torch.tensor([tokens.shape[1]] * 2), most=60,
        pick=lambda logits: logits.argmax(1),
    )  # fmt: skip

    assert found.shape == (2, 60)
