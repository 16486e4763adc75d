"""The loss and the measures of several labels a text."""

import math
from dataclasses import replace

import pytest
import torch

from tests import tiny
from transfer_cli.data.split import TextStats
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.tasks.multilabel.objective import Multilabel
from transfer_cli.tasks.multilabel.task import MultilabelTask

TASK = MultilabelTask(("a", "b", "c"), shares=(0.5, 0.2, 0.001))
BATCH = {"labels": torch.tensor([[0, 1], [1, -1], [-1, -1]])}
GIVEN = torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 0]])
SAID = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 1]])


def bound(task=TASK, **options):
    objective = Multilabel(pooling="mean", **options)
    objective.setup(TaskInfo(tiny.VOCABULARY, task.labels, task=task))
    return objective


def measured(logits, batch=BATCH, task=TASK):
    objective = bound(task)
    totals = objective.tallies(logits, batch)
    counts = {"loss": logits.numel()}
    return objective.compute_metrics(totals, counts, TextStats())


def test_measures_of_known_answers():
    found = measured(SAID * 8.0 - 4)

    expected = {
        "micro_f1": 4 / 7, "macro_f1": (1 + 2 / 3 + 0) / 3, "exact_match": 0.0,
        "hamming_loss": 3 / 9, "macro_f1/a": 1.0, "macro_f1/b": 2 / 3, "macro_f1/c": 0.0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_measures_of_random_answers_are_those_of_their_definition():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        given, said = torch.rand(2, 6, 4, generator=generator) < 0.4
        numbers = [row.nonzero().flatten().tolist() for row in given]
        labels = torch.tensor([each + [-1] * (4 - len(each)) for each in numbers])
        task = MultilabelTask(tuple("abcd"))
        found = measured(said * 2.0 - 1, {"labels": labels}, task)

        both, either = (given & said).sum(0).tolist(), (given.int() + said.int()).sum(0).tolist()
        f1 = [2 * one / other for one, other in zip(both, either, strict=True) if other]
        micro = 2 * sum(both) / sum(either) if sum(either) else 1.0
        assert found["micro_f1"] == pytest.approx(micro)
        assert found["macro_f1"] == pytest.approx(sum(f1) / len(f1) if f1 else 1.0)
        assert found["exact_match"] == pytest.approx((given == said).all(1).double().mean().item())
        assert found["hamming_loss"] == pytest.approx((given ^ said).double().mean().item())


def test_what_is_said_of_each_text_has_the_probability_of_all_its_decisions():
    objective = bound(thresholds="fit")
    logits = torch.tensor([[2.0, -1.0, 3.0], [-1.0, -2.0, -3.0], [0.5, 1.0, -1.0]])

    before = objective.results(logits, BATCH)
    objective.info = replace(objective.info, task=replace(TASK, fitted={"thresholds": [0.5] * 3}))
    after = objective.results(logits, BATCH)

    assert after["said"].tolist() == [[2, 0], [-1, -1], [1, 0]]
    share = logits.sigmoid()
    expected = torch.where(share > 0.5, share, 1 - share).prod(1)
    assert torch.allclose(after["probability"], expected)
    assert torch.equal(before["probabilities"], share)
    assert "probabilities" not in after


def test_the_loss_is_the_cross_entropy_of_each_decision():
    logits = torch.tensor([[0.0, 1.0, -2.0]] * 3)

    losses = bound().decision_losses(logits, BATCH)

    share = logits.sigmoid()
    expected = -(GIVEN * share.log() + (1 - GIVEN) * (1 - share).log())
    assert torch.allclose(losses, expected)


def test_balanced_labels_weigh_their_examples_by_how_rare_they_are():
    losses = bound(pos_weight="balanced").decision_losses(
        torch.zeros(3, 3), {"labels": BATCH["labels"]}
    )
    rare = bound(pos_weight="balanced").decision_losses(
        torch.zeros(1, 3), {"labels": torch.tensor([[2]])}
    )

    half = math.log(2)
    assert losses[0].tolist() == pytest.approx([half, 4 * half, half])
    assert losses[2].tolist() == pytest.approx([half] * 3)
    assert rare[0, 2].item() == pytest.approx(100 * half, rel=1e-6)  # and not 999 times


def test_fitted_thresholds_decide():
    task = MultilabelTask(TASK.labels, fitted={"thresholds": [0.9, 0.5, 0.1]})
    logits = torch.tensor([[2.0, 1.0, -2.0]])

    assert bound(task).said(logits).tolist() == [[False, True, True]]
    assert bound().said(logits).tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pos_weight": "equal"}, "pos_weight: 'equal'"), ({"thresholds": "0.3"}, "thresholds: '0")],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Multilabel(**options)
