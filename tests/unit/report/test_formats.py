"""Numbers and settings in words, and what groups of runs are called."""

from pathlib import Path

import pytest

from transfer_cli.report import formats
from transfer_cli.report.contents import FINISHED, Group, Run, Spread, TaskRuns
from transfer_cli.report.grouping import (
    canonical,
    identity,
    labels,
    shown_values,
    varying,
)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0, "0.00"), (8.236, "8.24"), (83.333, "83.33"), (129.94, "129.9"), (7403.68, "7,404"),
        (0.9177, "0.9177"), (0.00012345, "0.000123"), (-1.5, "\N{MINUS SIGN}1.50"),
    ],
)  # fmt: skip
def test_a_number_has_three_or_four_digits(value, wanted):
    assert formats.number(value) == wanted


def test_a_deviation_has_as_many_decimals_as_its_mean():
    assert formats.spread(Spread((8.0, 8.5), 8.25, 0.35355)) == "8.25 ± 0.35"
    assert formats.spread(Spread((8.25,), 8.25, None)) == "8.25"
    assert formats.spread(Spread((1.402, 1.405), 1.4035, 0.0021)) == "1.403 ± 0.002"
    assert formats.spread(Spread((83.3, 83.3), 83.3, 1e-14)) == "83.30 ± 0.00"


def test_large_counts_times_and_sizes_are_short():
    assert [formats.count(each) for each in (950, 4614, 999_900, 11_995_786)] == [
        "950", "4.61 k", "1 M", "12 M",
    ]  # fmt: skip
    assert [formats.duration(each) for each in (1.654, 49.2, 90, 3600, 4512)] == [
        "1.65 s", "49 s", "1 min 30 s", "1 h", "1 h 15 min",
    ]  # fmt: skip
    assert formats.size(401829888) == "383 MiB"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(None, "null"), (True, "true"), (1e-5, "1e-05"), ([1, "a"], "[1, a]"), ({"a": 1}, "{a: 1}")],
)  # fmt: skip
def test_a_setting_is_written_as_it_would_be_typed(value, wanted):
    assert formats.setting(value) == wanted


def test_keys_with_the_same_end_keep_their_whole_name():
    assert formats.short_keys(["optimizer.lr", "data.name", "tokenizer.name"]) == {
        "optimizer.lr": "lr", "data.name": "data.name", "tokenizer.name": "tokenizer.name",
    }  # fmt: skip


def named(*settings):
    groups = tuple(Group(f"group {at}", each, ()) for at, each in enumerate(settings))
    return formats.group_names(TaskRuns("", groups, tuple(settings[0]), "test/loss", ()))


def test_a_group_is_called_by_what_tells_it_from_the_others():
    assert named(
        {"adaptation": "lora", "optimizer.lr": 1e-3, "data.labelled": None},
        {"adaptation": "full", "optimizer.lr": 1e-3, "data.labelled": 100},
    ) == ("lora, lr=0.001, labelled=all", "full, lr=0.001, labelled=100")


def test_where_many_keys_vary_a_group_is_called_by_what_is_unusual_about_it():
    usual = {f"part.key{at}": 1 for at in range(9)}

    names = named(usual, usual | {"part.key3": 2}, usual | {"part.key3": 2, "part.key8": 3}, usual)

    assert names == ("the usual settings #1", "key3=2", "key3=2, key8=3", "the usual settings #4")


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
