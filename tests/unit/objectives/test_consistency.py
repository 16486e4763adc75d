import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.of_main_head import Consistency
from transfer_cli.objectives.perturbations import PERTURBATIONS
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.testing.objectives import check_objective

NOISE = ExampleNoise(0, "train", 3)
DATA = tiny.Questions(examples=40)


class Alone(Consistency):
    """With a head, which the contract asks for; a further loss has that of the main one."""

    def setup(self, info):
        self._own = tiny.bound(Classification(dropout=0))
        super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=self._own))
        self.on_data(DATA)

    def modules(self, backbone):
        return self._own.modules(backbone)


def at_work(perturb="mask", **options):
    """Return an objective, a lively model, and a prepared batch."""
    main, objective = Classification(dropout=0), Consistency(perturb, **options)
    model = tiny.model(main, objective).eval()
    tiny.lively(model)
    objective.on_data(DATA)
    batch = DATA.batch(np.arange(6))
    return objective, model, objective.prepare(batch, NOISE)


def loss_of(objective, model, view):
    return objective.loss_sums(model, view, Encoding(model, view))["loss"]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("perturb", ["none", "dropout"])
def test_a_text_and_itself_agree_where_nothing_is_random(perturb, symmetric):
    objective, model, view = at_work(perturb, symmetric=symmetric)

    found = loss_of(objective, model, view)
    found.backward()

    assert found == 0
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert max(float(each.abs().max()) for each in gradients) < 1e-6


def test_in_training_dropout_alone_makes_a_difference():
    objective, model, view = at_work("dropout")
    model = tiny.model(Classification(), dropout=0.3).train()
    tiny.lively(model)

    assert loss_of(objective, model, view) > 0


@pytest.mark.parametrize("perturb", PERTURBATIONS)
def test_it_keeps_the_contract_of_an_objective(perturb):
    batch = DATA.batch(np.arange(5))

    check_objective(
        Alone(perturb, rate=0.4, symmetric=True), TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch
    )


@pytest.mark.parametrize("perturb", PERTURBATIONS)
def test_copies_of_choices_are_the_same_in_every_batch(perturb):
    class OfChoices(Alone):
        def setup(self, info):
            self._own = tiny.bound(MultipleChoice(dropout=0))
            Consistency.setup(self, TaskInfo(info.vocabulary, (), "further", main=self._own))
            self.on_data(tiny.groups())

    batch = tiny.groups().batch(np.arange(5))

    check_objective(
        OfChoices(perturb, rate=0.4, symmetric=True), TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch
    )


def pair_of(objective, model, view):
    """Return what the main head says of the texts, and of their copies."""
    copy = {"tokens": view["tokens_copy"], "mask": view["mask_copy"]}
    main = objective.main
    return (main.scores(model, each, Encoding(model, each)) for each in (view, copy))


def test_it_is_the_divergence_of_the_copy_from_the_sharpened_text_without_its_gradient():
    objective, model, view = at_work(rate=0.5, temperature=0.4)
    first, second = pair_of(objective, model, view)
    target = (first / 0.4).softmax(1).detach()
    wanted = (target * (target.log() - second.log_softmax(1))).sum()

    found = loss_of(objective, model, view)

    assert found > 0.01
    assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(each, model.heads["class"].linear.weight)[0]
                    for each in (found, wanted))  # fmt: skip
    assert_close(ours, theirs)


def test_both_ways_with_gradients_through_both():
    objective, model, view = at_work(rate=0.5, symmetric=True)
    first, second = (each.log_softmax(1) for each in pair_of(objective, model, view))
    there = (first.exp() * (first - second)).sum()
    back = (second.exp() * (second - first)).sum()

    found = loss_of(objective, model, view)

    assert_close(found, (there + back) / 2)
    weight = model.heads["class"].linear.weight
    assert_close(*(torch.autograd.grad(each, weight)[0] for each in (found, (there + back) / 2)))


def test_masking_needs_a_mask_token():
    info = TaskInfo(tiny.Vocabulary(has_mask=False), tiny.LABELS, "rest", main=Classification())

    with pytest.raises(ConfigError, match=r"losses.rest.perturb: this tokenizer has no mask token"):
        Consistency().setup(info)
    Consistency("delete").setup(info)


def test_it_is_no_main_loss():
    with pytest.raises(ConfigError, match=r"^objective: it is a further loss.*objective@losses"):
        Consistency("none").setup(TaskInfo(tiny.VOCABULARY, tiny.LABELS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"perturb": "masks"}, "Did you mean 'mask'"),
        ({"rate": 1.0}, "rate must be between 0 and 1"),
        ({"temperature": 0}, "temperature"),
        ({"confidence": -0.1}, r"confidence must be in \[0, 1\)"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Consistency(**options)
