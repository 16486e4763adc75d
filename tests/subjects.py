"""What analyses are called with in tests: tiny models, and what they are shown."""

from tests import tiny
from transfer_cli.analysis.analysis import Material, Subject
from transfer_cli.assembly.finished_run import Opened
from transfer_cli.data.split import Dataset, Split
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective
from transfer_cli.tasks.classification import ClassificationTask

LABELLED = ClassificationTask(tiny.LABELS)


def subject(
    model: TransferModel,
    objective: Objective,
    data: Dataset,
    task: ClassificationTask | None = LABELLED,
    **facts: object,
) -> Subject:
    """Return a model with examples of one split; `start` and `config` are not there."""
    material = Material(
        "these examples", ("validation",), task, lambda name: Split(name, data, **facts)
    )
    opened = Opened("tiny", None, None, objective, model.eval(), 32)
    return Subject(opened, material, ("validation",), tiny.FP32, batch=8, seed=0)
