"""Numbers and settings as the page writes them."""

import pytest

from transfer_cli.report import formats
from transfer_cli.report.contents import Group, Spread, TaskRuns


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
        "950", "4.61 k", "1000 k", "12 M",
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
