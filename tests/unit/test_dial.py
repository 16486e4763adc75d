"""What a depth decides: in range, never less for a deeper model, and the same everywhere."""

from itertools import pairwise

import pytest

from transfer_cli import dial
from transfer_cli.config.compose import load_config
from transfer_cli.config.flags import Request

DEPTHS = range(1, 49)


def of_depth(depth):
    width = dial.width(depth)
    inner = dial.feedforward(width)
    count = dial.parameters(depth, width, inner)
    length = dial.tokens(count, 20, None, None, None)
    return {
        "width": width,
        "heads": dial.heads(width),
        "feedforward": inner,
        "parameters": count,
        "tokens": length,
        "batch": dial.batch(length, count, 20, None, 256),
        "rate": dial.rate(width),
    }


def test_a_deeper_model_is_no_smaller_and_trains_no_shorter_and_no_faster():
    for less, more in pairwise(map(of_depth, DEPTHS)):
        assert all(less[name] <= more[name] for name in less if name not in ("rate", "heads"))
        assert less["parameters"] < more["parameters"]
        assert less["rate"] >= more["rate"]


@pytest.mark.parametrize("depth", DEPTHS)
def test_all_that_a_depth_decides_is_in_range(depth):
    settings = of_depth(depth)

    assert settings["width"] % settings["heads"] == 0
    assert settings["width"] // settings["heads"] in (32, 64)
    assert 4 <= settings["batch"] <= 2048
    assert 5e-4 < settings["rate"] <= 0.02


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(3, (96, 3, 288, 359_424)), (7, (224, 7, 672, 4_566_016)), (16, (512, 8, 1536, 54_525_952))],
)
def test_a_depth_decides_the_same_on_any_machine(depth, expected):
    settings = of_depth(depth)

    names = ("width", "heads", "feedforward", "parameters")
    assert tuple(settings[name] for name in names) == expected
    assert len(f"{settings['rate']:.10g}") <= 6  # two digits: no last bit differs


def test_heads_divide_a_width_that_is_typed():
    assert [width for width in (1, 33, 100, 500, 1000) if width % dial.heads(width)] == []


def test_every_rule_comes_after_those_that_it_needs():
    keys = [rule.key for rule in dial.RULES]

    for place, rule in enumerate(dial.RULES):
        assert all(keys.index(need) < place for need in rule.needs if need in keys)


# --- in a config -------------------------------------------------------------------------------


def test_what_is_typed_wins_and_goes_into_the_rules_that_need_it():
    words = ("data=sample_text", "model=dial", "model.depth=3", "model.width=64", "loop.steps=7")
    config = load_config("pretrain", Request(overrides=words))

    assert (config.model.heads, config.model.feedforward, config.loop.tokens) == (2, 192, None)
    assert config.dial.parameters == dial.parameters(3, 64, 192)
    assert config.optimizer.lr == dial.rate(64)
