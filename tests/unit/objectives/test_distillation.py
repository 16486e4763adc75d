import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.of_main_head import Distillation
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.multilabel.objective import Multilabel
from transfer_cli.tasks.regression import Regression, RegressionTask
from transfer_cli.testing.objectives import check_objective

KEY = "teacher_further"


class Said(Classification):
    """A main objective whose scores are given."""

    def __init__(self, scores):
        super().__init__()
        self.given = torch.tensor(scores)

    def scores(self, model, batch, encoded):
        return self.given


def made(main, **options):
    objective = Distillation(("RUN",), **options)
    return tiny.bound(objective, main)


def lost(objective, answers, size=None):
    answers = torch.tensor(answers)
    batch = {"tokens": torch.zeros(size or len(answers), 1), KEY: answers}
    return objective.loss_sums(None, batch, None)["loss"], objective.counts(batch)["loss"]


def test_the_example_of_the_paper_by_hand():
    teacher = torch.tensor([[2.0, 0.0]]).softmax(1).tolist()

    found, count = lost(made(Said([[0.0, 0.0]])), teacher)

    # Both are flattened by 2: (0.7311, 0.2689) and (0.5, 0.5), whose divergence is 0.1109.
    assert_close(found, torch.tensor(0.4438), atol=1e-4, rtol=0)
    assert_close(found / 4, torch.tensor(0.1109), atol=1e-4, rtol=0)
    assert count == 1


def test_at_a_high_temperature_it_is_the_squared_difference_of_logits():
    own, theirs = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[0.0, 1.0, -0.5]])

    found, _ = lost(made(Said(own.tolist()), temperature=30.0), theirs.softmax(1).tolist())

    apart = (own - own.mean()) - (theirs - theirs.mean())
    assert_close(found, apart.square().sum() / 6, rtol=0.02, atol=0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_student_like_its_teacher_loses_nothing_and_has_no_gradient(temperature):
    main = Said([[1.0, -2.0, 0.5], [0.0, 3.0, 0.1]])
    main.given.requires_grad_()
    answers = main.given.detach().softmax(1).tolist()

    found, _ = lost(made(main, temperature=temperature), answers)
    found.backward()

    assert_close(found, torch.tensor(0.0), atol=1e-6, rtol=0)
    assert_close(main.given.grad, torch.zeros(2, 3), atol=1e-6, rtol=0)


def test_the_first_choice_alone_is_its_cross_entropy_where_the_teacher_is_sure():
    scores = [[1.0, 2.0], [0.3, 0.1], [0.0, 0.0]]
    objective = made(Said(scores), hard=True, confidence=0.9, temperature=5.0)

    found, count = lost(objective, [[0.05, 0.95], [0.92, 0.08], [0.6, 0.4]])

    wanted = -torch.tensor(scores).log_softmax(1)
    assert_close(found, wanted[0, 1] + wanted[1, 0])
    assert count == 2


def test_of_a_text_of_which_no_teacher_is_sure_nothing_is_learnt():
    found, count = lost(made(Said([[1.0, 2.0]]), confidence=0.9), [[0.5, 0.5]])

    assert (float(found), count) == (0, 0)


def test_numbers_are_compared_in_the_unit_of_the_head():
    main = Regression()
    main.setup(TaskInfo(tiny.VOCABULARY, task=RegressionTask(mean=10.0, scale=2.0)))
    main.scores = lambda *_: torch.tensor([[0.5], [1.0]])

    found, _ = lost(made(main, temperature=1.0), [[10.0], [14.0]])

    assert_close(found, torch.tensor(0.5**2 + 1.0**2))


def test_several_labels_are_compared_one_by_one():
    main = tiny.bound(Multilabel())
    scores = torch.tensor([[0.0, 2.0], [-1.0, 0.5]])
    main.scores = lambda *_: scores
    answers = torch.tensor([[0.5, 0.9], [0.2, 0.6]])

    same, _ = lost(made(main), scores.sigmoid().tolist())
    found, _ = lost(made(main, temperature=1.0), answers.tolist())

    assert_close(same, torch.tensor(0.0), atol=1e-6, rtol=0)
    said = torch.distributions.Bernoulli(logits=scores)
    wanted = torch.distributions.kl_divergence(torch.distributions.Bernoulli(answers), said)
    assert_close(found, wanted.sum())


def test_choices_that_are_not_there_count_on_neither_side():
    main = tiny.bound(MultipleChoice())
    scores = torch.tensor([[1.0, 0.0, -math.inf], [0.0, 2.0, 1.0]], requires_grad=True)
    main.scores = lambda *_: scores
    answers = [[0.7, 0.3, 0.0, 0.0], [0.2, 0.5, 0.3, 0.0]]

    found, _ = lost(made(main, temperature=1.0), answers)
    found.backward()

    rows = [(answers[0][:2], scores[0, :2]), (answers[1][:3], scores[1, :3])]
    wanted = sum(
        (torch.tensor(p) * (torch.tensor(p).log() - q.log_softmax(0))).sum() for p, q in rows
    )
    assert_close(found, wanted)
    assert scores.grad.isfinite().all()


def test_it_keeps_the_contract_of_an_objective():
    class Alone(Distillation):
        """With a head, which the contract asks for; a further loss has that of the main one."""

        def setup(self, info):
            super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=main))

        def modules(self, backbone):
            return main.modules(backbone)

    main = tiny.bound(Classification(dropout=0))
    batch = tiny.Questions(examples=5).batch(np.arange(5))
    batch[KEY] = torch.rand(5, 3).softmax(1)

    check_objective(Alone(("RUN",)), TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch)


def test_without_answers_it_says_where_they_come_from():
    objective = made(Said([[0.0, 0.0]]))

    with pytest.raises(RunError, match=r"losses.further: what the teachers say comes with a run's"):
        objective.counts({"tokens": torch.zeros(1, 1)})


def test_it_is_about_what_is_said_of_whole_texts():
    message = r"losses.further: it is about what the main objective says of a text.*CausalLM"
    with pytest.raises(ConfigError, match=message):
        made(tiny.bound(CausalLM()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teachers": ()}, "teachers is empty"),
        ({"temperature": 0}, "temperature"),
        ({"confidence": 1.0}, r"confidence must be in \[0, 1\)"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Distillation(**{"teachers": ("RUN",), **options})


def test_the_head_is_that_of_the_main_loss():
    main, objective = Classification(), Distillation(("RUN",))
    model = tiny.model(main, objective).eval()
    batch = tiny.Questions(examples=4).batch(np.arange(4))
    encoded = Encoding(model, batch)
    batch[KEY] = main.outputs(model, batch, encoded).softmax(1).detach()

    found = objective.loss_sums(model, batch, Encoding(model, batch))["loss"]

    assert [*model.heads] == ["class"]
    assert_close(found, torch.tensor(0.0), atol=1e-5, rtol=0)
