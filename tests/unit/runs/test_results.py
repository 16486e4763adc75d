"""`results.json`: what is read of files of any form, and metrics that nobody declared."""

from dataclasses import fields

import pytest

from transfer_cli.earlier_runs import UNDECLARED
from transfer_cli.metrics import Metric
from transfer_cli.runs.results import Cost, Parameters, Results, Seen, merged

SPAN_F1 = Metric("span_f1", higher_is_better=True, unit="percent", headline=True)


def metrics_of(content):
    return Results.from_json(content).metrics


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
    damaged = Results.from_json({each.name: wrong for each in fields(Results)} | {"metrics": []})

    assert damaged.by_name == {}
    assert (damaged.parameters, damaged.seen, damaged.cost) == (Parameters(), Seen(), Cost())
    assert damaged.flops is damaged.task is None


def test_declarations_are_read_as_they_were_stored():
    assert metrics_of({"metrics": [SPAN_F1.as_json()]}) == (SPAN_F1,)


def test_damaged_declarations_are_left_out():
    records = [3, SPAN_F1.as_json(), {"name": "x"}]

    assert metrics_of({"metrics": records}) == (SPAN_F1,)


def test_of_several_runs_the_first_declaration_counts():
    other = Metric("span_f1", higher_is_better=False)

    assert merged(((SPAN_F1,), (other, UNDECLARED[0]))) == (SPAN_F1, UNDECLARED[0])
