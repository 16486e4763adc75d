"""What records of tasks have in common: nodes, rows of examples, several runs, failures."""

import numpy as np
import pytest

from transfer_cli.data.split import Split, subsample
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.tasks.base import build_task, rows_by_example
from transfer_cli.tasks.choice.task import ChoiceTask
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.multilabel import MultilabelTask
from transfer_cli.tasks.regression import RegressionTask
from transfer_cli.tasks.span.task import SpanTask

TASK = ClassificationTask(("no", "yes", "maybe"))
SETS = MultilabelTask(("a", "b", "c"))


def test_a_model_of_before_has_labels_alone():
    assert build_task(None, TASK.labels, "task") == TASK
    assert build_task(None, (), "task") is None
    assert build_task(TASK.as_node(), TASK.labels, "task") == TASK


@pytest.mark.parametrize(
    "target",
    [
        "transfer_cli.tasks.classification.Clasification", "transfer_cli.tasks.trec.Trec",
        "os.system",
    ],
)  # fmt: skip
def test_a_node_that_names_no_task_is_refused_by_its_key(target):
    with pytest.raises(ConfigError, match=r"^task"):
        build_task({"_target_": target}, ("a", "b"), "task")


class Windows:
    example_of = np.array([0, 0, 1, 2, 2, 2])

    def __len__(self):
        return len(self.example_of)


def test_rows_are_put_together_by_example_in_order():
    rows = {row: {"said": row} for row in (5, 1, 0, 3, 4)}

    groups = rows_by_example(Windows(), rows)

    assert {example: list(group) for example, group in groups.items()} == {0: [0, 1], 2: [3, 4, 5]}


def test_some_examples_are_scored_with_all_their_windows():
    split = Split("train", Windows(), example_of=Windows.example_of)

    assert subsample(split, 2).order.tolist() == [0, 1, 3, 4, 5]
    assert subsample(split, 3) is split


# --- several runs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TASK, ClassificationTask(("maybe", "no", "yes"))),
        (SETS, MultilabelTask(("c", "b", "a"))),
        (RegressionTask(), RegressionTask(mean=9.0)),
    ],
)
def test_runs_on_the_same_labels_in_any_order_are_combined(one, other):
    one.check_combines(other, "one", "two")


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (TASK, ClassificationTask(("no", "yes", "x")), "'maybe' only in one and 'x' only in two"),
        (SETS, MultilabelTask(("a", "b")), "the labels differ, 'c' only in one"),
        (SETS, ClassificationTask(SETS.labels), "two is a run of classification, and one one of m"),
        (RegressionTask(), TASK, "two is a run of classification, and one one of regression"),
        (ChoiceTask(), TASK, "two is a run of classification, and one one of choice"),
        (SpanTask(), SpanTask(), "answers of several runs on span cannot be combined"),
    ],
)
def test_runs_with_other_labels_or_another_task_are_refused(one, other, said):
    with pytest.raises(CheckpointError, match=said):
        one.check_combines(other, "one", "two")


# --- runs that learnt nothing ------------------------------------------------------------------

KINDS = ClassificationTask(("animal", "number"))
HALF_SAID = {"decisions": [[0, 0, 0], [0, 0, 0], [2, 2, 2], [4, 4, 4]]}
"""Of 6 texts two have each label: to say all of them has the best F1, 1/2."""


# A row of a confusion is what was right: mostly 60 animals and 40 numbers.
@pytest.mark.parametrize(
    ("task", "measures", "tables", "said"),
    [
        (KINDS, {"accuracy": 0.6}, {"confusion": [[60, 0], [40, 0]]},
         "60.0 % is no better than always answering animal (60.0 %)"),
        (KINDS, {"accuracy": 0.61}, {"confusion": [[60, 0], [40, 0]]}, "61.0 % is no better"),
        (KINDS, {"accuracy": 0.63}, {"confusion": [[60, 0], [40, 0]]}, None),
        (KINDS, {"accuracy": 0.3}, {"confusion": [[10, 20], [0, 70]]}, "number (70.0 %)"),
        (KINDS, {"accuracy": 0.6}, {"labels": [[60, 0], [60, 40], [100, 0]]}, "animal (60.0 %)"),
        (KINDS, {"accuracy": 1.0}, {"confusion": [[50, 0], [0, 0]]}, None),  # of one label
        (ClassificationTask(()), {"loss": 3.0}, {}, None),
        (SETS, {"micro_f1": 0.4}, HALF_SAID, "40.0 %"),
        (SETS, {"micro_f1": 0.51}, HALF_SAID, "always answering a, b, c (50.0 %)"),
        (SETS, {"micro_f1": 0.6}, HALF_SAID, None),
        (RegressionTask(scale=0.5), {"mse": 0.2475}, {}, "0.2475, is no better"),
        (RegressionTask(scale=0.5), {"mse": 0.2}, {}, None),
        (ChoiceTask(), {"accuracy": 0.27, "chance": 0.25}, {}, "a guess"),
        (ChoiceTask(), {"accuracy": 0.4, "chance": 0.25}, {}, None),
        (SpanTask(), {"f1": 1.0}, {}, "1.0 %"),
        (SpanTask(), {"f1": 51.0, "f1/HasAns": 0.5}, {}, "0.5 %"),
        (SpanTask(), {"f1": 30.0}, {}, None),
    ],
)  # fmt: skip
def test_a_run_no_better_than_a_constant_answer_has_failed(task, measures, tables, said):
    failure = task.failure(measures, tables)

    assert (failure is None) == (said is None)
    assert (said or "") in (failure or "")
