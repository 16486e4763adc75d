"""Losses of what the main head says: its units, perturbed copies, consistency, distillation."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import IGNORE, with_facts, with_packed_rows
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import CrossView
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.objectives.of_main_head import Distillation
from transfer_cli.objectives.perturbations import PERTURBATIONS, Delete, Mask, TfIdf, Unigram
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.multilabel import Multilabel
from transfer_cli.tasks.regression import Regression
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.task import EncodedWords, TaggingTask
from transfer_cli.testing.objectives import check_objective

KEY = "teacher_further"
NOISE = ExampleNoise(0, "train", 3)
DATA = tiny.Questions(examples=40)


def texts():
    """Return texts without tags, in which a word is read at each second token."""
    rows = tiny.Questions(examples=6).rows
    read_at = [range(0, len(row) - 1, 2) for row in rows]
    return EncodedWords(rows, rows, tiny.VOCABULARY.pad, read_at, None)


def answered(seed=0):
    """Return texts with what a teacher says of each word."""
    data = texts()
    words = sum(map(len, data.read_at))
    draw = np.random.default_rng(seed)
    data.add_answers(KEY, draw.dirichlet(np.ones(3), words).astype(np.float32))
    return data


def at_work(objective, main=None):
    """Return an objective and a lively model, whose main loss are tags."""
    model = tiny.model(main or TokenTagging(dropout=0), objective).eval()
    tiny.lively(model)
    return objective, model


def lost(objective, model, view):
    return objective.loss_sums(model, view, Encoding(model, view))["loss"]


def check_contract(objective, main, data, batch, **options):
    """Check one with a head, which the contract asks for: a further loss has the main one's."""
    main = tiny.bound(main)

    class Alone(objective):
        def setup(self, info):
            super().setup(TaskInfo(info.vocabulary, info.labels, "further", main=main))
            self.on_data(data)

        def modules(self, backbone):
            return main.modules(backbone)

    check_objective(Alone(**options), TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch)


# --- teachers ----------------------------------------------------------------------------------


def test_words_of_which_the_teacher_is_not_sure_are_left_out():
    objective, model = at_work(Distillation(("RUN",), hard=True, confidence=0.6))
    view = tiny.all_of(answered())
    shares_NC = objective.main.unit_values(view[KEY], view)
    sure_N = shares_NC.amax(1) > 0.6
    scores_NC = objective.main.scores(model, view, Encoding(model, view)).log_softmax(1)

    loss = lost(objective, model, view)

    said_N = -scores_NC.gather(1, shares_NC.argmax(1, keepdim=True)).squeeze(1)
    assert 0 < sure_N.sum() < len(sure_N)
    assert_close(loss, said_N[sure_N].sum())
    assert objective.counts(view) == {"loss": int(sure_N.sum())}


@pytest.mark.parametrize(
    ("main", "teacher", "student", "loss"),
    [
        (Regression(standardise=False), [[3.0], [5.0]], [[2.0], [5.0]], 1.0),
        (Multilabel(), [[0.99, 0.98, 0.01], [0.01, 0.02, 0.01]], [[30, 30, -30], [-30] * 3], 0.0),
    ],
    ids=["numbers", "labels"],
)
def test_numbers_and_decisions_are_learnt_as_the_teacher_says_them(main, teacher, student, loss):
    main = tiny.bound(main)
    main.scores = lambda *_: torch.tensor(student, dtype=torch.float32)

    for hard in (True, main.has_temperature):  # numbers also at the usual temperature, 2
        objective = tiny.bound(Distillation(("RUN",), hard=hard), main)
        sums = objective.loss_sums(None, {KEY: torch.tensor(teacher)}, None)
        assert_close(sums["loss"], torch.tensor(loss), atol=1e-4, rtol=0)


def test_distillation_keeps_the_contract_of_an_objective():
    words, batch = tiny.all_of(answered()), tiny.Questions(examples=5).batch(np.arange(5))
    batch[KEY] = torch.rand(5, 3).softmax(1)

    check_contract(Distillation, TokenTagging(dropout=0), texts(), words,
                   teachers=("RUN",), confidence=0.5)  # fmt: skip
    check_contract(Distillation, Classification(dropout=0), DATA, batch, teachers=("RUN",))


def test_cached_states_give_what_a_pass_gives():
    objective, model = at_work(Distillation(("RUN",)))
    data = answered()
    cached = CachedFeatures(data, model, tiny.FP32, batch=4, layers=(-1,))

    loss, expected = (lost(objective, model, tiny.all_of(source)) for source in (cached, data))

    assert_close(loss, expected)


# --- perturbed copies --------------------------------------------------------------------------


def prepared(perturb, main=None, data=None, **options):
    """Return an objective, a lively model, and a prepared batch; by default of words."""
    objective, model = at_work(Consistency(perturb, **{"rate": 0.4, **options}), main)
    data = data or texts()
    objective.on_data(data)
    return objective, model, objective.prepare(data.batch(np.arange(6)), NOISE)


@pytest.mark.parametrize("perturb", PERTURBATIONS)
@pytest.mark.parametrize(
    ("main", "data"),
    [(TokenTagging, texts()), (Classification, DATA), (MultipleChoice, tiny.groups())],
    ids=["words", "texts", "choices"],
)
def test_consistency_keeps_the_contract_of_an_objective(main, data, perturb):
    # In a short one nothing may be perturbed.
    rows = np.flatnonzero(data.lengths > 5) if main is TokenTagging else np.arange(5)

    check_contract(Consistency, main(dropout=0), data, data.batch(rows),
                   perturb=perturb, rate=0.6, symmetric=True)  # fmt: skip


def test_a_paraphrase_takes_the_place_of_the_perturbed_copy():
    objective, model = at_work(Consistency("mask", rate=0.9, paraphrases="x"), Classification())
    others = tiny.Questions(examples=3, seed=7)
    objective.encoded = others
    view = DATA.batch(np.arange(4))
    # The first has all three paraphrases, the second the last one, the others none.
    places = torch.tensor([[0, 3], [2, 1], [0, 0], [0, 0]])
    rows = tiny.all_of(others)
    seen = set()

    for step in range(30):
        noise = ExampleNoise(0, "train", step)
        made = objective.prepare({**view, objective.key: places}, noise)
        lost(objective, model, with_facts(made))
        copies = [tokens[mask].tolist() for tokens, mask in
                  zip(made["tokens_copy"], made["mask_copy"], strict=True)]  # fmt: skip
        known = [tokens[mask].tolist() for tokens, mask in
                 zip(rows["tokens"], rows["mask"], strict=True)]  # fmt: skip
        seen.add(known.index(copies[0]))
        assert copies[1] == known[2]
        perturbed = objective.prepare(view, noise)
        for number in (2, 3):
            kept = perturbed["mask_copy"][number]
            assert copies[number] == perturbed["tokens_copy"][number][kept].tolist()
    assert seen == {0, 1, 2}


def test_a_word_that_the_copy_lacks_is_left_out_of_sum_and_count():
    objective, model, view = prepared("delete")
    plain = tiny.all_of(texts())
    both_BT = (plain["word"] != IGNORE) & view["mask_copy"]
    copy = {**plain, "tokens": view["tokens_copy"], "mask": view["mask_copy"]}
    first_NC, second_NC = (
        objective.main.outputs(model, batch, Encoding(model, batch))[both_BT].log_softmax(1)
        for batch in (plain, copy)
    )

    loss = lost(objective, model, view)

    assert 0 < both_BT.sum() < (plain["word"] != IGNORE).sum()
    assert objective.counts(view) == {"loss": int(both_BT.sum())}
    assert_close(loss, (first_NC.exp() * (first_NC - second_NC)).sum())


@pytest.mark.parametrize("perturb", ["delete", "mask", "dropout"])
def test_texts_in_rows_with_others_are_compared_alike(perturb):
    objective, model, view = prepared(perturb, symmetric=True)
    expected = lost(objective, model, view)

    for laid_out in (with_facts(view), with_packed_rows(view)):
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
    left = objective.objectives["left"].scores(model, part, Encoding(model, part)).log_softmax(1)
    each_N = (whole_NC.exp() * (whole_NC - left)).sum(1)

    loss = objective.loss_sums(model, view, Encoding(model, view))["left"]

    assert_close(loss, each_N[view["mask_left"][is_read_BT]].sum())
    assert objective.counts(view) == words
    assert 0 < words["left"] < words["masked"]


@pytest.mark.parametrize("further", [Distillation(("RUN",)), Consistency()])
def test_a_stream_of_running_text_has_no_words_to_be_tagged(further):
    main = TokenTagging()
    main.setup(TaskInfo(tiny.VOCABULARY, tiny.LABELS, task=TaggingTask(tiny.LABELS)))

    with pytest.raises(ConfigError, match=r"losses.further.stream: TokenTagging answers parts"):
        tiny.bound(further, main)


SPECIAL = torch.arange(5)


class Texts:
    """Two hundred texts of twenty words: 5 is in all, 6 in half, others are rare."""

    def __len__(self):
        return 200

    def batch(self, indices):
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(7, 40, (200, 20), generator=generator)
        words[:, ::4] = 5
        words[::2, 1] = 6
        tokens = torch.full((200, 24), tiny.VOCABULARY.pad)
        tokens[:, 0], tokens[:, 21], tokens[:, 1:21] = 2, 3, words
        rows = torch.from_numpy(np.asarray(indices))
        return {"tokens": tokens[rows], "mask": (torch.arange(24) < 22).expand(len(rows), -1),
                "index": rows}  # fmt: skip


BATCH = Texts().batch(np.arange(200))
WORDS = BATCH["mask"] & (BATCH["tokens"] > 4)


def learnt(kind, rate, texts=None):
    """Return a perturbation that has seen texts."""
    perturbation = kind(rate)
    perturbation.setup(TaskInfo(tiny.VOCABULARY))
    perturbation.on_data(texts or Texts())
    return perturbation


def changed(name, rate=0.3, step=0):
    return learnt(PERTURBATIONS[name], rate)(BATCH, ExampleNoise(0, "train", step))


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_special_tokens_and_padding_stay_and_each_step_changes_others(name):
    before = {key: value.clone() for key, value in BATCH.items()}

    tokens, mask = changed(name)

    assert torch.equal(tokens[~WORDS], BATCH["tokens"][~WORDS])
    assert torch.equal(mask[~WORDS], BATCH["mask"][~WORDS])
    assert not torch.isin(tokens[WORDS & (tokens != 4)], SPECIAL).any()
    again, other = changed(name), changed(name, step=1)
    assert torch.equal(again[0], tokens)
    assert torch.equal(again[1], mask)
    assert not (torch.equal(other[0], tokens) and torch.equal(other[1], mask))
    assert all(torch.equal(value, before[key]) for key, value in BATCH.items())


def test_a_share_of_the_words_is_masked():
    tokens, mask = changed("mask")

    share = (tokens == tiny.VOCABULARY.mask)[WORDS].float().mean()
    assert float(share) == pytest.approx(0.3, abs=0.02)
    assert torch.equal(mask, BATCH["mask"])
    assert torch.equal(tokens[tokens != 4], BATCH["tokens"][tokens != 4])


@pytest.mark.parametrize(
    "shape",
    [{}, {"attention": "window", "window": 3}, {"attention": "fixed"}, {"position_kind": "bias"}],
    ids=str,
)
def test_deleted_words_are_as_if_they_had_never_been_there(shape):
    tokens, mask = changed("delete")
    model = tiny.lively(tiny.model(**shape).eval())
    rows = [row[kept].tolist() for row, kept in zip(tokens[:8], mask[:8], strict=True)]
    alone = with_facts(tiny.rows_to_batch(rows))

    left = Encoding(model, with_facts({"tokens": tokens[:8], "mask": mask[:8]})).top[mask[:8]]

    assert 12 < len(rows[3]) < 20
    assert_close(left, Encoding(model, alone).top[alone["mask"]])


def test_words_become_others_as_often_as_these_occur():
    tokens, _ = changed("unigram", rate=0.5)

    new = tokens[WORDS & (tokens != BATCH["tokens"])]
    seen = torch.bincount(BATCH["tokens"][WORDS], minlength=48).float()
    share = seen[6] / (seen.sum() - seen[5])
    of_others = (new == 6).sum() / (new != 5).sum()
    assert not (seen[new] == 0).any()
    assert float(of_others) == pytest.approx(float(share), abs=0.01)


def test_words_that_tell_texts_apart_stay():
    tokens, _ = changed("tfidf", rate=0.3)
    differs = tokens != BATCH["tokens"]

    rates = {word: float(differs[WORDS & (BATCH["tokens"] == word)].float().mean())
             for word in (5, 6)}  # fmt: skip
    others = float(differs[WORDS & (BATCH["tokens"] > 6)].float().mean())
    # 5 is in every text, and says nothing of any; it is not drawn to replace itself alone.
    assert rates[5] > 0.45
    assert rates[6] > others + 0.1
    assert others < 0.25


@pytest.mark.parametrize("kind", [Unigram, TfIdf])
def test_texts_without_words_are_no_error(kind):
    class Empty(Texts):
        def batch(self, indices):
            view = super().batch(indices)
            return {**view, "tokens": torch.full_like(view["tokens"], 2)}

    batch = Empty().batch(np.arange(3))

    tokens, mask = learnt(kind, 0.5, Empty())(batch, NOISE)

    assert torch.equal(tokens, batch["tokens"])
    assert torch.equal(mask, batch["mask"])


def test_words_that_all_say_equally_much_become_others_of_the_texts():
    class Alike(Texts):
        def batch(self, indices):
            view = super().batch(indices)
            view["tokens"][:, 1:21] = torch.arange(5, 25)
            return view

    tokens, _ = learnt(TfIdf, 0.5, Alike())(BATCH, NOISE)

    new = tokens[tokens != BATCH["tokens"]]
    assert len(new) > 1000
    assert 5 <= int(new.min()) <= int(new.max()) < 25


@pytest.mark.parametrize("kind", [Mask, Delete, TfIdf])
def test_choices_of_an_example_are_perturbed_each(kind):
    batch = {"tokens": BATCH["tokens"].view(50, 4, 24), "mask": BATCH["mask"].view(50, 4, 24),
             "index": torch.arange(50)}  # fmt: skip

    tokens, mask = learnt(kind, 0.3)(batch, NOISE)

    assert tokens.shape == mask.shape == (50, 4, 24)
    differs = (tokens != batch["tokens"]) | (mask != batch["mask"])
    assert (differs.any(-1).sum(1) > 1).float().mean() > 0.9


def consistent(perturb="mask", **options):
    return prepared(perturb, Classification(dropout=0), DATA, **options)


def test_in_training_dropout_alone_makes_a_difference():
    objective, model, view = consistent("dropout")
    model = tiny.model(Classification(), dropout=0.3).train()
    tiny.lively(model)

    assert lost(objective, model, view) > 0


def pair_of(objective, model, view):
    """Return what the main head says of the texts, and of their copies."""
    copy = {"tokens": view["tokens_copy"], "mask": view["mask_copy"]}
    main = objective.main
    return (main.scores(model, batch, Encoding(model, batch)) for batch in (view, copy))


def test_it_is_the_divergence_of_the_copy_from_the_sharpened_text_without_its_gradient():
    objective, model, view = consistent(rate=0.5, temperature=0.4)
    first, second = pair_of(objective, model, view)
    target = (first / 0.4).softmax(1).detach()
    wanted = (target * (target.log() - second.log_softmax(1))).sum()

    loss = lost(objective, model, view)

    assert loss > 0.01
    assert_close(loss, wanted)
    ours, theirs = (torch.autograd.grad(total, model.heads["class"].linear.weight)[0]
                    for total in (loss, wanted))  # fmt: skip
    assert_close(ours, theirs)


def test_both_ways_with_gradients_through_both():
    objective, model, view = consistent(rate=0.5, symmetric=True)
    first, second = (scores.log_softmax(1) for scores in pair_of(objective, model, view))
    there = (first.exp() * (first - second)).sum()
    back = (second.exp() * (second - first)).sum()

    loss = lost(objective, model, view)

    assert_close(loss, (there + back) / 2)
    weight = model.heads["class"].linear.weight
    assert_close(*(torch.autograd.grad(total, weight)[0] for total in (loss, (there + back) / 2)))


def test_masking_needs_a_mask_token():
    info = TaskInfo(tiny.Vocabulary(has_mask=False), tiny.LABELS, "rest", main=Classification())

    with pytest.raises(ConfigError, match=r"losses.rest.perturb: this tokenizer has no mask token"):
        Consistency().setup(info)
    Consistency("delete").setup(info)


class Said(Classification):
    """A main objective whose scores are given."""

    def __init__(self, scores):
        super().__init__()
        self.given = torch.tensor(scores)

    def scores(self, model, batch, encoded):
        return self.given


def made(main, **options):
    objective = Distillation(("RUN",), **options)
    return tiny.bound(objective, main)


def from_answers(objective, answers):
    batch = {"tokens": torch.zeros(len(answers), 1), KEY: torch.tensor(answers)}
    return objective.loss_sums(None, batch, None)["loss"], objective.counts(batch)["loss"]


def test_the_example_of_the_paper_by_hand():
    teacher = torch.tensor([[2.0, 0.0]]).softmax(1).tolist()

    loss, count = from_answers(made(Said([[0.0, 0.0]])), teacher)

    # Both are flattened by 2: (0.7311, 0.2689) and (0.5, 0.5), whose divergence is 0.1109.
    assert_close(loss, torch.tensor(0.4438), atol=1e-4, rtol=0)
    assert_close(loss / 4, torch.tensor(0.1109), atol=1e-4, rtol=0)
    assert count == 1


def test_the_first_choice_alone_is_its_cross_entropy_where_the_teacher_is_sure():
    scores = [[1.0, 2.0], [0.3, 0.1], [0.0, 0.0]]
    objective = made(Said(scores), hard=True, confidence=0.9, temperature=5.0)

    loss, count = from_answers(objective, [[0.05, 0.95], [0.92, 0.08], [0.6, 0.4]])
    none = from_answers(objective, [[0.6, 0.4]] * 3)

    wanted = -torch.tensor(scores).log_softmax(1)
    assert_close(loss, wanted[0, 1] + wanted[1, 0])
    assert count == 2
    assert none == (0, 0)


def test_choices_that_are_not_there_count_on_neither_side():
    main = tiny.bound(MultipleChoice())
    scores = torch.tensor([[1.0, 0.0, -math.inf], [0.0, 2.0, 1.0]], requires_grad=True)
    main.scores = lambda *_: scores
    answers = [[0.7, 0.3, 0.0, 0.0], [0.2, 0.5, 0.3, 0.0]]

    loss, _ = from_answers(made(main, temperature=1.0), answers)
    loss.backward()

    rows = [(answers[0][:2], scores[0, :2]), (answers[1][:3], scores[1, :3])]
    wanted = sum(
        (torch.tensor(p) * (torch.tensor(p).log() - q.log_softmax(0))).sum() for p, q in rows
    )
    assert_close(loss, wanted)
    assert scores.grad.isfinite().all()


def test_without_answers_it_says_where_they_come_from():
    objective = made(Said([[0.0, 0.0]]))

    with pytest.raises(RunError, match=r"losses.further: what the teachers say comes with a run's"):
        objective.counts({"tokens": torch.zeros(1, 1)})
