import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from tests.on_stand_in import Tagged
from transfer_cli.adaptation.edits import NewRows
from transfer_cli.batch import IGNORE, micro_batches
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError
from transfer_cli.model.pooling import pool
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Loss, TaskInfo
from transfer_cli.objectives.beside_main_head import SliceHeads
from transfer_cli.objectives.class_weights import weights_by_label
from transfer_cli.objectives.classification import Classification, annealing_threshold
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.runs.slices import Slice
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.choice.task import ChoiceExample, ChoiceTask, MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.testing.objectives import check_objective

POOLINGS = ("cls_first", "cls_last", "mean", "max", "concat")
TABLE = "backbone.token_embedding.weight"
NEW_ROWS = "backbone.new_rows.delta"


def judged(labels, predictions, names=tiny.LABELS):
    """Return the measures of predictions, through the confusion counts."""
    objective = Classification()
    objective.setup(TaskInfo(tiny.VOCABULARY, names))
    confusion = torch.zeros(len(names), len(names), dtype=torch.long)
    for label, prediction in zip(labels, predictions, strict=True):
        confusion[label, prediction] += 1
    totals = {"loss": torch.tensor(float(len(labels))), "confusion": confusion}
    return objective.compute_metrics(totals, {"loss": len(labels)}, TextStats())


def f1_of(name, labels, predictions):
    """Return precision and recall's harmonic mean, counted by hand."""
    both = sum(a == b == name for a, b in zip(labels, predictions, strict=True))
    if not both:
        return 0.0
    precision, recall = both / predictions.count(name), both / labels.count(name)
    return 2 * precision * recall / (precision + recall)


# Measures.


def test_of_very_many_labels_the_same_is_measured_without_a_cell_for_each_pair(monkeypatch):
    objective, data = Classification(), tiny.Questions(examples=24)
    model, batch = tiny.model(objective).eval(), tiny.all_of(data)
    tiny.lively(model)

    def judged_now():
        with torch.no_grad():
            totals = objective.metric_sums(model, batch, Encoding(model, batch))
        return totals, objective.compute_metrics(totals, {"loss": 24}, TextStats())

    few, measures = judged_now()
    monkeypatch.setattr("transfer_cli.objectives.classification.MAX_CONFUSION_LABELS", 2)
    many, again = judged_now()

    assert again == measures
    confusion = few["confusion"]
    assert objective.tables(few) == {"confusion": confusion.tolist()}
    wanted = [confusion.diagonal(), confusion.sum(1), confusion.sum(0)]
    assert objective.tables(many) == {"labels": [row.tolist() for row in wanted]}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_measures_are_those_counted_by_hand_over_the_classes_that_occur(pairs):
    labels, said = ([pair[side] for pair in pairs] for side in (0, 1))

    measures = judged(labels, said)

    right = np.equal(labels, said)
    by_label = {f"accuracy/{tiny.LABELS[n]}": right[np.equal(labels, n)].mean() for n in {*labels}}
    assert measures == pytest.approx({
        "loss": 1.0, "accuracy": right.mean(), "error_rate": 100 * (1 - right.mean()),
        "macro_f1": np.mean([f1_of(name, labels, said) for name in {*labels, *said}]), **by_label,
    })  # fmt: skip


# The loss.


@pytest.mark.parametrize(
    "options",
    [
        *({"pooling": pooling} for pooling in ("auto", *POOLINGS)),
        *(
            {"pooling": "concat", "hidden": hidden, "batch_norm": batch_norm}
            for hidden in ((), (50,), (9, 7))
            for batch_norm in (False, True)
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_classification_keeps_the_contract_of_objectives(options):
    check_objective(
        Classification(**options),
        TaskInfo(tiny.VOCABULARY, tiny.LABELS),
        tiny.Questions().batch(np.arange(6)),
    )


def test_a_further_classification_has_a_head_of_its_own():
    main, topic = Classification(), Classification(hidden=(7,))
    main.setup(TaskInfo(tiny.VOCABULARY, tiny.LABELS))
    topic.setup(TaskInfo(tiny.VOCABULARY, ("a", "b"), name="topic"))
    backbone, batch = tiny.backbone(), tiny.all_of(tiny.Questions(examples=4))
    model = TransferModel(backbone, {**main.modules(backbone), **topic.modules(backbone)})

    sizes = {
        name: objective.outputs(model, batch, Encoding(model, batch)).shape[1]
        for name, objective in (("main", main), ("topic", topic))
    }

    assert sorted(model.heads) == ["class", "class_topic"]
    assert sizes == {"main": 3, "topic": 2}
    assert topic.finalize_options(model, set()) == {"pooling": "mean"}
    assert model.heads["class"].pooling == "cls_last"


def test_samples_name_the_label_and_the_prediction():
    objective, batch = Classification(), tiny.all_of(tiny.Questions(examples=2))
    model = tiny.model(objective).eval()
    model.heads["class"].linear.bias.data = torch.tensor([0.0, 9.0, 0.0])

    samples = objective.samples(model, batch, Encoding(model, batch))

    assert [sample.tokens for sample in samples] == tiny.Questions(examples=2).rows
    assert [sample.prediction for sample in samples] == ["number", "number"]
    assert [sample.target for sample in samples] == [tiny.LABELS[n] for n in batch["label"]]


# Pooling.


BLOCK = "backbone.blocks.0.attention.packed.weight"
ENDS_TEXTS = tiny.Vocabulary(cls=3)
"""Its only special token."""


@pytest.mark.parametrize(
    ("direction", "trains", "new_rows", "vocabulary", "pooling"),
    [
        ("causal", {TABLE}, (), tiny.VOCABULARY, "cls_last"),
        ("bidirectional", {TABLE}, (), tiny.VOCABULARY, "cls_first"),
        ("causal", set(), (), tiny.VOCABULARY, "mean"),
        ("bidirectional", {"heads.class.linear.weight"}, (), tiny.VOCABULARY, "mean"),
        ("causal", {NEW_ROWS}, ("cls",), tiny.VOCABULARY, "cls_last"),
        ("causal", {NEW_ROWS}, ("sep",), tiny.VOCABULARY, "mean"),
        ("causal", set(), ("cls",), tiny.VOCABULARY, "mean"),
        ("causal", {TABLE, BLOCK}, (), ENDS_TEXTS, "mean"),
        ("bidirectional", {TABLE, BLOCK}, (), ENDS_TEXTS, "cls_first"),
    ],
)
def test_auto_pools_by_direction_and_by_the_mean_where_the_classification_token_cannot_learn(
    direction, trains, new_rows, vocabulary, pooling
):
    objective = Classification()
    model = tiny.model(objective, direction=direction)
    objective.setup(TaskInfo(vocabulary, tiny.LABELS))
    if new_rows:
        NewRows(new_rows)(model, {"cls": vocabulary.cls, "sep": vocabulary.sep})

    pinned = objective.finalize_options(model, trains)

    assert pinned == {"pooling": pooling}
    assert model.heads["class"].pooling == pooling


POOLER = "heads.pooler.linear.weight"


@pytest.mark.parametrize(
    ("trains", "pooling", "pooler"),
    [
        ({TABLE, POOLER}, "cls_first", True),
        ({BLOCK}, "cls_first", True),
        (set(), "mean", False),
        ({POOLER}, "mean", True),
    ],
)
def test_a_kind_of_model_with_a_pooler_was_pretrained_with_its_classification_token(
    trains, pooling, pooler
):
    objective = Classification()
    model = tiny.model(objective, direction="bidirectional", pooler="tanh").eval()
    batch = tiny.all_of(tiny.Questions(examples=4))
    tiny.lively(model)

    assert objective.finalize_options(model, trains) == {"pooling": pooling, "pooler": pooler}

    encoded = Encoding(model, batch)
    pooled = pool(encoded.top, batch["mask"], pooling)
    if pooler:
        pooled = model.heads["pooler"].linear(pooled).tanh()
    torch.testing.assert_close(
        objective.outputs(model, batch, encoded), model.heads["class"].linear(pooled)
    )


@pytest.mark.parametrize(
    ("asked", "pooling", "there"),
    [(None, "mean", False), (True, "mean", True), (False, "cls_first", False),
     (None, "cls_first", True)],
)  # fmt: skip
def test_a_pooler_can_be_asked_for_and_left_out(asked, pooling, there):
    objective = Classification(pooling, pooler=asked)

    model = tiny.model(objective, direction="bidirectional", pooler="tanh")

    assert ("pooler" in model.heads) is there


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_named_pooling_is_kept(pooling):
    objective = Classification(pooling)
    model = tiny.model(objective)

    assert objective.finalize_options(model, set()) == {"pooling": pooling}
    assert model.heads["class"].linear.in_features == (48 if pooling == "concat" else 16)


# Training-signal annealing.


@pytest.mark.parametrize(
    ("form", "at"),
    [
        ("log", (0.1667, 0.9316, 0.9944)),
        ("linear", (0.1667, 0.5833, 1.0)),
        ("exp", (0.1723, 0.2351, 1.0)),
    ],
)
def test_annealing_rises_from_a_guess_to_all(form, at):
    limits = [annealing_threshold(form, progress, 6) for progress in (0.0, 0.5, 1.0)]

    assert limits == pytest.approx(at, abs=5e-5)


@pytest.mark.parametrize("options", [{"annealing": "exp"}, {"label_smoothing": 0.3}])
def test_what_changes_the_loss_changes_no_score(options):
    changed, plain = Classification(dropout=0, **options), tiny.bound(Classification(dropout=0))
    model, batch = tiny.model(changed).eval(), tiny.all_of(tiny.Questions(examples=16))
    changed.on_step(0.1)

    one, other = (
        variant.metric_sums(model, batch, Encoding(model, batch)) for variant in (changed, plain)
    )

    assert one["loss"] == other["loss"]


@torch.no_grad()
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_a_cross_entropy_of_which_smoothed_labels_share_a_part(smoothing):
    objective = Classification(dropout=0, label_smoothing=smoothing)
    model, batch = tiny.model(objective).eval(), tiny.all_of(tiny.Questions(examples=16))
    logits_BC = objective.outputs(model, batch, Encoding(model, batch)).double().log_softmax(1)
    target_BC = torch.full_like(logits_BC, smoothing / logits_BC.shape[1])
    target_BC[torch.arange(16), batch["label"]] += 1 - smoothing

    loss = objective.loss_sums(model, batch, Encoding(model, batch))["loss"]

    assert float(loss) == pytest.approx(float(-(target_BC * logits_BC).sum()), rel=1e-5)
    assert objective.counts(batch) == {"loss": 16}


# --- sentence pair -------------------------------------------------------------------------------


NOISE = ExampleNoise(0, "train", 3)


def info():
    main = tiny.bound(MaskedLM(0.4))
    return TaskInfo(tiny.VOCABULARY, name="pair", main=main, pairs="nsp")


def pairs(examples=6):
    """Return a batch of texts with random answers."""
    batch = tiny.Questions(causal=False).batch(np.arange(examples))
    del batch["label"]
    return {**batch, "pair": torch.arange(examples) % 2}


def at_work(**changes):
    """Return both objectives, and a lively model with the heads of both."""
    given = info()
    objective = SentencePair()
    objective.setup(given)
    trunk = tiny.backbone(direction="bidirectional", **changes)
    model = tiny.TransferModel(trunk, given.main.modules(trunk) | objective.modules(trunk))
    tiny.lively(model)
    return given.main, objective, model


def test_sentence_pair_keeps_the_contract_of_objectives():
    check_objective(SentencePair(), info(), pairs())


def test_the_accuracy_of_pairs_counts_right_answers():
    objective, outputs = SentencePair(), torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    objective.setup(info())

    assert objective.tallies(outputs, {"pair": torch.tensor([0, 1, 1])})["accuracy"] == 2


@pytest.mark.parametrize("micro_batch", [6, 2])
def test_both_losses_read_one_pass_over_the_text_with_its_hidden_tokens(micro_batch):
    main, objective, model = at_work(segments=2)
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    step = tiny.train_step(model, [Loss("main", main), Loss("pair", objective)], tiny.Recipe())
    whole = pairs()
    micros = [
        {"main": {key: value[at : at + micro_batch] for key, value in whole.items()}}
        for at in range(0, 6, micro_batch)
    ]

    report = step(micros, 0)

    assert len(seen) == 6 // micro_batch
    hidden = main.prepare(whole, ExampleNoise(0, "train", 0))["tokens"]
    real = torch.cat([tokens[tokens != tiny.VOCABULARY.pad] for tokens in map(torch.ravel, seen)])
    assert torch.equal(real, hidden[whole["mask"]])
    assert (hidden == tiny.VOCABULARY.mask).any()
    assert report.losses.keys() == {"main/loss", "pair/loss"}


def test_a_loss_of_another_stream_reads_its_own_batch():
    main, objective, model = at_work()
    losses = [Loss("main", main), Loss("pair", objective, stream="other")]
    step = tiny.train_step(model, losses, tiny.Recipe())
    batch = pairs(4)

    views = step._prepare({"main": pairs(6), "other": batch}, 0)

    assert len(views["pair"]["tokens"]) == 4
    expected = main.prepare(batch, ExampleNoise(0, "train", 0))["tokens"]
    assert torch.equal(views["pair"]["tokens"], expected)


def test_an_evaluation_reads_what_the_main_loss_reads():
    main, objective, _ = at_work()
    batch = pairs()

    prepared = objective.prepare(batch, NOISE)

    assert torch.equal(prepared["tokens"], main.prepare(batch, NOISE)["tokens"])
    assert "target" not in prepared


def test_measures_are_the_share_of_right_answers_and_the_mean_loss():
    _, objective, model = at_work()
    batch = pairs()
    with torch.no_grad():
        logits = objective.outputs(model, batch, Encoding(model, batch))
        sums = objective.metric_sums(model, batch, Encoding(model, batch))

    measures = objective.compute_metrics(sums, objective.counts(batch), None)

    right = (logits.argmax(1) == batch["pair"]).float().mean()
    loss = torch.nn.functional.cross_entropy(logits, batch["pair"])
    assert measures == {"accuracy": pytest.approx(float(right)), "loss": pytest.approx(float(loss))}


def test_the_state_of_the_first_token_passes_a_pooler_with_tanh_and_a_linear_layer():
    _, objective, model = at_work()
    batch = pairs()
    encoded = Encoding(model, batch)
    pooler, linear = model.heads["pooler"].linear, model.heads["pair"].linear

    expected = linear(torch.tanh(pooler(encoded.top[:, 0])))

    torch.testing.assert_close(objective.outputs(model, batch, encoded), expected)


# --- weights of classes --------------------------------------------------------------------------


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
        variant.metric_sums(model, batch, Encoding(model, batch)) for variant in (objective, plain)
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


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_an_annealed_loss_leaves_out_what_is_known_by_its_own_probability(weights):
    objective, model, _, batch = made("classification", class_weight=weights, annealing="linear")
    encoded, label_B = Encoding(model, batch), batch["label"]
    logits_BC = objective.outputs(model, batch, encoded)
    weight_B = torch.ones(16) if weights is None else WEIGHT_C[label_B]
    # A tenth of the way from 1/3 to 1.
    known_B = logits_BC.softmax(1)[torch.arange(16), label_B] > 0.4
    each_B = F.cross_entropy(logits_BC, label_B, reduction="none") * weight_B

    objective.on_step(0.1)
    sums = objective.loss_sums(model, batch, encoded)

    assert 0 < known_B.sum() < 16
    torch.testing.assert_close(sums["loss"], each_B[~known_B].sum())
    assert sums["share_kept"] == (~known_B).sum()
    assert objective.counts(batch) == {"loss": 16, "share_kept": 16}
    assert objective.divisors(batch) == {"loss": float(weight_B.sum()), "share_kept": 16}


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


def test_labels_of_truth_may_be_spelt_otherwise_than_the_config_has_them():
    info = TaskInfo(None, ("2", "True"), task=ClassificationTask(("2", "True")))

    assert weights_by_label({"2": 5.0, "true": 3.0}, info) == {"2": 5.0, "True": 3.0}


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
    assert task.failure(*weights.reweight(*plain)) is None
    assert weights.reweight({"accuracy": 0.7}, {}) == ({"accuracy": 0.7}, {})
