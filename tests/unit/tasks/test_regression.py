"""Numbers for texts: tables, answers, correlations, the loss."""

import math

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.errors import DataError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.tasks.regression import (
    NumberExample,
    NumberTable,
    Regression,
    RegressionTask,
    average_ranks,
    correlation,
    correlations,
)

TASK = RegressionTask(mean=2.0, scale=0.5)


@pytest.mark.parametrize(
    ("said", "given", "scale", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 5], 1, (0.98270, 1.0)),
        ([1, 2, 2, 3], [1, 2, 3, 4], 1, (0.94868, 0.94868)),
        ([1, 2, 3], [3, 2, 1], 1, (-1.0, -1.0)),
        ([1, 1, 1], [1, 2, 3], 1, ()),
        ([1, 2, 3], [1, 1, 1], 1, ()),
        ([5], [5], 1, ()),
        ([1e9, 1e9 + 1, 1e9 + 2], [0, -1, -2], 1, (-1.0, -1.0)),
        ([2, 2 + 1e-7, 2 - 1e-7], [1, 2, 3], 1, ()),  # but for rounding the same
        ([2, 2 + 1e-7, 2 + 2e-7], [1, 2, 3], 1e-6, (1.0, 1.0)),
    ],
)
def test_correlations_of_known_numbers(said, given, scale, expected):
    measured = correlations(said, given, scale)

    names = ("pearson", "spearman")
    assert measured == pytest.approx(dict(zip(names, expected, strict=False)), abs=1e-5)


@pytest.mark.slow
def test_correlations_of_random_numbers_with_ties_are_those_of_their_definition():
    generator = np.random.default_rng(0)
    for _ in range(1000):
        one, other = generator.integers(0, 12, (2, 40)) + generator.normal(size=(2, 1)) * 1e6
        expected = [
            sum(value < number for value in one) + (sum(value == number for value in one) + 1) / 2
            for number in one
        ]

        assert average_ranks(one).tolist() == expected
        assert correlation(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-9)


def test_a_score_falls_from_half_a_deviation_to_two():
    examples = [NumberExample("a", 2.0)]
    encoded = type("Encoded", (), {"examples": examples})()

    def score(value):
        return TASK.result(encoded, 0, {0: {"value": value}}).score

    scores = [score(value) for value in (2.0, 2.25, 2.5, 1.0, 9.0)]
    assert scores == pytest.approx([1, 1, 2 / 3, 0, 0])


@pytest.mark.parametrize(
    ("value", "scale", "said"),
    [(1700000971.25, 16.0, "1700000971.25"), (3.45670001, 2.0, "3.4567"), (math.inf, 1.0, "inf")],
)
def test_a_number_keeps_the_digits_that_others_differ_in(value, scale, said):
    assert RegressionTask(mean=value, scale=scale).said({"value": value})[0] == said


def test_several_runs_answer_with_the_mean():
    assert TASK.combine([(TASK, {"value": 1.0}), (RegressionTask(), {"value": 4.0})]) == {
        "value": 2.5
    }


# --- tables ------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path):
    """Return how to load a table of given lines."""

    def call(*lines, header="text,score", seed=0, **options):
        (tmp_path / "a.csv").write_text("\n".join([header, *lines]) + "\n")
        return NumberTable(train=str(tmp_path / "a.csv"), **options).load(tmp_path, seed)

    return call


ROWS = [f"What is the number {n} ?,{n / 8}" for n in range(200)]


def test_a_number_for_each_text_is_read_and_its_unit_noted(load):
    data = load(*ROWS)
    train, held_out = data.splits["train"], data.splits["validation"]

    values = [example.value for example in train]
    assert data.task["mean"] == pytest.approx(np.mean(values))
    assert data.task["scale"] == pytest.approx(np.std(values))
    assert sorted(example.value for example in (*train, *held_out)) == [n / 8 for n in range(200)]


def test_equal_numbers_among_few_labels_have_the_unit_1(load):
    data = load(*(f"text {n},{int(n == 50)}" for n in range(100)), labelled=4)

    assert len({example.value for example in data.splits["train"]}) == 1
    assert data.task["scale"] == 1


def test_each_fifth_of_the_numbers_loses_as_many_rows(load):
    held_out = load(*ROWS, labelled=20).splits["validation"]

    fifths = np.bincount([int(example.value // 5) for example in held_out])
    assert fifths.tolist() == [4, 4, 4, 4, 4]


def test_the_column_of_numbers_is_found(load):
    data = load(*(f"{n},text no {n} of it,{n / 7}" for n in range(50)), header="id,review,rating")

    assert data.splits["train"][0].text.startswith("text no")
    assert {round(example.value * 7) for example in data.splits["train"]} <= set(range(50))


@pytest.mark.parametrize("word", ["good", "", "nan", "inf", "1,500"])
def test_what_is_no_number_is_refused_with_its_line(load, word):
    with pytest.raises(DataError, match=r"a\.csv, line 3: "):
        load("one,1", f'two,"{word}"', "three,3", label="score")


def test_thousands_are_not_read_as_decimals_beside_decimal_commas(load):
    with pytest.raises(DataError, match=r"line 4: '1\.250' in 'score' stands beside '2,75'"):
        load('one,"2,75"', 'two,"1.250,50"', 'three,"1.250"')


def test_a_row_without_a_number_can_be_left_out(load, caplog):
    data = load("one,1", "two,good", *ROWS, errors="skip", label="score")

    assert sum(map(len, data.splits.values())) == 201
    assert "1 of 202 rows left out: 'score' is no number, line 3" in caplog.text


@pytest.mark.parametrize("odd", ["n.a.", "4,500"])
def test_a_cell_that_is_no_number_makes_no_other_column_the_label(load, odd):
    rows = [f'{n},text no {n} of it,"{odd if n == 30 else n / 7}"' for n in range(50)]

    with pytest.raises(DataError, match=f"line 32: '{odd}' in 'rating' is no number"):
        load(*rows, header="id,review,rating")
    with pytest.raises(DataError, match=f"line 32: '{odd}' in 'worth' is no number"):
        load(*rows, header="id,review,worth")


def test_numbers_of_rows_are_no_answers(load):
    with pytest.raises(DataError, match="which column is the label"):
        load(*(f"{n},text no {n} of it" for n in range(50)), header="id,review")


def test_numbers_that_are_all_equal_teach_nothing(load):
    with pytest.raises(DataError, match="all examples have the number 3; there is nothing to"):
        load(*(f"text no {n},3.0" for n in range(30)), label="score")


def bound(**options):
    objective = Regression(pooling="mean", **options)
    objective.setup(TaskInfo(tiny.VOCABULARY, task=RegressionTask(mean=3.0, scale=2.0)))
    return objective


OUTPUTS = torch.tensor([[-0.5], [0.0], [2.0]])
BATCH = {"value": torch.tensor([3.0, 3.0, 5.0], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("options", "values", "losses"),
    [
        ({}, [2, 3, 7], [0.25, 0, 1]),
        ({"loss": "huber"}, [2, 3, 7], [0.125, 0, 0.5]),
        ({"standardise": False}, [-0.5, 0, 2], [12.25, 9, 9]),
        ({"clip": (2.5, 6)}, [2.5, 3, 6], [0.25, 0, 1]),
    ],
)
def test_answers_are_in_the_unit_of_the_numbers_and_losses_in_deviations(options, values, losses):
    objective = bound(**options)

    assert objective.values(OUTPUTS).tolist() == pytest.approx(values)
    assert objective.losses(OUTPUTS, BATCH).tolist() == pytest.approx(losses)
