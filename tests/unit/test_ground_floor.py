"""What is declared of a metric."""

import json

import pytest

from transfer_cli.errors import ConfigError
from transfer_cli.metrics import Metric, by_preference, find, require, wilson_interval

ACCURACY = Metric("accuracy", higher_is_better=True, unit="fraction", headline=True)
LOSS = Metric("loss", higher_is_better=False, unit="nats", per_example=True)
DECLARED = (LOSS, ACCURACY, LOSS.of_loss("order"))


def test_a_metric_is_the_same_after_json():
    record = json.loads(json.dumps(ACCURACY.as_json()))

    assert Metric.from_json(record) == ACCURACY
    assert Metric.from_json({**record, "a later key": 1}) == ACCURACY


@pytest.mark.parametrize(
    "record",
    [
        None, [], {}, {"name": "x"}, {"name": 3, "higher_is_better": True},
        {"name": "x", "higher_is_better": 1}, {"name": "", "higher_is_better": True},
        {"name": "x", "higher_is_better": True, "unit": "metres"},
        {"name": "x", "higher_is_better": True, "unit": []},
    ],
)  # fmt: skip
def test_what_is_no_record_of_a_metric_is_refused(record):
    with pytest.raises(ValueError, match=r"metric|metres|name"):
        Metric.from_json(record)


def test_an_unknown_unit_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"f1: 'percents' is not one of .* Did you mean 'percent'"):
        Metric("f1", higher_is_better=True, unit="percents")


def test_a_part_of_a_metric_is_as_good_as_the_metric_and_no_headline():
    found = find("accuracy/city/north", DECLARED)

    assert (found.name, found.higher_is_better, found.unit) == (
        "accuracy/city/north", True, "fraction",
    )  # fmt: skip
    assert not found.headline


def test_a_name_that_only_begins_like_a_metric_is_another():
    assert find("accuracy_of_all", DECLARED) is None
    assert find("order", DECLARED) is None


def test_a_metric_of_a_further_loss_begins_with_its_name():
    found = find("order/loss", DECLARED)

    assert found.name == "order/loss"
    assert not found.per_example


def test_a_metric_that_is_not_declared_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as refused:
        require("acuracy", DECLARED, "loop.monitor")

    assert str(refused.value) == (
        "loop.monitor: there is no measure 'acuracy'. Did you mean 'accuracy'? "
        "This run measures loss, accuracy, order/loss"
    )


def test_headlines_are_preferred_and_the_others_keep_their_order():
    assert [each.name for each in by_preference(DECLARED)] == ["accuracy", "loss", "order/loss"]


@pytest.mark.parametrize(
    ("right", "total", "interval"),
    [(81, 263, (0.2553, 0.3662)), (0, 20, (0.0, 0.1611)), (20, 20, (0.8389, 1.0))],
)
def test_the_interval_of_a_share_is_the_published_one(right, total, interval):
    assert wilson_interval(right, total) == pytest.approx(interval, abs=1e-4)
