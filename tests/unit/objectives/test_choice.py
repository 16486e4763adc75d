"""The loss of a choice: a softmax over those of its example, whatever others it is batched with."""

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.tasks.choice.task import ChoiceExample, ChoiceTask, MultipleChoice, hits_and_ranks
from transfer_cli.testing.claims import randomize

WORDS = "the old bridge is red blue over a river and new"
TWO = ChoiceExample("the old bridge", ["red", "blue over a river"], "is", 1)
FOUR = ChoiceExample("a river", ["new", "old", "red and blue", "is over"], label=2)
TOKENIZER = WordPiece(size=80).make(lambda: iter([WORDS] * 3))


@pytest.fixture(params=[("cls_first", ()), ("max", (5,))], ids=str)
def asked(request):
    """Return an objective with a random model, and how to ask it for the logits of examples."""
    pooling, hidden = request.param
    objective = MultipleChoice(pooling=pooling, hidden=hidden)
    objective.setup(TaskInfo(TOKENIZER, task=ChoiceTask()))
    shape = BackboneShape(16, 2, 2, 32, 32, direction="bidirectional", segments=2)
    backbone = Backbone(shape, TOKENIZER.size)
    model = TransferModel(backbone, objective.modules(backbone)).eval()
    randomize(model)

    def logits(*examples):
        return objective.outputs(model, *batched(model, *examples))

    return objective, model, logits


def batched(model, *examples):
    data = ChoiceTask().encode(examples, TOKENIZER, 32, "bidirectional")
    batch = data.batch(np.arange(len(examples)))
    return batch, Encoding(model, batch)


def with_choices(example, *choices):
    return ChoiceExample(example.context, [example.choices[n] for n in choices], example.question)


def test_permuted_choices_have_permuted_logits(asked):
    _, _, logits = asked

    own, permuted = logits(FOUR), logits(with_choices(FOUR, 3, 1, 0, 2))

    torch.testing.assert_close(permuted, own[:, [3, 1, 0, 2]], rtol=1e-6, atol=1e-6)


def test_a_choice_that_is_there_twice_splits_its_probability(asked):
    _, _, logits = asked

    once = logits(TWO).softmax(1)[0].tolist()
    first, second, again = logits(with_choices(TWO, 0, 1, 1)).softmax(1)[0].tolist()

    assert second == pytest.approx(again, rel=1e-5)
    assert first / second == pytest.approx(once[0] / once[1], rel=1e-4)


def test_examples_of_two_and_four_choices_are_judged_as_each_alone(asked):
    objective, model, logits = asked

    together = logits(TWO, FOUR)

    assert together[0, 2:].tolist() == [-torch.inf] * 2
    torch.testing.assert_close(together[:1, :2], logits(TWO), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together[1:], logits(FOUR), rtol=1e-5, atol=1e-5)
    whole = objective.loss_sums(model, *batched(model, TWO, FOUR))["loss"]
    parts = [objective.loss_sums(model, *batched(model, each))["loss"] for each in (TWO, FOUR)]
    torch.testing.assert_close(whole, sum(parts), rtol=1e-5, atol=1e-5)


def test_a_missing_choice_gets_no_gradient(asked):
    objective, model, _ = asked
    batch, encoded = batched(model, TWO, FOUR)

    loss = objective.loss_sums(model, batch, encoded)["loss"]
    (gradient,) = torch.autograd.grad(loss, encoded.top)

    is_there = batch["mask"].any(-1)
    assert torch.equal(gradient.flatten(1).any(1).view_as(is_there), is_there)


def test_a_missing_choice_is_not_among_the_statistics_of_a_batch_norm():
    objective = MultipleChoice(pooling="mean", batch_norm=True)
    objective.setup(TaskInfo(TOKENIZER, task=ChoiceTask()))
    backbone = Backbone(tiny.shape(direction="bidirectional", positions=32), TOKENIZER.size)
    model = TransferModel(backbone, objective.modules(backbone)).train()

    objective.outputs(model, *batched(model, TWO, FOUR))

    batch, encoded = batched(model, TWO, FOUR)
    real = batch["mask"].any(-1).flatten()
    expected = 0.1 * encoded.pooled("mean")[real].mean(0)
    torch.testing.assert_close(model.heads["class"].norm.running_mean, expected)


@pytest.mark.parametrize(
    ("logits", "hit", "rank"),
    [
        ([0, 0, 0, 0], 0.25, 2.5),
        ([3, 1, 2, 0], 0, 3),
        ([1, 3, 2, -torch.inf], 1, 1),
        ([2, 2, 1, -torch.inf], 0.5, 1.5),
    ],
)
def test_equal_choices_count_as_if_their_order_were_drawn(logits, hit, rank):
    hits, ranks = hits_and_ranks(torch.tensor([logits]).float(), torch.tensor([1]))

    assert (float(hits), float(ranks)) == (hit, rank)


def test_chance_is_the_mean_over_the_questions(asked):
    objective, model, _ = asked
    batch, encoded = batched(model, TWO, FOUR)

    with torch.no_grad():
        sums = objective.metric_sums(model, batch, encoded)

    assert objective.compute_metrics(sums, {"loss": 2}, None)["chance"] == pytest.approx(0.375)
