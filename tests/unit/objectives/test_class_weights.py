"""Weights of classes: what they are, and what becomes of a loss, its micro-batches and its step.

Two processes are in `test_distributed.py`.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from tests.on_stand_in import Tagged
from transfer_cli.batch import IGNORE, micro_batches
from transfer_cli.data.labelled import Example
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import SliceHeads
from transfer_cli.objectives.class_weights import weights_by_label
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.slices import Slice
from transfer_cli.tasks.choice.task import ChoiceExample, ChoiceTask, MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import TaggingTask

WEIGHTS = {"animal": 3.0, "number": 0.25}  # and 1 for the third
WEIGHT_C = torch.tensor([3.0, 0.25, 1.0])
RIGHT = ("animal", "place", "number", "animal")
QUESTIONS = tuple(ChoiceExample("", ["?", right], label=1) for right in RIGHT * 4)


def of_choices(**options):
    """Return an objective of choices that knows the right answers of 16 examples."""
    objective = MultipleChoice(dropout=0, **options)
    setup = objective.setup
    objective.setup = lambda info: setup(
        replace(info, labels=(), task=ChoiceTask(), train=QUESTIONS)
    )
    return objective


MADE = {
    "classification": (partial(Classification, dropout=0), tiny.Questions),
    "smoothed": (partial(Classification, dropout=0, label_smoothing=0.3), tiny.Questions),
    "tags": (partial(TokenTagging, dropout=0), Tagged),
    "choice": (of_choices, tiny.groups),
}


def made(name, **options):
    """Return an objective, a lively model, its data, and a batch of all of it."""
    make, data = MADE[name]
    objective, examples = make(**options), data(examples=16)
    model = tiny.model(objective).eval()
    tiny.lively(model)
    return objective, model, examples, tiny.all_of(examples)


def torchs(name, objective, model, batch):
    """Return the mean loss as torch has it."""
    outputs = objective.outputs(model, batch, Encoding(model, batch))
    if name == "choice":
        each_B = F.cross_entropy(outputs, batch["label"], reduction="none")
        weight_B = torch.tensor([WEIGHTS.get(right, 1.0) for right in RIGHT * 4])
        return (weight_B * each_B).sum() / weight_B.sum()
    target = batch["target"].flatten() if name == "tags" else batch["label"]
    smoothing = 0.3 if name == "smoothed" else 0.0
    return F.cross_entropy(
        outputs.flatten(0, -2), target, WEIGHT_C, label_smoothing=smoothing, ignore_index=IGNORE
    )


@pytest.mark.parametrize("name", MADE)
def test_a_weighted_loss_is_that_of_torch_and_what_is_measured_weighs_nothing(name):
    objective, model, _, batch = made(name, class_weight=WEIGHTS)
    plain = made(name)[0]

    total = objective.loss_sums(model, batch, Encoding(model, batch))["loss"]
    measured, unweighted = (
        each.metric_sums(model, batch, Encoding(model, batch)) for each in (objective, plain)
    )

    mean = total / objective.divisors(batch)["loss"]
    torch.testing.assert_close(mean, torchs(name, objective, model, batch))
    assert all(torch.equal(measured[key], unweighted[key]) for key in unweighted)
    assert plain.divisors(batch) == plain.counts(batch) == objective.counts(batch)


@pytest.mark.parametrize("name", MADE)
def test_a_step_divides_by_the_weights_of_all_its_micro_batches(name):
    after = []
    for size in (1, 8):
        objective, model, data, _ = made(name, class_weight={**WEIGHTS, "place": 0.1})
        recipe = tiny.Recipe(rate=0.5, optimizer=torch.optim.SGD)
        micros = [
            {"main": data.batch(part)} for part in micro_batches(torch.arange(8).numpy(), size)
        ]
        after.append((tiny.train_step(model, objective, recipe)(micros, 0), tiny.weights_of(model)))

    (one, first), (other, second) = after
    torch.testing.assert_close(one.total, other.total)
    torch.testing.assert_close(first, second)


def test_a_step_of_texts_that_weigh_nothing_changes_nothing():
    objective, model, _, batch = made("classification", class_weight={"animal": 0.0})
    only = {key: value[batch["label"] == 0] for key, value in batch.items()}
    before = tiny.weights_of(model)

    report = tiny.train_step(model, objective, tiny.Recipe(optimizer=torch.optim.SGD))(
        [{"main": only}], 0
    )

    assert len(only["label"]) > 0
    assert float(report.total) == 0
    assert tiny.same(before, tiny.weights_of(model))


def test_an_annealed_loss_leaves_out_what_is_known_by_its_own_probability():
    objective, model, _, batch = made("classification", class_weight=WEIGHTS, annealing="linear")
    encoded = Encoding(model, batch)
    logits_BC, label_B = objective.outputs(model, batch, encoded), batch["label"]
    known_B = logits_BC.softmax(1)[torch.arange(16), label_B] > 0.4
    each_B = F.cross_entropy(logits_BC, label_B, reduction="none") * WEIGHT_C[label_B]

    objective.on_step(0.1)
    sums = objective.loss_sums(model, batch, encoded)

    assert 0 < known_B.sum() < 16
    torch.testing.assert_close(sums["loss"], each_B[~known_B].sum())
    assert objective.divisors(batch) == {
        "loss": float(WEIGHT_C[label_B].sum()), "share_kept": 16,
    }  # fmt: skip


# --- what they are ---------------------------------------------------------------------------

LABELS = ("a", "b", "c")
TEXTS = tuple(Example("text", label) for label in (0, 0, 0, 0, 0, 0, 1, 1))
SENTENCES = tuple(TagExample.of_words(["x"] * len(tags), tags) for tags in ((0,) * 6, (1, 1)))
ASKED = tuple(ChoiceExample("", ["a", "b"], label=int(n > 5)) for n in range(8))
TASKS = {
    "classification": TaskInfo(
        tiny.VOCABULARY, LABELS, task=ClassificationTask(LABELS), train=TEXTS
    ),
    "tagging": TaskInfo(tiny.VOCABULARY, LABELS, task=TaggingTask(LABELS), train=SENTENCES),
    "choice": TaskInfo(tiny.VOCABULARY, task=ChoiceTask(), train=ASKED),
}


@pytest.mark.parametrize("name", TASKS)
def test_what_balanced_comes_to_is_stored_and_opened_without_the_data(name):
    kind = {"classification": Classification, "tagging": TokenTagging}.get(name, MultipleChoice)
    objective, info = kind(class_weight="balanced"), TASKS[name]
    objective.setup(info)
    backbone = tiny.backbone()
    model = tiny.TransferModel(backbone, objective.modules(backbone))

    stored = objective.finalize_options(model, set())["class_weight"]
    opened = kind(class_weight=stored)
    opened.setup(replace(info, train=()))

    # Six of the first, two of the second, none of the third: 8 / (2 * 6), 8 / (2 * 2).
    assert stored == {"a": 8 / 12, "b": 2.0}
    assert opened.class_weights.by_label == ({} if name == "choice" else {"c": 1.0}) | stored


def test_labels_that_yaml_reads_as_numbers_or_truth_are_known():
    info = TaskInfo(None, ("2", "true"), task=ClassificationTask(("2", "true")))

    assert weights_by_label({2: 5.0, True: 3.0}, info) == {"2": 5.0, "true": 3.0}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "asked", [{"z": 2.0}, {"a": 0.0, "b": 0.0, "c": 0.0}, {"a": -1.0}, {"a": math.nan}, {"a": 2e6}]
)
def test_unknown_labels_and_what_is_no_weight_are_refused(name, asked):
    known = {label: weight for label, weight in asked.items() if name != "choice" or label != "c"}

    with pytest.raises(ConfigError, match=r"^objective\.class_weight[.:]"):
        weights_by_label(known, TASKS[name])


def test_right_choices_that_do_not_repeat_have_no_balance():
    different = tuple(ChoiceExample("", ["x", str(n)], label=1) for n in range(4))
    info = replace(TASKS["choice"], name="other", train=different)

    with pytest.raises(ConfigError, match=r"^losses\.other\.class_weight: 4 examples"):
        weights_by_label("balanced", info)


def test_heads_of_slices_refuse_weights():
    main = tiny.bound(Classification(class_weight=WEIGHTS))

    with pytest.raises(ConfigError, match=r"objective\.class_weight"):
        tiny.bound(SliceHeads({"short": Slice(length=(0, 6))}), main)


def test_a_run_that_finds_rare_labels_has_learnt_something():
    weights = tiny.bound(Classification(class_weight={"animal": 0.1})).class_weights
    table = [[60, 20, 10], [0, 5, 0], [0, 0, 5]]
    plain = {"accuracy": 0.7}, {"confusion": table}
    task = ClassificationTask(tiny.LABELS)

    assert task.failure(*plain)  # always saying the commonest is right in 90 of 100
    assert task.failure(*weights.weighed(*plain)) is None
    assert weights.weighed({"accuracy": 0.7}, {}) == ({"accuracy": 0.7}, {})
