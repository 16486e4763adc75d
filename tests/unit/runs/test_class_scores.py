"""Precision, recall and F1 of labels, by what the results of runs hold."""

import pytest

from transfer_cli.runs.class_scores import FEW, class_scores, confused
from transfer_cli.runs.results import Results
from transfer_cli.tasks.tagging.task import measures
from transfer_cli.training.console import by_class

# Of a: 6 right, 2 taken for b. Of b: 3 right, 1 taken for a. Of c: 1 taken for b.
TABLE = [[6, 2, 0, 0], [1, 3, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
SCORED = [("c", 0, 0, 0, 1), ("b", 1 / 2, 3 / 4, 3 / 5, 4), ("a", 6 / 7, 3 / 4, 4 / 5, 8)]
LABELS = ("a", "b", "c", "never")


def of(name, table, labels=LABELS, **found):
    return Results(labels=labels, tables={"test": {name: table}}, measures={"test": found})


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("confusion", TABLE),
        ("labels", [[6, 3, 0, 0], [8, 4, 1, 0], [7, 6, 0, 0]]),
        ("decisions", [[6, 3, 0, 0], [1, 3, 0, 0], [2, 1, 1, 0], [4, 6, 12, 13]]),
    ],
)
def test_each_label_that_occurs_is_scored_the_worst_first(name, table):
    found = class_scores([of(name, table)], "test")

    assert [score[0] for score in found] == ["c", "b", "a"]
    assert [number for score in found for number in score[1:]] == pytest.approx(
        [number for score in SCORED for number in score[1:]]
    )


def test_scores_of_several_runs_are_means():
    other = of("confusion", [[8, 0, 0, 0], [4, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])

    found = {score.label: score for score in class_scores([of("confusion", TABLE), other], "test")}

    assert found["a"][1:] == pytest.approx(((6 / 7 + 8 / 13) / 2, 7 / 8, (0.8 + 16 / 21) / 2, 8))


def test_entities_are_scored_by_type_and_tags_without_them_one_by_one():
    given, said = ["B-PER", "O", "B-LOC", "I-LOC", "O"], ["B-PER", "O", "B-PER", "O", "O"]
    labels = ("B-LOC", "B-PER", "I-LOC", "O")
    table = [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]]
    scored, plain = measures([given], [said]), measures([given], [said], entities=False)

    found = class_scores([of("confusion", table, labels, **scored)], "test")
    tags = class_scores([of("confusion", table, labels, **plain)], "test")

    assert found == [("LOC", 0, 0, 0, 1), ("PER", 0.5, 1, pytest.approx(2 / 3), 1)]
    assert [score.label for score in tags] == ["B-LOC", "I-LOC", "B-PER", "O"]
    assert scored["macro_f1"] == pytest.approx((0 + 2 / 3) / 2)
    assert plain["macro_f1"] == pytest.approx((0 + 0 + 2 / 3 + 4 / 5) / 4)


@pytest.mark.parametrize("table", [[[1]], "none", [["1"] * 4] * 4, [[-1] * 4] * 4, None])
def test_damaged_counts_are_passed_over(table):
    assert class_scores([of("confusion", table), Results()], "test") == []
    assert by_class(of("confusion", table), "test") == []


def test_what_is_confused_most_often_is_said_with_its_share():
    assert confused(LABELS, TABLE) == (
        "a taken for b 2 of 8 times (25 %); b taken for a 1 of 4 times (25 %); "
        "c taken for b 1 of 1 times (100 %)"
    )
    assert confused(LABELS, [[0] * 4] * 4) == ""


def test_of_many_labels_the_terminal_lists_the_worst_and_counts_the_others():
    size = FEW + 5
    table = [[(row if row == column else 0) for column in range(size)] for row in range(1, size)]
    rows = [[0] * size, *table]
    rows[0][1] = 2  # the first is always taken for the second
    text = "\n".join(
        map(str, by_class(of("confusion", rows, tuple(map(str, range(size)))), "test"))
    )

    assert len(text.splitlines()) == 1 + FEW + 2
    assert "5 labels more" in text
    assert "0 taken for 1 2 of 2 times (100 %)" in text
