"""The loss of a number: in deviations from the mean, told in the unit of the numbers."""

import pytest
import torch

from tests import tiny
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.tasks.regression import Regression, RegressionTask


def bound(**options):
    objective = Regression(pooling="mean", **options)
    objective.setup(TaskInfo(tiny.VOCABULARY, task=RegressionTask(mean=3.0, scale=2.0)))
    return objective


OUTPUTS = torch.tensor([[-0.5], [0.0], [2.0]])
BATCH = {"value": torch.tensor([3.0, 3.0, 5.0], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("options", "values", "losses"),
    [
        ({}, [2, 3, 7], [0.25, 0, 1]),
        ({"loss": "huber"}, [2, 3, 7], [0.125, 0, 0.5]),
        ({"standardise": False}, [-0.5, 0, 2], [12.25, 9, 9]),
        ({"clip": (2.5, 6)}, [2.5, 3, 6], [0.25, 0, 1]),
    ],
)
def test_answers_are_in_the_unit_of_the_numbers_and_losses_in_deviations(options, values, losses):
    objective = bound(**options)

    assert objective.values(OUTPUTS).tolist() == pytest.approx(values)
    assert objective.losses(OUTPUTS, BATCH).tolist() == pytest.approx(losses)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"loss": "mae"}, "loss: 'mae' is not one of mse, huber"), ({"clip": (5, 0)}, "clip is")],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Regression(**options)
