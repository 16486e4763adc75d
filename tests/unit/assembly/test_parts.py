"""Config nodes to parts of a run: the model and its edits, losses, rates and groups."""

import importlib
import inspect
import pkgutil

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from tests import configs, tiny
from tests.configs import ADAPTERS, FRESH_TOP, LORA
from transfer_cli import tasks
from transfer_cli.adaptation import edits
from transfer_cli.assembly.losses import (
    bind_losses,
    build_objectives,
    objective_options,
    with_direction,
)
from transfer_cli.assembly.model import apply_edits, build_model, edit_nodes
from transfer_cli.assembly.optimizer import parameter_groups
from transfer_cli.config.decided import base_lr
from transfer_cli.config.describe import options
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.base import Loss, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Geometric, Uniform
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask

SIZE = tiny.VOCABULARY.size
MIX = {"_target_": f"{configs.EDITS}.MixLayers"}


def used(*objectives):
    names = ["main", *(f"further{n}" for n in range(len(objectives)))]
    return [
        Loss(name, tiny.bound(objective))
        for name, objective in zip(names, objectives, strict=False)
    ]


def test_the_same_seed_draws_the_same_weights_whatever_was_drawn_before():
    drawn = []
    for seed, before in [(0, 1), (0, 2), (1, 1)]:
        torch.manual_seed(before)
        drawn.append(build_model(tiny.shape(), SIZE, used(Classification()), seed).state_dict())

    assert tiny.same(drawn[0], drawn[1])
    assert not tiny.same(drawn[0], drawn[2])


def test_further_losses_do_not_change_what_the_backbone_draws():
    one = build_model(tiny.shape(), SIZE, used(Classification()), 0)
    two = build_model(tiny.shape(), SIZE, used(Classification(), CausalLM()), 0)

    assert tiny.same(one.backbone.state_dict(), two.backbone.state_dict())
    assert tiny.same(one.heads["class"].state_dict(), two.heads["class"].state_dict())
    assert set(two.heads) == {"class", "lm"}


def test_losses_that_name_the_same_head_share_it():
    model = build_model(tiny.shape(), SIZE, used(CausalLM(), CausalLM()), 0)

    assert list(model.heads) == ["lm"]


def test_edits_are_made_in_their_order_and_tell_what_they_are():
    model = tiny.model(Classification())

    fresh, structure = apply_edits(
        model, {"mix": MIX, "fresh": FRESH_TOP, "lora": LORA}, tiny.VOCABULARY
    )

    assert list(structure.items()) == [("mix", MIX), ("lora", LORA)]
    top = {n for n, _ in model.named_parameters() if ".blocks.2." in n and ".lora." not in n}
    assert top <= fresh
    assert not any("blocks.0" in name for name in fresh)


@pytest.mark.parametrize(
    ("edits", "names"),
    [
        (None, []),
        ({}, []),
        ({"b": ADAPTERS, "a": LORA}, ["b", "a"]),
        ({"a": None, "b": LORA}, ["b"]),
    ],
)
def test_edits_are_asked_for_in_their_order_and_null_takes_one_away(edits, names):
    config = OmegaConf.create({"adaptation": {"edits": edits}})

    assert list(edit_nodes(config.adaptation)) == names


# --- losses ------------------------------------------------------------------------------------

FALLING = {
    "_target_": "transfer_cli.optim.loss_weight.Annealed", "start": 1.0, "end": 0.25, "over": "rest"
}  # fmt: skip


def asked(main=configs.CLASSIFICATION, *, streams=(), **losses):
    return build_objectives(OmegaConf.create(main), OmegaConf.create(losses), streams)


def of_tasks(base):
    """Return the classes of the package that belong to a task, and can be made."""
    for module in pkgutil.walk_packages(tasks.__path__, f"{tasks.__name__}."):
        importlib.import_module(module.name)
    classes = []
    for child in base.__subclasses__():
        is_ours = child.__module__.startswith(tasks.__name__) and not inspect.isabstract(child)
        classes += [*([child] if is_ours else []), *of_tasks(child)]
    return classes


@pytest.mark.parametrize("task", of_tasks(Task), ids=lambda task: task.name)
def test_an_objective_that_does_not_fit_the_data_names_the_one_that_does(task):
    record, _ = task.sample()
    info = {"main": TaskInfo(tiny.VOCABULARY, record.labels, task=record)}
    fitting = []
    for option in (option for option in options() if option.group == "objective"):
        node = yaml.safe_load(option.text)
        unbound = asked({n: ["RUN"] if value == "???" else value for n, value in node.items()})
        needs = unbound["main"].objective.task
        if needs == task.name:
            fitting.append(option.name)
        elif needs is not None:
            with pytest.raises(ConfigError, match=r"; choose objective=\w+, or data"):
                bind_losses(unbound, info, total_steps=1, steps_per_epoch=1)

    assert task.objective in fitting


def test_the_main_loss_comes_first_and_all_read_the_main_stream_unless_told():
    unbound = asked(zebra=configs.CLM, apple={**configs.CLM, "stream": "more"}, streams=["more"])

    assert list(unbound) == ["main", "zebra", "apple"]
    assert [loss.stream for loss in unbound.values()] == ["main", "main", "more"]
    assert [loss.weight for loss in unbound.values()] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("weight", [0, 0.25, 3])
def test_a_loss_counts_as_much_as_it_is_told(weight):
    node = OmegaConf.create({**configs.CLM, "weight": weight, "stream": "main"})

    assert asked(words=node)["words"].weight == weight
    assert objective_options(node, "objective") == configs.CLM


FACTS = {
    "main": TaskInfo(tiny.VOCABULARY, tiny.LABELS, task=ClassificationTask(tiny.LABELS)),
    "more": TaskInfo(tiny.VOCABULARY, ("a", "b"), task=ClassificationTask(("a", "b"))),
}  # fmt: skip


def losses(unbound, total=10, epoch=5):
    return bind_losses(unbound, FACTS, total_steps=total, steps_per_epoch=epoch)


def test_each_objective_learns_of_its_own_stream_and_its_name():
    main, further = losses(
        asked(second={**configs.CLASSIFICATION, "stream": "more"}, streams=["more"])
    )

    assert (main.objective.info.name, main.objective.info.labels) == ("main", tiny.LABELS)
    assert (further.objective.info.name, further.objective.info.labels) == ("second", ("a", "b"))
    assert further.stream == "more"


def test_a_loss_that_counts_nothing_is_left_out_unless_it_is_the_main_one():
    bound = losses(
        asked({**configs.CLASSIFICATION, "weight": 0}, words={**configs.CLM, "weight": 0})
    )

    assert [(loss.name, loss.weight_at(0)) for loss in bound] == [("main", 0.0)]


@pytest.mark.parametrize(("over", "half"), [("rest", 20), ("10 steps", 4.5), ("3 epochs", 8)])
def test_a_weight_that_changes_is_told_how_long_run_and_epoch_are(over, half):
    unbound = asked(words={**configs.CLM, "weight": {**FALLING, "over": over}})

    (_, words) = losses(unbound, total=41, epoch=8)

    assert words.weight_at(0) == 1.0
    assert words.weight_at(40) == 0.25
    if half == int(half):
        assert words.weight_at(half) == pytest.approx(0.5)


# --- direction ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "main", "further", "direction"),
    [("auto", configs.CLM, {}, "causal"), ("auto", configs.MLM, {}, "bidirectional"),
     ("auto", configs.CLASSIFICATION, {}, "causal"),
     ("auto", configs.CLASSIFICATION, {"words": configs.MLM}, "bidirectional"),
     ("bidirectional", configs.CLASSIFICATION, {}, "bidirectional"),
     ("causal", configs.CLM, {}, "causal")],
)  # fmt: skip
def test_the_objectives_settle_which_way_a_model_looks(told, main, further, direction):
    assert with_direction(tiny.shape(direction=told), asked(main, **further)).direction == direction


# --- the optimizer -----------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "rate"), [(384, 1e-4), (128, 3e-4), (768, 5e-5)])
def test_a_rate_is_a_number_or_falls_with_the_width(width, rate):
    assert base_lr(rate, width) == rate
    assert base_lr("1e-4*384/width", width) == pytest.approx(rate, rel=1e-12)
    assert base_lr("0.0001 * 384 / width", width) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    "rate",
    [
        0, -1, True, "fast", None, float("inf"), float("nan"), "1e-4/width", "0*384/width",
        "1e-4*384", "1.2.3*384/width",
    ],
)  # fmt: skip
def test_any_other_rate_is_refused(rate):
    with pytest.raises(ConfigError, match=r"^optimizer\.lr: must be a number above 0, got "):
        base_lr(rate, 128)


def test_every_parameter_is_in_one_group_and_vectors_do_not_decay():
    model = tiny.model(Classification())

    groups = parameter_groups(model, layer_groups(model, frozenset()), Uniform())

    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    for group in groups:
        matrices = {parameter.ndim >= 2 for parameter in group["params"]}
        assert matrices == {"weight_decay" not in group}


@pytest.mark.parametrize("dora", [False, True])
def test_the_second_matrix_of_lora_has_a_rate_of_its_own(dora):
    model = tiny.model()
    edits.LoRA(lr_ratio=16.0, dora=dora)(model, {})

    groups = parameter_groups(model, layer_groups(model, set()), Geometric(2.0))

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scales = {names[id(p)]: group["scale"] for group in groups for p in group["params"]}
    added = {name: scale for name, scale in scales.items() if ".lora." in name}
    assert scales.keys() == set(names.values())
    assert all(scale == (16 if name.endswith(".up") else 1) for name, scale in added.items())
    # What is recorded of a layer group is its own rate.
    assert {group["layer"]: group["scale"] for group in groups}["added.0"] == 1
