"""Any number of labels: tables, thresholds, answers, the loss of each label."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.data.columns import split_labels
from transfer_cli.data.label_names import label_separator
from transfer_cli.data.split import TextStats
from transfer_cli.errors import DataError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.tasks.multilabel import (
    LabelsExample,
    LabelsTable,
    Multilabel,
    MultilabelTask,
    best_f1_threshold,
)
from transfer_cli.tasks.table import Table

TASK = MultilabelTask(("a", "b", "c"))
FITTED = MultilabelTask(("a", "b", "c"), fitted={"thresholds": [0.9, 0.5, 0.1]})


@pytest.mark.parametrize(
    ("given", "said", "predicted", "score"),
    [
        ((0, 1), [0, -1], "a", 2 / 3),
        ((1,), [2, 1], "b|c", 2 / 3),
        ((), [2, -1], "c", 0),
        ((), [-1, -1], "", 1),
    ],
)
def test_the_score_of_an_example_is_the_f1_of_its_labels(given, said, predicted, score):
    encoded = type("Encoded", (), {"examples": [LabelsExample("text", given)]})()

    result = TASK.result(encoded, 0, {0: {"predicted": said, "probability": 0.5}})

    assert (result.predicted, result.score) == (predicted, pytest.approx(score))


@pytest.mark.parametrize("labels", [[], ["a"], ["a|b"], ["a", "a|b"], ["a", "a|b", "c"], ["c"]])
def test_the_labels_of_an_answer_are_found_though_they_hold_the_separator(labels):
    assert MultilabelTask(("a", "a|b", "c")).said_labels("|".join(labels)) == labels


@pytest.mark.parametrize(("shares", "labels"), [([1, 1, 0], ["a", "a|b"]), ([1, 0, 1], ["a", "c"])])
def test_the_labels_of_a_table_of_answers_are_read_as_they_were_though_they_hold_the_separator(
    shares, labels
):
    cell, *_ = MultilabelTask(("a", "a|b", "c")).cells({"probabilities": shares})

    assert split_labels(cell, "|") == labels


def test_fitted_thresholds_decide():
    assert FITTED.written({"probabilities": [0.8, 0.6, 0.2]})["labels"] == ["b", "c"]
    assert TASK.written({"probabilities": [0.8, 0.6, 0.2]})["labels"] == ["a", "b"]


def test_runs_answer_with_the_means_of_their_probabilities_and_thresholds():
    turned = MultilabelTask(("c", "b", "a"))
    answers = [(FITTED, {"probabilities": [0.8, 0.9, 0.1]}),
               (turned, {"probabilities": [0.7, 0.0, 0.9]})]  # fmt: skip

    answer = FITTED.combine(answers)

    assert answer["probabilities"] == pytest.approx([0.85, 0.45, 0.4])
    assert answer["thresholds"] == pytest.approx([0.7, 0.5, 0.3])
    assert FITTED.written(answer)["labels"] == ["a", "c"]


@pytest.mark.parametrize(
    ("shares", "given", "threshold"),
    [
        ([0.9, 0.7, 0.3, 0.1], [1, 1, 0, 0], 0.5),
        ([0.9, 0.2, 0.18, 0.1], [0, 1, 1, 0], 0.14),
        ([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0], 0.3),
        ([0.9, 0.5, 0.5 - 1e-7, 0.1], [1, 1, 0, 0], 0.3),  # equal but for rounding
        ([0.5, 0.5, 0.5], [1, 0, 0], 0.25),
        ([0.2, 0.1], [1, 1], 0.05),
        ([0.9, 0.8], [0, 0], 0.5),
        ([0.8, 0.6, 0.4, 0.2], [1, 0, 0, 1], 0.7),  # the lowest one has the same F1
    ],
)
def test_a_threshold_has_the_highest_f1(shares, given, threshold):
    best = best_f1_threshold(np.array(shares), np.array(given, dtype=bool))

    assert best == pytest.approx(threshold)


def test_no_threshold_is_better_than_the_one_that_is_fitted():
    generator = np.random.default_rng(0)
    for _ in range(200):
        shares = generator.integers(0, 8, 12) / 8
        given = generator.random(12) < 0.4
        given[0] = True

        def f1(threshold, shares=shares, given=given):
            said = shares > threshold
            return 2 * (said & given).sum() / (said.sum() + given.sum())

        best = f1(best_f1_threshold(shares, given))
        assert best >= max(f1(eighths / 8 - 1 / 16) for eighths in range(1, 9))


def test_thresholds_are_fitted_to_each_label_of_the_validation_examples():
    examples = [LabelsExample("x", (0,)), LabelsExample("y", ()), LabelsExample("z", (0, 1))]
    encoded = type("Encoded", (), {"examples": examples})()
    shares = [[0.3, 0.4, 0.9], [0.1, 0.6, 0.9], [0.4, 0.8, 0.9]]
    rows = {at: {at: {"probabilities": row}} for at, row in enumerate(shares)}

    assert TASK.fit(encoded, rows)["thresholds"] == pytest.approx([0.2, 0.7, 0.5])


# --- tables ------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path):
    """Return how to load a table of given lines."""

    def call(*lines, header="text,labels", name="a.csv", kind=LabelsTable, **options):
        (tmp_path / name).write_text("\n".join([*([header] if header else []), *lines]) + "\n")
        return kind(train=str(tmp_path / name), **options).load(tmp_path, 0)

    return call


SETS = ("a", "a|b", "", "b | c|b", "c|d")
ROWS = [f"this is text number {n},{SETS[n % 5]}" for n in range(200)]


def test_labels_are_parted_and_counted_once(load):
    data = load(*ROWS)

    assert data.labels == ("a", "b", "c", "d")
    labels = {example.label for split in data.splits.values() for example in split}
    assert labels == {(0,), (0, 1), (), (1, 2), (2, 3)}
    train = data.splits["train"]
    shares = [sum(at in example.label for example in train) / len(train) for at in range(4)]
    assert data.task["shares"] == shares


def test_lists_and_other_separators_are_read_the_same(load):
    lists = [json.dumps({"text": f"this is text number {n}", "labels": SETS[n % 5].split("|")})
             for n in range(200)]  # fmt: skip
    plain = load(*ROWS)

    from_lists = load(*lists, header=None, name="a.jsonl")
    from_semicolons = load(*(row.replace("|", ";") for row in ROWS), separator="semicolon")

    for other in (from_lists, from_semicolons):
        assert (other.labels, other.splits) == (plain.labels, plain.splits)


def test_a_split_has_its_share_of_the_rarest_labels(load):
    held_out = load(*ROWS, labelled=10).splits

    strata = [min(example.label, default=-1) for example in held_out["validation"]]
    assert sorted(strata) == [-1] * 4 + [0] * 8 + [1] * 4 + [2] * 4
    assert {label for example in held_out["train"] for label in example.label} == {0, 1, 2, 3}


@pytest.mark.parametrize("header", ["id,review,tags", "id,review,what"])
def test_the_column_of_labels_is_found(load, header):
    rows = (f"{n},a longer text no {n} of it,{SETS[n % 5]}" for n in range(100))

    data = load(*rows, header=header)

    assert data.labels == ("a", "b", "c", "d")
    assert data.splits["train"][0].text.startswith("a longer text")


@pytest.mark.parametrize("options", [{}, {"separator": "comma"}])
def test_a_cell_may_be_a_list_as_pandas_or_json_writes_it(load, options):
    lists = ["['a', 'b, c']", '["b, c"]', "[]", "['a']"]
    rows = [
        f'this is text number {n},"{lists[n % 4].replace(chr(34), chr(34) * 2)}"' for n in range(40)
    ]

    data = load(*rows, **options)

    assert data.labels == ("a", "b, c")
    assert Counter(row.label for row in chain(*data.splits.values())) == {
        (0, 1): 10, (1,): 10, (): 10, (0,): 10,
    }  # fmt: skip


def test_what_begins_as_a_list_and_is_none_is_a_label(load):
    data = load(*(f"this is text number {n},{'[x]|b' if n % 2 else '[y'}" for n in range(40)))

    assert {*data.labels} == {"[x]", "b", "[y"}


def test_one_label_a_row_is_for_another_task(load):
    with pytest.raises(DataError, match="each of its 100 rows has one label; data=table"):
        load(*(f"this is text number {n},{'ab'[n % 2]}" for n in range(100)))
    with pytest.raises(DataError, match=r"has one label; data\.separator=semicolon parts them"):
        load(*(row.replace("|", ";") for row in ROWS if not row.endswith(",")))
    with pytest.raises(DataError, match=r"data\.separator=comma parts them; if .*, data=table"):
        load(*(f'this is text number {n},"{("a, b", "b", "c,a")[n % 3]}"' for n in range(60)))


@pytest.mark.parametrize(
    ("labels", "said"), [(("a", "a"), "have the same labels, a;"), (("", ""), "labels, none;")]
)
def test_labels_that_are_all_equal_teach_nothing(load, labels, said):
    with pytest.raises(DataError, match=said):
        load(*map("text,{}".format, labels * 20))


def test_very_many_labels_are_refused(load):
    rows = (f"text {n},{n}x|{n}y|{n}z" for n in range(4000))

    with pytest.raises(DataError, match=r"line 3335: more than 10,000 different labels"):
        load(*rows, label="labels")


@pytest.mark.parametrize(
    ("labels", "mark"),
    [
        (["a", "b", "a|b", "b|c", "c"], "|"),
        (["a, b", "b, c", "a, c"], ","),
        ([";".join(pair) for pair in itertools.combinations("abcd", 2)], ";"),
        (["New York, NY", "Boston, MA", "Buffalo, NY"], None),
        (["ABBR:exp", "NUM:date"], None),
        (["a", "b", "a|b"], None),
        (["shop|shoes", "shop|hats", "home|beds", "home|lamps"], None),
    ],
)
def test_joined_labels_are_told_from_names_with_commas(labels, mark):
    assert label_separator(labels) == mark


def test_a_table_of_joined_labels_is_told_of_the_task_for_them(load, caplog):
    load(*ROWS[:2], *(row for row in ROWS if not row.endswith(",")), kind=Table)

    assert "data=labels objective=multilabel data.separator=pipe" in caplog.text


SHARED = MultilabelTask(("a", "b", "c"), shares=(0.5, 0.2, 0.001))
BATCH = {"labels": torch.tensor([[0, 1], [1, -1], [-1, -1]])}
GIVEN = torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 0]])
SAID = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 1]])


def bound(task=SHARED, **options):
    objective = Multilabel(pooling="mean", **options)
    objective.setup(TaskInfo(tiny.VOCABULARY, task.labels, task=task))
    return objective


def measured(logits, batch=BATCH, task=SHARED):
    objective = bound(task)
    totals = objective.tallies(logits, batch)
    counts = {"loss": logits.numel()}
    return objective.compute_metrics(totals, counts, TextStats())


def test_measures_of_random_answers_are_those_of_their_definition():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        given, said = torch.rand(2, 6, 4, generator=generator) < 0.4
        numbers = [row.nonzero().flatten().tolist() for row in given]
        labels = torch.tensor([indices + [-1] * (4 - len(indices)) for indices in numbers])
        task = MultilabelTask(tuple("abcd"))
        measures = measured(said * 2.0 - 1, {"labels": labels}, task)

        both, either = (given & said).sum(0).tolist(), (given.int() + said.int()).sum(0).tolist()
        f1 = {
            f"macro_f1/{name}": 2 * one / other
            for name, one, other in zip(task.labels, both, either, strict=True)
            if other
        }
        micro = 2 * sum(both) / sum(either) if sum(either) else 1.0
        assert measures["micro_f1"] == pytest.approx(micro)
        assert measures["macro_f1"] == pytest.approx(sum(f1.values()) / len(f1) if f1 else 1.0)
        assert {name: measures[name] for name in measures if "/" in name} == pytest.approx(f1)
        assert measures["exact_match"] == pytest.approx(
            (given == said).all(1).double().mean().item()
        )
        assert measures["hamming_loss"] == pytest.approx((given ^ said).double().mean().item())


def test_what_is_said_of_each_text_has_the_probability_of_all_its_decisions():
    objective = bound(thresholds="fit")
    logits = torch.tensor([[2.0, -1.0, 3.0], [-1.0, -2.0, -3.0], [0.5, 1.0, -1.0]])

    before = objective.results(logits, BATCH)
    objective.info = replace(objective.info, task=replace(SHARED, fitted={"thresholds": [0.5] * 3}))
    after = objective.results(logits, BATCH)

    assert after["predicted"].tolist() == [[2, 0], [-1, -1], [1, 0]]
    share = logits.sigmoid()
    expected = torch.where(share > 0.5, share, 1 - share).prod(1)
    assert torch.allclose(after["probability"], expected)
    assert torch.equal(before["probabilities"], share)
    assert "probabilities" not in after


def test_the_loss_is_the_cross_entropy_of_each_decision():
    logits = torch.tensor([[0.0, 1.0, -2.0]] * 3)

    losses = bound().decision_losses(logits, BATCH)

    share = logits.sigmoid()
    expected = -(GIVEN * share.log() + (1 - GIVEN) * (1 - share).log())
    assert torch.allclose(losses, expected)


def test_balanced_labels_weigh_their_examples_by_how_rare_they_are():
    losses = bound(pos_weight="balanced").decision_losses(
        torch.zeros(3, 3), {"labels": BATCH["labels"]}
    )
    rare = bound(pos_weight="balanced").decision_losses(
        torch.zeros(1, 3), {"labels": torch.tensor([[2]])}
    )

    half = math.log(2)
    assert losses[0].tolist() == pytest.approx([half, 4 * half, half])
    assert losses[2].tolist() == pytest.approx([half] * 3)
    assert rare[0, 2].item() == pytest.approx(100 * half, rel=1e-6)  # and not 999 times


def test_fitted_thresholds_decide_what_an_evaluation_counts():
    task = MultilabelTask(SHARED.labels, fitted={"thresholds": [0.9, 0.5, 0.1]})
    logits = torch.tensor([[2.0, 1.0, -2.0]])

    assert bound(task).predicted(logits).tolist() == [[False, True, True]]
    assert bound().predicted(logits).tolist() == [[True, True, False]]
