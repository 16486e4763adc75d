"""Tests of what groups of runs are called."""

from pathlib import Path

import pytest

from transfer_cli.report.contents import FINISHED, Run
from transfer_cli.report.differing_settings import (
    canonical,
    identity,
    labels,
    shown_values,
    varying,
)

FULL = {
    "adaptation": "full",
    "adaptation/plan": "all",
    "adaptation.store": "all",
    "schedule": "linear",
}
LORA = {
    "adaptation": "lora", "adaptation/plan": "new", "adaptation.store": "trained",
    "adaptation.edits.lora.rank": 8, "schedule": "slanted",
}  # fmt: skip


def group(settings, typed=()):
    return [
        Run(Path("run"), "run", "finetune", FINISHED, settings=settings, typed=frozenset(typed))
    ]


def test_a_preset_explains_all_that_it_brought_along():
    assert varying([group(FULL), group(LORA)]) == ("adaptation",)


def test_what_was_typed_is_told_even_where_a_preset_would_explain_it():
    typed = ["adaptation", "optimizer.lr"]
    groups = [
        group({**FULL, "optimizer.lr": 1e-3}, ["adaptation"]),
        group({**LORA, "optimizer.lr": 1e-2}, typed),
    ]

    assert varying(groups) == ("adaptation", "optimizer.lr")


def test_the_rate_is_told_even_where_a_preset_brings_it():
    groups = [group({**FULL, "optimizer.lr": 1e-4}), group({**LORA, "optimizer.lr": 1e-3})]

    assert varying(groups) == ("adaptation", "optimizer.lr")


def test_what_a_preset_does_not_explain_is_told_too():
    groups = [group(FULL), group(LORA), group({**LORA, "adaptation.edits.lora.rank": 16})]

    assert varying(groups) == ("adaptation", "adaptation.edits.lora.rank")


def test_settings_that_cannot_change_a_result_are_none():
    names = {"seed": 1, "run.dir": "a", "device": "cuda", "sweep.trials": 3, "checkpoint.keep": 1}

    assert identity({**names, "loop.batch": 32, "data.labelled": None}) == {"loop.batch": "32.0"}


def test_equal_values_of_other_kinds_are_equal():
    assert canonical(1) == canonical(1.0)
    assert canonical(True) != canonical(1)
    assert canonical([1, 2]) == canonical([1, 2])


@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("optimizer.lr", [1e-3, 3e-3], ["0.001", "0.003"]),
        ("optimizer.lr", [0.0012345, 0.0012346], ["0.001234", "0.001235"]),
        ("optimizer.lr", [0.1, None], ["0.1", "null"]),
        ("init_from", ["runs/a/best", "runs/b/best"], ["a/best", "b/best"]),
        ("init_from", ["runs/a", None], ["a", "null"]),
        ("adaptation", ["lora", "full"], ["lora", "full"]),
        (
            "experiment",
            ["sample/finetune", "recipe/finetune"],
            ["sample/finetune", "recipe/finetune"],
        ),
        ("objective.hidden", [[50], []], ["[50]", "[]"]),
        ("loop.bucket", [True, False], ["true", "false"]),
    ],
)
def test_values_are_as_short_as_leaves_them_different(key, values, shown):
    assert shown_values(key, values) == shown


def test_a_label_leaves_out_what_a_group_does_not_have():
    keys = ("adaptation", "adaptation.edits.lora.rank", "data.labelled")

    assert labels(keys, [{**FULL, "data.labelled": 100}, {**LORA, "data.labelled": None}]) == [
        "adaptation=full data.labelled=100",
        "adaptation=lora adaptation.edits.lora.rank=8 data.labelled=null",
    ]


def test_labels_are_never_alike_however_long():
    keys = [f"key{number}" for number in range(30)]
    groups = [
        {key: "x" * 500 + str(place * (key == "key29")) for key in keys} for place in range(3)
    ]

    found = labels(keys, groups)

    assert len(set(found)) == 3
    assert all(len(label) < 700 for label in found)


def test_a_label_holds_nothing_that_steers_a_terminal():
    (found,) = labels(["a\x1b[2J"], [{"a\x1b[2J": "b\x1b]0;title\x07\nc"}])

    assert found.isprintable()
