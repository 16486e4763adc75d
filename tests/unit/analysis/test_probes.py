"""Legend: N units, K layers, D width, C labels, S seeds."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests import subjects, tiny
from transfer_cli.analysis.probes import linear, mlp
from transfer_cli.analysis.probes.layer_probes import baselines, relabelled, scores
from transfer_cli.analysis.probes.linear import fit_probe, learn_shares
from transfer_cli.analysis.probes.sought import Sought, bag_of_words_accuracy, surface_task
from transfer_cli.analysis.probes.states import (
    LayersRead,
    Probed,
    SoughtSplit,
    read_parts,
    read_states,
    standardise,
)
from transfer_cli.batch import IGNORE
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split
from transfer_cli.errors import DataError
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.classification import ClassificationTask

ALL = LayersRead((0, 1, 2, 3), "mean", 1000)


def noise(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def labelled(units=300, width=8, seed=0, rule=0):
    """Return states whose label is told by a linear rule, with much noise."""
    states = noise(units, width, seed=seed)
    told = states @ noise(width, 3, seed=100 + rule) + 2 * noise(units, 3, seed=seed + 1)
    return Probed(states, told.argmax(1))


def accuracy(probe, given):
    return float((probe.log_probs(given.states).argmax(1) == given.label).double().mean())


# --- linear probes -----------------------------------------------------------------------------


def test_of_states_that_tell_kinds_apart_a_probe_gives_the_share_of_each_label():
    kind = torch.arange(4).repeat_interleave(10)
    label = torch.tensor([0] * 7 + [1] * 3 + [1] * 9 + [2] + [2] * 5 + [0] * 5 + [0, 1] * 5)
    given = Probed(torch.eye(4)[kind], label)

    probe = fit_probe(given, given, 3, (1e-5,))

    counts = torch.zeros(4, 3, dtype=torch.float64)
    counts.index_put_((kind, label), torch.ones(40, dtype=torch.float64), accumulate=True)
    assert_close(probe.log_probs(torch.eye(4)).exp(), counts / 10, atol=2e-3, rtol=0)


def test_a_probe_is_where_the_penalised_loss_has_no_slope():
    given = labelled()

    probe = fit_probe(given, labelled(seed=5), 3, (3.0,))

    weight, bias = probe.weight.T.clone().requires_grad_(), probe.bias.clone().requires_grad_()
    loss = F.cross_entropy(given.states.double() @ weight + bias, given.label)
    (loss + 3.0 / len(given.label) / 2 * weight.square().sum()).backward()
    assert weight.grad.abs().max() <= linear.TOLERANCE
    assert bias.grad.abs().max() <= linear.TOLERANCE
    assert probe.gradient <= linear.TOLERANCE


@pytest.mark.parametrize("strength", [1e2, 1.0, 1e-2, 1e-4, 1e-6])
def test_a_probe_of_separable_labels_is_at_its_minimum_however_weak_the_penalty(strength):
    states = noise(60, 3) * torch.tensor([0.3, 1.0, 4.0])
    label = (states @ noise(3, 3, seed=9)).argmax(1)

    probe = fit_probe(Probed(states, label), Probed(states, label), 3, (strength,))

    weight, bias = tiny.newton(states, label, strength / 60)
    assert_close(probe.log_probs(states), (states.double() @ weight + bias).log_softmax(1),
                 atol=1e-7, rtol=5e-3)  # fmt: skip


def test_the_strength_is_the_one_with_the_lowest_loss_on_others():
    given, other = labelled(60, 20), labelled(200, 20, seed=5)

    fits = [fit_probe(given, other, 3, (strength,)) for strength in linear.STRENGTHS]
    losses = {probe.strength: probe.selection_loss for probe in fits}

    chosen = fit_probe(given, other, 3, linear.STRENGTHS)
    assert 1e-4 < chosen.strength < 1e3
    assert chosen.strength == min(losses, key=losses.get)
    assert chosen.selection_loss == pytest.approx(min(losses.values()), abs=1e-4)


def test_a_label_that_training_lacks_is_never_said():
    given = labelled()

    probe = fit_probe(given, given, 5, linear.STRENGTHS)

    assert probe.log_probs(given.states).argmax(1).max() == 2
    assert probe.log_probs(given.states).isfinite().all()


def test_scores_are_those_of_the_labels_that_occur():
    label, said = torch.tensor([0, 0, 0, 1, 1, 3]), torch.tensor([0, 0, 1, 1, 1, 0])

    measures = scores(said, label, 5)

    assert measures["accuracy"] == pytest.approx(4 / 6)
    assert measures["macro_f1"] == pytest.approx((4 / 6 + 4 / 5 + 0) / 3)


# --- the mix, and probes with a hidden layer ---------------------------------------------------


@pytest.mark.slow
def test_a_mix_is_learnt_from_the_layer_that_knows():
    given = labelled(600)
    layers = torch.stack([noise(600, 8, seed=7), given.states, noise(600, 8, seed=8)], 1)
    train, other = Probed(layers[:400], given.label[:400]), Probed(layers[400:], given.label[400:])

    shares = learn_shares(train, other, 3, seed=0)

    assert_close(shares.sum(), torch.tensor(1.0))
    assert shares[1] > 0.6
    assert torch.equal(shares, learn_shares(train, other, 3, seed=0))


def corners(units, seed):
    """Return points of a plane whose label is whether their signs differ, and pure noise."""
    states = noise(units, 2, 2, seed=seed)
    return Probed(states, (states[:, 0].prod(1) < 0).long())


def test_a_hidden_layer_finds_what_no_linear_probe_can():
    train, other = corners(400, 0), corners(200, 1)

    predicted_SKN = mlp.fit_probes(train, other, 2, [0, 1]).predicted(other.states)

    right_SK = (predicted_SKN == other.label).double().mean(-1)
    assert (right_SK[:, 0] > 0.9).all()
    assert (right_SK[:, 1] < 0.65).all()
    straight = fit_probe(Probed(train.states[:, 0], train.label),
                      Probed(other.states[:, 0], other.label), 2, linear.STRENGTHS)  # fmt: skip
    assert accuracy(straight, Probed(other.states[:, 0], other.label)) < 0.65


def test_a_probe_of_one_seed_and_layer_is_the_same_beside_others():
    train, other = corners(100, 0), corners(60, 1)

    both = mlp.fit_probes(train, other, 2, [3, 4])

    alone = mlp.fit_probes(train, other, 2, [4])
    assert_close(both.first[1], alone.first[0], atol=1e-4, rtol=0)
    assert not torch.equal(both.first[0], both.first[1])


# --- the online code ---------------------------------------------------------------------------


FIRST_PORTION = 6 * math.log2(6)


@pytest.mark.parametrize(
    ("coder", "wanted"),
    [
        (lambda states: torch.full((len(states), 6), -math.log(6)), 2585.0),
        (lambda states: states.log(), FIRST_PORTION),
    ],
    ids=["uniform", "perfect"],
)
def test_a_uniform_coder_compresses_nothing_and_a_perfect_one_pays_once(coder, wanted):
    label = torch.arange(1000) % 6

    bits = linear.codelength(Probed(F.one_hot(label, 6).float(), label), 6, lambda known: coder)

    assert bits == pytest.approx(wanted, abs=0.05)


def test_a_probe_of_states_that_tell_labels_is_nearly_a_perfect_coder():
    label = torch.arange(1000) % 6
    given = Probed(8 * F.one_hot(label, 6).float(), label)

    bits = linear.codelength(
        given, 6, lambda known: fit_probe(known, given, 6, (1e-4,), bias_penalty=1.0).log_probs
    )

    assert FIRST_PORTION < bits < FIRST_PORTION + 1


def test_portions_double_and_the_first_has_a_unit_for_each_label():
    assert linear.portion_ends(1000, 2) == [2, 4, 8, 16, 32, 63, 125, 250, 500, 1000]
    assert linear.portion_ends(10, 20) == [10]


# --- controls ----------------------------------------------------------------------------------

WORDS = [f"w{number}" for number in range(400)]


def words(numbers, label):
    return Probed(torch.zeros(len(numbers), 1, 1), torch.tensor(label), [WORDS[n] for n in numbers])


def test_a_word_type_has_the_same_label_in_every_split():
    train = words(range(400), [0] * 300 + [1] * 100)
    scored = words([5, 7, 5, 399], [0, 1, 1, 0])

    relabelled_parts = relabelled({"train": train, "scored": scored}, "types", 2, seed=0)

    of_type = dict(zip(WORDS, relabelled_parts["train"].label.tolist(), strict=True))
    assert relabelled_parts["scored"].label.tolist() == [of_type[word] for word in scored.words]
    # As often as in training, which has three quarters of label 0.
    assert relabelled_parts["train"].label.double().mean() == pytest.approx(0.25, abs=0.07)
    assert relabelled({"train": train}, "types", 2, seed=1)["train"].label.tolist() != (
        relabelled_parts["train"].label.tolist()
    )


def test_shuffled_labels_are_as_many_of_each():
    train = words(range(400), [0] * 300 + [1] * 100)

    (label,) = (part.label for part in relabelled({"train": train}, "shuffled", 2, 0).values())

    assert torch.bincount(label).tolist() == [300, 100]
    assert not torch.equal(label, train.label)


def test_baselines_know_the_commonest_label_of_all_and_of_each_word():
    train = words([0, 0, 0, 1, 1, 2], [1, 1, 0, 2, 2, 1])
    scored = words([0, 1, 2, 9], [1, 2, 0, 1])

    assert baselines({"train": train, "scored": scored}, 3, None) == {
        "majority": 0.5, "word": 0.75,
    }  # fmt: skip
    texts = {
        "train": Probed(train.states, train.label),
        "scored": Probed(scored.states, scored.label),
    }
    assert baselines(texts, 3, 0.9) == {"majority": 0.5, "words": 0.9}


# --- states ------------------------------------------------------------------------------------


@pytest.fixture
def subject():
    data = tiny.Questions(causal=False, examples=30)
    objective = Classification()
    model = tiny.model(objective, direction="bidirectional")
    tiny.lively(model)
    return subjects.subject(model, objective, data)


def sought(subject, words=None):
    return SoughtSplit(Split("train", subject.split.data), subject.split.data.labels, words)


def test_states_of_texts_are_those_of_each_layer_in_the_order_of_the_texts(subject):
    probed = read_states(subject, subject.model, sought(subject), ALL)

    data = subject.split.data
    batch = data.batch(np.array([7]))
    states = Encoding(subject.model, batch).states
    assert probed.states.shape == (30, 4, 16)
    assert probed.label.tolist() == data.labels
    assert_close(probed.states[7], torch.stack([state[0].mean(0) for state in states]))


class Words(tiny.Questions):
    """Each third token is read as a word."""

    def batch(self, indices):
        batch = super().batch(indices)
        starts = np.cumsum([0, *(len(row) // 3 for row in self.rows)])
        word = torch.full_like(batch["tokens"], IGNORE)
        for row, at in enumerate(indices):
            count = len(self.rows[at]) // 3
            word[row, 2 : 3 * count : 3] = torch.arange(count) + starts[at]
        return {**batch, "word": word}


def test_states_of_words_are_those_where_they_are_read():
    data = Words(causal=False, examples=20)
    objective = Classification()
    model = tiny.model(objective, direction="bidirectional")
    shown = subjects.subject(model, objective, data)
    tokens = [token for row in data.rows for token in row[2::3]]
    split = SoughtSplit(shown.split, [token % 3 for token in tokens], [f"w{t}" for t in tokens])

    probed = read_states(shown, model, split, ALL)

    assert probed.words == [f"w{token}" for token in tokens]
    assert probed.label.tolist() == [token % 3 for token in tokens]
    states = Encoding(shown.model, data.batch(np.array([4]))).states
    first = sum(len(row) // 3 for row in data.rows[:4])
    assert_close(probed.states[first, 2], states[2][0, 2])


def test_of_many_units_some_are_taken_from_all_over_the_split(subject):
    split = sought(subject)

    probed = read_states(subject, subject.model, split, LayersRead((0,), "mean", 10))

    rows = np.linspace(0, 29, 10).astype(int)
    assert probed.label.tolist() == [split.labels[row] for row in rows]


class CountsTexts(ClassificationTask):
    """Says of its model on words what it was given."""

    def right_by_words(self, train, scored):
        self.fitted["given"] = [train, scored]
        return len(train)


def test_the_model_on_words_learns_from_the_texts_that_probes_learn_from(subject):
    encoded = SimpleNamespace(examples=[Example(str(row), 0) for row in range(30)])
    split = sought(subject)
    split = replace(split, split=replace(split.split, without_states=encoded))
    splits = {"train": split, "scored": split}
    task = CountsTexts(tiny.LABELS)
    parts = read_parts(subject, subject.model, splits, LayersRead((0,), "mean", 10))

    share = bag_of_words_accuracy(Sought(tiny.LABELS, splits), parts, task)

    train, scored = task.fitted["given"]
    assert [int(text.text) for text in scored] == np.linspace(0, 29, 10).astype(int).tolist()
    assert {text.text for text in train} < {text.text for text in scored}
    assert (len(train), share) == (9, 0.9)


def test_a_tenth_of_training_chooses_where_nothing_else_is_left(subject):
    splits = {"train": sought(subject), "scored": sought(subject)}

    parts = read_parts(subject, subject.model, splits, ALL)

    assert {name: len(part) for name, part in parts.items()} == {
        "train": 27, "scored": 30, "chosen_on": 3,
    }  # fmt: skip
    assert_close(parts["train"].states.mean(0), torch.zeros(4, 16), atol=1e-5, rtol=0)


def test_a_dimension_that_never_varies_says_nothing():
    states = 3 * noise(50, 2, 4) + 1
    states[:, 1, 2] = 1234.567
    parts = {
        "train": Probed(states, torch.zeros(50)),
        "scored": Probed(states + 1, torch.zeros(50)),
    }

    standardise(parts)

    spread = parts["train"].states.std(0, correction=0)
    assert spread[1, 2] == 0
    assert (parts["scored"].states[:, 1, 2] == 0).all()
    assert_close(spread[0], torch.ones(4))


LONGER = [" ".join(["word"] * length) for length in range(1, 61)]


def test_lengths_are_in_six_bins_with_as_many_training_texts():
    data = surface_task("length", {"train": LONGER, "scored": ["word " * 11, "word " * 500, ""]})

    labels = [example.label for example in data.splits["train"]]
    assert [labels.count(number) for number in range(6)] == [10] * 6
    assert data.task.labels[0] == "0 to 10"
    assert [example.label for example in data.splits["scored"]] == [1, 5, 0]


def test_bins_that_would_be_the_same_are_one():
    data = surface_task("length", {"train": ["a b"] * 50 + ["a b c d"] * 10})

    assert data.task.labels == ("0 to 3", "4 or more")


def test_content_asks_for_the_one_word_of_medium_frequency():
    train = [f"the {word} of number {number}" for number in range(40) for word in ("Lake", "hill")]
    rare = [f"the w{number} , indeed" for number in range(30) for _ in range(3)]
    asked = ["w1 !", "w1 w10", "none", "W10 is w10"]

    data = surface_task("content", {"train": [*train, *rare], "scored": asked})

    assert len(data.task.labels) == 20
    assert not {"the", "of", "lake", "indeed"} & set(data.task.labels)
    assert [(text.text, data.task.labels[text.label]) for text in data.splits["scored"]] == [
        ("w1 !", "w1"), ("W10 is w10", "w10"),
    ]  # fmt: skip


def test_positions_are_counted_in_words():
    data = surface_task("position", {"train": ["a b c d e f"] * 5, "scored": ["x, y", "  "]})

    (only,) = data.splits["scored"]
    assert only.words == ["x,", "y"]
    assert [data.task.labels[number] for number in only.label] == ["0 to 0", "1 to 1"]


@pytest.mark.parametrize(
    ("kind", "text"), [("length", "all alike"), ("content", "once"), ("position", "word")]
)
def test_texts_of_which_nothing_can_be_asked_are_refused(kind, text):
    with pytest.raises(DataError, match=r"analysis\.probes\.task: nothing can be asked of these"):
        surface_task(kind, {"train": [text] * 30})
