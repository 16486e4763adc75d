"""Temperatures, calibration errors and thresholds: by hand, on planted data, and for each kind."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.assembly.exports import scaled_to_units
from transfer_cli.batch import IGNORE
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import wilson_interval
from transfer_cli.objectives import confidence
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.choice.task import ChoiceTask, MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.multilabel import Multilabel, MultilabelTask
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.task import TaggingTask

LABELS = ("a", "b", "c")
FITTED = {"temperature": 2.5, "abstain_below": 0.6}


def drawn(count, temperature, seed=0):
    """Return scores whose probabilities are right once they are divided by a temperature."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(count, 3, generator=generator)
    target = scores.softmax(1).multinomial(1, generator=generator).squeeze(1)
    return temperature * scores, target


def bound(objective, task):
    objective.setup(TaskInfo(tiny.VOCABULARY, task.labels, task=task))
    return objective


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_a_planted_temperature_is_found(temperature):
    scores, target = drawn(20_000, temperature)

    assert confidence.fit_temperature(scores, target) == pytest.approx(temperature, rel=0.05)


def test_a_temperature_has_the_lowest_likelihood_loss_and_sees_units_alone():
    scores, target = drawn(300, 2.0)
    padded = torch.cat([scores, torch.full((1, 3), torch.nan)]), torch.cat([target, -torch.ones(1)])
    padded[1][-1] = IGNORE
    fewer = torch.cat([scores, torch.full((300, 1), -torch.inf)], 1)

    best = confidence.fit_temperature(scores, target)

    def loss(temperature):
        return torch.nn.functional.cross_entropy(scores.double() / temperature, target).item()

    assert loss(best) < min(loss(0.99 * best), loss(1.01 * best))
    assert confidence.fit_temperature(*padded) == best
    assert confidence.fit_temperature(fewer, target) == pytest.approx(best, rel=1e-6)


def test_where_no_answer_is_wrong_the_temperature_is_at_its_bound():
    scores = torch.eye(3)

    temperature = confidence.fit_temperature(scores, torch.arange(3))
    assert temperature == pytest.approx(confidence.MIN_TEMPERATURE)


def test_the_calibration_error_is_that_of_15_bins():
    # Probabilities of the first answer, and whether it is right: the bin (8/15, 9/15], and the top.
    sure, right = [0.55, 0.58, 0.6, 0.96], [1, 0, 1, 0]
    scores = torch.tensor([[share, 1 - share] for share in sure]).log()
    target = torch.tensor([1 - is_right for is_right in right])
    bins = confidence.reliability(scores, target)

    measures = confidence.measures({"reliability": torch.stack([bins, bins])})

    assert bins[:2, 8].tolist() == [3, 2]
    assert bins[:2, 14].tolist() == [1, 0]
    expected = (abs(2 - (0.55 + 0.58 + 0.6)) + 0.96) / 4
    assert measures["ece"] == measures["ece/before"] == pytest.approx(expected, abs=1e-6)


def test_the_threshold_keeps_the_promise_by_the_lower_bound_of_wilson():
    sure = torch.linspace(0.99, 0.5, 200)
    right = torch.ones(200, dtype=torch.bool)
    right[100::2] = False

    threshold = confidence.fit_threshold(sure, right, 0.9)

    def lower(count):
        return wilson_interval(int(right[:count].sum()), count)[0]

    count = int((sure > threshold).sum())
    assert lower(count) >= 0.9
    assert all(lower(more) < 0.9 for more in range(count + 1, 201))
    assert threshold == pytest.approx(float(sure[count - 1] + sure[count]) / 2)


@pytest.mark.parametrize(
    ("sure", "right", "threshold"),
    [([0.9] * 60, [True] * 60, 0.0), ([0.9] * 100, [True] * 100, 0.45),
     ([0.9] * 100, [True] * 99 + [False], 0.0)],
)  # fmt: skip
def test_no_threshold_is_found_where_too_few_answers_show_it(sure, right, threshold):
    fitted = confidence.fit_threshold(torch.tensor(sure), torch.tensor(right), 0.95)

    assert fitted == pytest.approx(threshold)


def test_no_threshold_parts_answers_that_differ_by_rounding_alone():
    near = 0.54 + 1e-7 * torch.rand(80, generator=torch.manual_seed(0))
    sure = torch.cat([torch.full((120,), 0.99), near])
    right = torch.ones(200, dtype=torch.bool)
    right[120 + near.argsort()[:40]] = False  # those that look least sure

    assert confidence.fit_threshold(sure, right, 0.95) == pytest.approx((0.99 + 0.54) / 2)


@given(
    answers=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
    threshold=st.floats(0, 1),
)
def test_coverage_times_precision_is_the_share_that_is_given_and_right(answers, threshold):
    sure, right = (torch.tensor(values) for values in zip(*answers, strict=True))
    right = right.bool()

    given = confidence.count_given(sure.double(), right, threshold)
    measures = confidence.measures({"given": given})
    curve = confidence.curve(sure.double(), right)

    both = sum(one and share >= threshold for share, one in zip(sure.double(), right, strict=True))
    share = measures["coverage"] * measures["precision_at_coverage"]
    assert share == pytest.approx(int(both) / len(answers))
    assert curve.sum(1).tolist() == [len(answers), int(right.sum())]


# --- each kind of answer -------------------------------------------------------------------------

SCORES = torch.tensor([[4.0, 1.0, 0.0], [0.0, 0.5, 0.3], [-1.0, 2.0, 3.0]])
TAGS = {"target": torch.tensor([[0, 1, IGNORE]]), "word": torch.tensor([[0, 1, IGNORE]])}
KINDS = {
    "classification": (Classification, ClassificationTask(LABELS), SCORES, {"label": [0, 2, 2]}),
    "choice": (MultipleChoice, ChoiceTask(), SCORES, {"label": [0, 2, 2]}),
    "tagging": (TokenTagging, TaggingTask(LABELS, marks_entities=False), SCORES[None], TAGS),
    "multilabel": (
        Multilabel, MultilabelTask(LABELS, fitted={"thresholds": [0.9, 0.4, 0.5]}), SCORES,
        {"labels": [[0, -1], [1, 2], [1, 2]]},
    ),
}  # fmt: skip
"""Of each: its objective, its task, what its head says of a batch, and what is right."""


def case(kind, **fitted):
    objective, task, outputs, batch = KINDS[kind]
    batch = {name: torch.as_tensor(value) for name, value in batch.items()}
    batch |= {"tokens": torch.zeros(len(outputs), 3), "mask": torch.ones(len(outputs), 3).bool()}
    task = replace(task, fitted={**task.fitted, **fitted})
    return bound(objective(), task), outputs, batch


def decided(kind, objective, outputs):
    """Return what is answered, before any of it is held back."""
    answers = objective.answers(outputs, {})
    name = "shares" if kind == "tagging" else "probabilities"
    rows = np.array(answers[name].flatten(0, -2).tolist())
    if kind == "multilabel":
        return (rows > objective.info.task.thresholds).tolist()
    return rows.argmax(1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_temperature_changes_probabilities_and_no_answer(kind):
    before, outputs, batch = case(kind)
    after, _, _ = case(kind, temperature=2.5)

    answers = [objective.answers(outputs, batch) for objective in (before, after)]

    assert decided(kind, before, outputs) == decided(kind, after, outputs)
    for name in answers[0]:
        assert not torch.equal(answers[0][name], answers[1][name])
        cooled = before.answers(outputs / 2.5, batch)
        assert torch.allclose(answers[1][name], cooled[name], atol=1e-6)
    losses = [objective.losses(outputs, batch) for objective in (before, after)]
    assert torch.equal(*losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_measures_how_far_it_can_be_believed(kind, monkeypatch):
    before, outputs, batch = case(kind)
    sure, right = before.judged_answers(*before.judged_units(outputs / 2.5, batch))
    threshold = float(sure.max()) - 1e-4
    objective, _, _ = case(kind, temperature=2.5, abstain_below=threshold)
    for variant in (before, objective):
        monkeypatch.setattr(variant, "_cached_outputs", lambda *_: outputs)

    sums = objective.metric_sums(None, batch, None)
    counts = objective.counts(batch)
    measures = objective.compute_metrics(sums, counts, TextStats())
    usual = before.compute_metrics(before.metric_sums(None, batch, None), counts, TextStats())

    assert measures.keys() - usual.keys() == {
        "ece", "ece/before", "coverage", "precision_at_coverage",
    }  # fmt: skip
    assert {name: measures[name] for name in usual} == usual
    is_given = sure >= threshold
    assert measures["coverage"] == pytest.approx(is_given.double().mean().item())
    assert 0 < measures["coverage"] < 1
    assert measures["precision_at_coverage"] == right[is_given].double().mean().item()
    assert [*map(sum, objective.tables(sums)["curve"])] == [len(right), int(right.sum())]


def test_what_is_not_sure_is_not_said_by_any_task():
    shares = [0.5, 0.3, 0.2]
    kept = {"choices": [*LABELS], "probabilities": shares, "text": "x y", "spans": [[0, 1], [2, 3]]}
    kept["shares"] = [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]

    def written(task):
        said = replace(task, fitted={"abstain_below": 0.6}).written(kept)
        return {name: value for name, value in said.items() if name not in ("probabilities",)}

    assert written(ClassificationTask(LABELS)) == {"label": None, "probability": 0.5}
    assert written(ChoiceTask()) == {"label": None, "answer": None, "probability": 0.5}
    assert written(MultilabelTask(LABELS)) == {"labels": None, "probability": pytest.approx(0.28)}
    assert written(TaggingTask(("O", "B-X", "I-X"))) == {
        "tags": [None, "B-X"], "entities": [{"label": "X", "start": 2, "end": 3, "text": "y"}],
    }  # fmt: skip
    unsure = replace(ClassificationTask(LABELS), fitted={"abstain_below": 0.6})
    assert unsure.cells(kept) == ["", 0.5, *shares]


@pytest.mark.parametrize("layer", ["heads.class.linear", "heads.tags"])
def test_an_export_is_as_sure_as_the_run(layer):
    task = ClassificationTask(LABELS, fitted=FITTED)
    tensors = {f"{layer}.weight": torch.randn(3, 4), f"{layer}.bias": torch.randn(3)}
    states = torch.randn(5, 4)

    folded = scaled_to_units(tensors, None, task)

    def logits(kept):
        return states @ kept[f"{layer}.weight"].T + kept[f"{layer}.bias"]

    assert torch.allclose(logits(folded), logits(tensors) / 2.5, atol=1e-6)
