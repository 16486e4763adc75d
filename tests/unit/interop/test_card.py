"""Cards: what a stranger's run says stays text."""

import pytest

from transfer_cli.interop.card import Card, card_text

PLAIN = Card(title="model", task="fill-mask", what={"size": "small"})


@pytest.mark.parametrize(
    "card",
    [
        Card(title="x\n---\nlicense: mit", task="fill-mask", what={}),
        Card(title="x", task="fill-mask", what={"size": "a\n# big"}),
        Card(title="x", task="fill-mask", what={}, labels=["a\n# big"]),
        Card(title="x", task="fill-mask", what={}, command=["transfer\n```\n# big"]),
        Card(title="x", task="fill-mask", what={}, how={"data": "\x1b[2J"}),
    ],
)
def test_a_name_does_not_leave_its_line(card):
    lines = card_text(card).splitlines()

    assert "# big" not in lines
    assert "license: mit" not in lines
    assert sum(line.startswith("# ") for line in lines) == 1
    assert lines.count("```") == sum(line.startswith("```") and line != "```" for line in lines)
    assert "\x1b" not in card_text(card)


def test_a_bar_does_not_end_a_cell():
    text = card_text(Card(title="x", task="fill-mask", what={"size": "a|b"}))

    assert "| size | a\\|b |" in text


def test_measures_stand_beside_each_other():
    measures = {"validation": {"accuracy": 0.5, "loss": 1.0}, "test": {"accuracy": 0.25}}

    text = card_text(Card(title="x", task="text-classification", what={}, measures=measures))

    assert "| measure | validation | test |\n|---|---|---|\n| accuracy | 0.5 | 0.25 |" in text
    assert "| loss | 1 |  |" in text


def test_the_license_is_left_to_whoever_publishes():
    text = card_text(PLAIN)

    assert text.startswith("---\nlicense: other   # fill in\n")
    assert "To be filled in by whoever publishes this model" in text
