"""What is learnt word by word from teachers, and from perturbed copies."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import IGNORE, with_facts, with_rows
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import CrossView
from transfer_cli.objectives.of_main_head import Consistency, Distillation
from transfer_cli.objectives.perturbations import PERTURBATIONS
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.tasks.tagging.windows import EncodedWords
from transfer_cli.testing.objectives import check_objective

KEY = "teacher_further"
NOISE = ExampleNoise(0, "train", 3)


def texts():
    """Return texts without tags, in which a word is read at each second token."""
    rows = tiny.Questions(examples=6).rows
    read_at = [range(0, len(row) - 1, 2) for row in rows]
    return EncodedWords(
        rows, rows, tiny.VOCABULARY.pad, read_at, None, example_of=range(6), is_cut=[False] * 6
    )


def answered(seed=0):
    """Return texts with what a teacher says of each word."""
    data = texts()
    words = sum(map(len, data.read_at))
    draw = np.random.default_rng(seed)
    data.add_answers(KEY, draw.dirichlet(np.ones(3), words).astype(np.float32))
    return data


def at_work(objective):
    """Return an objective and a lively model, whose main loss are tags."""
    model = tiny.model(TokenTagging(dropout=0), objective).eval()
    tiny.lively(model)
    return objective, model


def lost(objective, model, view):
    return objective.loss_sums(model, view, Encoding(model, view))["loss"]


def alone(objective, **options):
    """Return one with a head, which the contract asks for; its main loss are tags."""
    main = tiny.bound(TokenTagging(dropout=0))

    class Alone(objective):
        def setup(self, info):
            super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=main))
            self.on_data(texts())

        def modules(self, backbone):
            return main.modules(backbone)

    return Alone(**options)


# --- teachers ----------------------------------------------------------------------------------


def test_the_example_of_the_paper_at_a_word():
    main = tiny.bound(TokenTagging())
    main.scores = lambda *_: torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    objective = tiny.bound(Distillation(("RUN",)), main)
    given = torch.zeros(1, 3, 2)
    given[0, 0] = torch.tensor([2.0, 0.0]).softmax(0)
    given[0, 2] = torch.tensor([1.0, 3.0]).softmax(0)
    batch = {"tokens": torch.zeros(1, 3), "word": torch.tensor([[0, IGNORE, 1]]), KEY: given}

    found = objective.loss_sums(None, batch, None)["loss"]

    # Of the first word they are (0.7311, 0.2689) and (0.5, 0.5); of the second one they are alike.
    assert_close(found, torch.tensor(0.4438), atol=1e-4, rtol=0)
    assert objective.counts(batch) == {"loss": 2}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_student_like_its_teacher_loses_nothing_and_has_no_gradient(temperature):
    objective, model = at_work(Distillation(("RUN",), temperature=temperature))
    data = texts()
    batch = tiny.all_of(data)
    shares_NC = objective.main.scores(model, batch, Encoding(model, batch)).softmax(1)
    data.add_answers(KEY, shares_NC.detach().numpy())
    view = tiny.all_of(data)

    found = lost(objective, model, view)
    found.backward()

    assert_close(found, torch.tensor(0.0), atol=1e-5, rtol=0)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert max(float(each.abs().max()) for each in gradients) < 1e-5


def test_words_of_which_the_teacher_is_not_sure_are_left_out():
    objective, model = at_work(Distillation(("RUN",), hard=True, confidence=0.6))
    view = tiny.all_of(answered())
    shares_NC = objective.main.of_units(view[KEY], view)
    sure_N = shares_NC.amax(1) > 0.6
    scores_NC = objective.main.scores(model, view, Encoding(model, view)).log_softmax(1)

    found = lost(objective, model, view)

    said_N = -scores_NC.gather(1, shares_NC.argmax(1, keepdim=True)).squeeze(1)
    assert 0 < sure_N.sum() < len(sure_N)
    assert_close(found, said_N[sure_N].sum())
    assert objective.counts(view) == {"loss": int(sure_N.sum())}


def test_distillation_keeps_the_contract_of_an_objective():
    check_objective(
        alone(Distillation, teachers=("RUN",), confidence=0.5),
        TaskInfo(tiny.VOCABULARY, tiny.LABELS),
        tiny.all_of(answered()),
    )


def test_cached_states_give_what_a_pass_gives():
    objective, model = at_work(Distillation(("RUN",)))
    data = answered()
    cached = CachedFeatures(data, model, tiny.FP32, batch=4, layers=(-1,))

    found, expected = (lost(objective, model, tiny.all_of(each)) for each in (cached, data))

    assert_close(found, expected)


# --- perturbed copies --------------------------------------------------------------------------


def prepared(perturb, **options):
    objective, model = at_work(Consistency(perturb, rate=0.4, **options))
    objective.on_data(texts())
    return objective, model, objective.prepare(tiny.all_of(texts()), NOISE)


@pytest.mark.parametrize("symmetric", [False, True])
def test_words_agree_with_themselves_where_nothing_is_perturbed(symmetric):
    objective, model, view = prepared("none", symmetric=symmetric)

    assert lost(objective, model, view) == 0
    assert objective.counts(view) == {"loss": sum(map(len, texts().read_at))}


@pytest.mark.parametrize("perturb", PERTURBATIONS)
def test_consistency_keeps_the_contract_of_an_objective(perturb):
    data = texts()
    # In a short one nothing may be perturbed.
    long = np.flatnonzero(data.lengths > 5)

    check_objective(
        alone(Consistency, perturb=perturb, rate=0.6, symmetric=True),
        TaskInfo(tiny.VOCABULARY, tiny.LABELS),
        data.batch(long),
    )


def test_a_word_that_the_copy_lacks_is_left_out_of_sum_and_count():
    objective, model, view = prepared("delete")
    plain = tiny.all_of(texts())
    both_BT = (plain["word"] != IGNORE) & view["mask_copy"]
    copy = {**plain, "tokens": view["tokens_copy"], "mask": view["mask_copy"]}
    first_NC, second_NC = (
        objective.main.outputs(model, each, Encoding(model, each))[both_BT].log_softmax(1)
        for each in (plain, copy)
    )

    found = lost(objective, model, view)

    assert 0 < both_BT.sum() < (plain["word"] != IGNORE).sum()
    assert objective.counts(view) == {"loss": int(both_BT.sum())}
    assert_close(found, (first_NC.exp() * (first_NC - second_NC)).sum())


def test_a_word_of_which_the_model_is_not_sure_counts_as_0():
    objective, model, view = prepared("mask")
    scores_NC = objective.main.scores(model, view, Encoding(model, view)).detach()
    sure_N = scores_NC.softmax(1).amax(1)
    border = float(sure_N.median())
    strict, _, _ = prepared("mask", confidence=border)
    rows = {key: value.clone() for key, value in view.items()}
    rows["word"][view["word"] != IGNORE] = torch.where(sure_N > border, 0, IGNORE)

    found = lost(strict, model, view)

    assert found > 0.01
    assert_close(found, lost(objective, model, rows))
    assert strict.counts(view) == objective.counts(view)


@pytest.mark.parametrize("perturb", ["delete", "mask", "dropout"])
def test_texts_in_rows_with_others_are_compared_alike(perturb):
    objective, model, view = prepared(perturb, symmetric=True)
    expected = lost(objective, model, view)

    for laid_out in (with_facts(view), with_rows(view)):
        assert_close(lost(objective, model, laid_out), expected)


def test_where_every_word_is_left_out_the_mean_is_0():
    objective, _ = at_work(Consistency("none"))

    assert objective.compute_metrics({"loss": torch.tensor(0.0)}, {"loss": 0}, None) == {"loss": 0}


def test_a_word_counts_in_the_views_that_see_it():
    objective, model = at_work(CrossView())
    view = with_facts(objective.prepare(tiny.all_of(texts()), NOISE))
    is_read_BT = view["word"] != IGNORE
    seen = {"masked": view["mask"], "left": view["mask_left"], "right": view["mask_right"]}
    words = {name: int((is_read_BT & mask).sum()) for name, mask in seen.items()}
    part = {key: view[key] for key in ("tokens", "word")} | {"mask": view["mask_left"]}
    whole_NC = objective.main.scores(model, view, Encoding(model, view)).log_softmax(1)
    left = objective.beside_main["left"].scores(model, part, Encoding(model, part)).log_softmax(1)
    each_N = (whole_NC.exp() * (whole_NC - left)).sum(1)

    found = objective.loss_sums(model, view, Encoding(model, view))["left"]

    assert_close(found, each_N[view["mask_left"][is_read_BT]].sum())
    assert objective.counts(view) == words
    assert 0 < words["left"] < words["masked"]


@pytest.mark.parametrize("further", [Distillation(("RUN",)), Consistency()])
def test_a_stream_of_running_text_has_no_words_to_be_tagged(further):
    main = TokenTagging()
    main.setup(TaskInfo(tiny.VOCABULARY, tiny.LABELS, task=TaggingTask(tiny.LABELS)))

    with pytest.raises(ConfigError, match=r"losses.further.stream: TokenTagging answers parts"):
        tiny.bound(further, main)
