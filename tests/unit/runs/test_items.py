import json
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.earlier_runs import UNDECLARED_METRICS
from transfer_cli.metrics import Metric
from transfer_cli.runs import items
from transfer_cli.runs.class_scores import MOST_LISTED, class_scores, describe_confusions
from transfer_cli.runs.items import Item, read_items, shortened, write_items
from transfer_cli.runs.results import Cost, Parameters, Results, Seen, merged_metrics
from transfer_cli.safe_files import UnreadableError
from transfer_cli.tasks.tagging.task import measures
from transfer_cli.training.console import label_score_blocks

ONE = Item("test", 3, "city", "river", 0.25, "Where ?", 1.5, 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    st.lists(
        st.builds(
            Item, split=st.sampled_from(["test", "validation"]), index=st.integers(0, 2**40),
            label=WORDS, predicted=WORDS, probability=st.floats(0, 1), text=WORDS,
            loss=st.floats(0, 1e6), targets=st.integers(0, 1000),
        )
    )
)  # fmt: skip
def test_what_is_written_of_a_split_is_read_back(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("run") / "items.jsonl"

    write_items(path, written)

    assert list(read_items(path, "test")) == [item for item in written if item.split == "test"]


def test_a_score_says_how_right_an_item_is_where_there_is_one():
    right = replace(ONE, predicted=ONE.label)

    assert [ONE.wrong, right.wrong, replace(ONE, score=0.75).wrong] == [1, 0, 0.25]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: it is no JSON object"),
        ('{"split": "test"}', "line 2: its index is no int"),
        (json.dumps(vars(ONE) | {"loss": "much"}), "line 2: its loss is no float: 'much'"),
        (json.dumps(vars(ONE) | {"targets": True}), "line 2: its targets is no int"),
        (
            json.dumps(vars(ONE) | {"loss": 10**400}),
            "line 2: its loss is below 0, or has more than 64 bits",
        ),
        ("[" * 100_000, "line 2: it is not JSON"),
        (json.dumps(vars(ONE) | {"score": 1.5}), "line 2: its score is not between 0 and 1: '1.5'"),
        (json.dumps(vars(ONE) | {"score": "all"}), "line 2: its score is not between 0 and 1"),
        (json.dumps(vars(ONE) | {"text": "a" * 2**20}), "line 2: it is not JSON"),
    ],
)
def test_what_is_no_item_is_refused_by_its_line(tmp_path, line, message):
    path = tmp_path / "items.jsonl"
    write_items(path, [ONE])
    path.write_text(path.read_text() + line + "\n")

    with pytest.raises(UnreadableError, match=message):
        list(read_items(path, "test"))


def test_more_items_than_are_ever_written_are_refused_and_a_long_text_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(items, "MOST_ITEMS", 3)
    write_items(tmp_path / "items.jsonl", [ONE] * 4)

    with pytest.raises(UnreadableError, match="more than 3 examples of test"):
        list(read_items(tmp_path / "items.jsonl", "test"))
    assert shortened("a" * 500) == "a" * 500
    assert shortened("a" * 501) == "a" * 496 + " ..."


# --- scores of classes ---------------------------------------------------------------------------


# Of a: 6 right, 2 taken for b. Of b: 3 right, 1 taken for a. Of c: 1 taken for b.
TABLE = [[6, 2, 0, 0], [1, 3, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
SCORED = [("c", 0, 0, 0, 1), ("b", 1 / 2, 3 / 4, 3 / 5, 4), ("a", 6 / 7, 3 / 4, 4 / 5, 8)]
LABELS = ("a", "b", "c", "never")


def of(name, table, labels=LABELS, **scores):
    return Results(labels=labels, tables={"test": {name: table}}, measures={"test": scores})


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("confusion", TABLE),
        ("labels", [[6, 3, 0, 0], [8, 4, 1, 0], [7, 6, 0, 0]]),
        ("decisions", [[6, 3, 0, 0], [1, 3, 0, 0], [2, 1, 1, 0], [4, 6, 12, 13]]),
    ],
)
def test_each_label_that_occurs_is_scored_the_worst_first(name, table):
    scores = class_scores([of(name, table)], "test")

    assert [score[0] for score in scores] == ["c", "b", "a"]
    assert [number for score in scores for number in score[1:]] == pytest.approx(
        [number for score in SCORED for number in score[1:]]
    )


def test_scores_of_several_runs_are_means():
    other = of("confusion", [[8, 0, 0, 0], [4, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])

    scores = {score.label: score for score in class_scores([of("confusion", TABLE), other], "test")}

    assert scores["a"][1:] == pytest.approx(((6 / 7 + 8 / 13) / 2, 7 / 8, (0.8 + 16 / 21) / 2, 8))


def test_entities_are_scored_by_type_and_tags_without_them_one_by_one():
    given, said = ["B-PER", "O", "B-LOC", "I-LOC", "O"], ["B-PER", "O", "B-PER", "O", "O"]
    labels = ("B-LOC", "B-PER", "I-LOC", "O")
    table = [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]]
    scored, plain = measures([given], [said]), measures([given], [said], entities=False)

    entities = class_scores([of("confusion", table, labels, **scored)], "test")
    tags = class_scores([of("confusion", table, labels, **plain)], "test")

    assert entities == [("LOC", 0, 0, 0, 1), ("PER", 0.5, 1, pytest.approx(2 / 3), 1)]
    assert [score.label for score in tags] == ["B-LOC", "I-LOC", "B-PER", "O"]
    assert scored["macro_f1"] == pytest.approx((0 + 2 / 3) / 2)
    assert plain["macro_f1"] == pytest.approx((0 + 0 + 2 / 3 + 4 / 5) / 4)


@pytest.mark.parametrize("table", [[[1]], "none", [["1"] * 4] * 4, [[-1] * 4] * 4, None])
def test_damaged_counts_are_passed_over(table):
    assert class_scores([of("confusion", table), Results()], "test") == []
    assert label_score_blocks(of("confusion", table), "test") == []


def test_what_is_confused_most_often_is_said_with_its_share():
    assert describe_confusions(LABELS, TABLE) == (
        "a taken for b 2 of 8 times (25 %); b taken for a 1 of 4 times (25 %); "
        "c taken for b 1 of 1 times (100 %)"
    )
    assert describe_confusions(LABELS, [[0] * 4] * 4) == ""


def test_of_many_labels_the_terminal_lists_the_worst_and_counts_the_others():
    size = MOST_LISTED + 5
    table = [[(row if row == column else 0) for column in range(size)] for row in range(1, size)]
    rows = [[0] * size, *table]
    rows[0][1] = 2  # the first is always taken for the second
    text = "\n".join(
        map(str, label_score_blocks(of("confusion", rows, tuple(map(str, range(size)))), "test"))
    )

    assert len(text.splitlines()) == 1 + MOST_LISTED + 2
    assert "5 labels more" in text
    assert "0 taken for 1 2 of 2 times (100 %)" in text


# --- results -------------------------------------------------------------------------------------


SPAN_F1 = Metric("span_f1", higher_is_better=True, unit="percent", headline=True)


def test_what_was_written_is_read_again_and_a_later_key_is_kept(tmp_path):
    written = Results(
        "finetune", {"data": "trec6"}, 3, {"test": {"span_f1": 50.0}}, (SPAN_F1,),
        {"test": {"confusion": [[1, 0], [0, 1]]}}, ("a", "b"), "tagging", "tag", "no better",
        {"train": 9}, 4, Parameters(10, 5), Seen(4, 30, 9, 0), Cost(7, 6, 1, 30), 99,
        {"layers": [1.0], "later": {"x": None}},
    )  # fmt: skip

    written.write(tmp_path / "results.json")

    assert Results.read(tmp_path / "results.json") == written


def test_what_is_not_known_has_no_key():
    keys = Results("score", parameters=Parameters(10, 0)).as_json().keys()

    assert not keys & {"seen", "cost", "best_step", "stored_bytes", "examples"}
    assert {"measures", "failed", "task", "parameters"} <= keys


@pytest.mark.parametrize("wrong", [None, 3, "x", [], {}, [[]], {"test": 3}, {"trainable": "x"}])
def test_a_value_of_the_wrong_kind_counts_as_missing(wrong):
    damaged = Results.from_json({field.name: wrong for field in fields(Results)} | {"metrics": []})

    assert damaged.by_name == {}
    assert (damaged.parameters, damaged.seen, damaged.cost) == (Parameters(), Seen(), Cost())
    assert damaged.flops is damaged.task is None


def test_damaged_declarations_are_left_out():
    records = [3, asdict(SPAN_F1), {"name": "x"}]

    assert Results.from_json({"metrics": records}).metrics == (SPAN_F1,)


def test_of_several_runs_the_first_declaration_counts():
    other, loss = Metric("span_f1", higher_is_better=False), UNDECLARED_METRICS[0]

    assert merged_metrics(((SPAN_F1,), (other, loss))) == (SPAN_F1, loss)
