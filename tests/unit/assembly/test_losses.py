"""Which losses a config asks for, what they read and how much they count."""

import importlib
import inspect
import pkgutil

import pytest
from omegaconf import OmegaConf

from tests import configs, tiny
from transfer_cli import tasks
from transfer_cli.assembly.losses import (
    bind_losses,
    build_objectives,
    objective_options,
    with_direction,
)
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask

TEXT = {"data": {"_target_": "transfer_cli.data.text.SampleText"}}
FALLING = {
    "_target_": "transfer_cli.optim.loss_weight.Annealed", "start": 1.0, "end": 0.25, "over": "rest"
}  # fmt: skip


def asked(main=configs.CLASSIFICATION, *, streams=(), **losses):
    nodes = {"objective": main, "losses": losses, "streams": dict.fromkeys(streams, TEXT)}
    return build_objectives(OmegaConf.create(nodes))


def of_tasks(base):
    """Return the classes of the package that belong to a task, and can be made."""
    for module in pkgutil.walk_packages(tasks.__path__, f"{tasks.__name__}."):
        importlib.import_module(module.name)
    found = []
    for each in base.__subclasses__():
        is_ours = each.__module__.startswith(tasks.__name__) and not inspect.isabstract(each)
        found += [*([each] if is_ours else []), *of_tasks(each)]
    return found


@pytest.mark.parametrize("task", of_tasks(Task), ids=lambda task: task.name)
def test_an_objective_that_does_not_fit_the_data_names_the_one_that_does(task):
    record, _ = task.sample()
    info = {"main": TaskInfo(tiny.VOCABULARY, record.labels, task=record)}
    fitting = []
    for file in sorted((conf_dir() / "objective").glob("*.yaml")):
        node = OmegaConf.to_container(OmegaConf.load(file))
        found = asked({n: ["RUN"] if value == "???" else value for n, value in node.items()})
        needs = found["main"].objective.task
        if needs == task.name:
            fitting.append(file.stem)
        elif needs is not None:
            with pytest.raises(ConfigError, match=r"; choose objective=\w+, or data"):
                bind_losses(found, info, total_steps=1, steps_per_epoch=1)

    assert task.objective in fitting


def test_the_main_loss_comes_first_and_all_read_the_main_stream_unless_told():
    found = asked(zebra=configs.CLM, apple={**configs.CLM, "stream": "more"}, streams=["more"])

    assert list(found) == ["main", "zebra", "apple"]
    assert [loss.stream for loss in found.values()] == ["main", "main", "more"]
    assert [loss.weight for loss in found.values()] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("weight", [0, 0.25, 3])
def test_a_loss_counts_as_much_as_it_is_told(weight):
    assert asked(words={**configs.CLM, "weight": weight})["words"].weight == weight


def test_the_main_loss_reads_the_main_stream():
    with pytest.raises(
        ConfigError, match=r"^objective\.stream: the main loss reads the stream main"
    ):
        asked({**configs.CLASSIFICATION, "stream": "more"}, streams=["more"])


def test_weight_and_stream_are_no_options_of_the_objective():
    node = OmegaConf.create({**configs.CLM, "weight": 2, "stream": "main"})

    assert objective_options(node, "objective") == configs.CLM


FACTS = {
    "main": TaskInfo(tiny.VOCABULARY, tiny.LABELS, task=ClassificationTask(tiny.LABELS)),
    "more": TaskInfo(tiny.VOCABULARY, ("a", "b"), task=ClassificationTask(("a", "b"))),
}  # fmt: skip


def losses(found, total=10, epoch=5):
    return bind_losses(found, FACTS, total_steps=total, steps_per_epoch=epoch)


def test_each_objective_learns_of_its_own_stream_and_its_name():
    main, further = losses(
        asked(second={**configs.CLASSIFICATION, "stream": "more"}, streams=["more"])
    )

    assert (main.objective.info.name, main.objective.info.labels) == ("main", tiny.LABELS)
    assert (further.objective.info.name, further.objective.info.labels) == ("second", ("a", "b"))
    assert further.stream == "more"


def test_a_loss_that_counts_nothing_is_left_out_unless_it_is_the_main_one():
    found = losses(
        asked({**configs.CLASSIFICATION, "weight": 0}, words={**configs.CLM, "weight": 0})
    )

    assert [(loss.name, loss.weight_at(0)) for loss in found] == [("main", 0.0)]


@pytest.mark.parametrize(("over", "half"), [("rest", 20), ("10 steps", 4.5), ("3 epochs", 8)])
def test_a_weight_that_changes_is_told_how_long_run_and_epoch_are(over, half):
    found = asked(words={**configs.CLM, "weight": {**FALLING, "over": over}})

    (_, words) = losses(found, total=41, epoch=8)

    assert words.weight_at(0) == 1.0
    assert words.weight_at(40) == 0.25
    if half == int(half):
        assert words.weight_at(half) == pytest.approx(0.5)


# --- direction ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "main", "further", "direction"),
    [("auto", configs.CLM, {}, "causal"), ("auto", configs.MLM, {}, "bidirectional"),
     ("auto", configs.CLASSIFICATION, {}, "causal"),
     ("auto", configs.CLASSIFICATION, {"words": configs.MLM}, "bidirectional"),
     ("bidirectional", configs.CLASSIFICATION, {}, "bidirectional"),
     ("causal", configs.CLM, {}, "causal")],
)  # fmt: skip
def test_the_objectives_settle_which_way_a_model_looks(own, main, further, direction):
    assert with_direction(tiny.shape(direction=own), asked(main, **further)).direction == direction
