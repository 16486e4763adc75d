"""Cards: what a stranger's run says stays text."""

import pytest

from transfer_cli.commands.export.cards import rendered


def card(**changes):
    empty = {
        "brings_code": False,
        "what": {},
        "how": {},
        "measures": {},
        "labels": (),
        "command": "",
        "left_out": (),
    }
    return rendered(**{"title": "x", "task": "fill-mask", "architecture": "X", **empty, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"title": "x\n---\nlicense: mit"},
        {"what": {"size": "a\n# big"}},
        {"labels": ["a\n# big"]},
        {"command": "transfer\n```\n# big"},
        {"how": {"data": "\x1b[2J"}},
    ],
)
def test_a_name_does_not_leave_its_line(change):
    text = card(**change)

    lines = text.splitlines()
    assert "# big" not in lines
    assert "license: mit" not in lines
    assert sum(line.startswith("# ") for line in lines) == 1
    assert lines.count("```") == sum(line.startswith("```") and line != "```" for line in lines)
    assert "\x1b" not in text


def test_a_bar_does_not_end_a_cell():
    text = card(what={"size": "a|b"})

    assert "| size | a\\|b |" in text


@pytest.mark.parametrize("mark", ["`", "``", "a`b", "```"])
def test_what_a_card_is_told_is_no_markup(mark):
    markdown_it = pytest.importorskip("markdown_it")
    hostile = f"<img src=x onerror=alert(1)>{mark} <img src=x onerror=alert(2)> {mark}"
    every = {
        "title": hostile, "labels": [hostile, "plain"], "left_out": [hostile], "command": hostile,
        "what": {hostile: hostile}, "how": {hostile: hostile},
        "measures": {hostile: {hostile: 1.0}},
    }  # fmt: skip

    page = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").parse(card(**every))

    kinds = {each.type for token in page for each in (token, *(token.children or ()))}
    assert not {kind for kind in kinds if "html" in kind or "image" in kind or "link" in kind}
    code = [
        each.content for token in page for each in token.children or () if each.type[:4] == "code"
    ]
    assert code == [hostile, "plain", hostile]


def test_measures_stand_beside_each_other():
    measures = {"validation": {"accuracy": 0.5, "loss": 1.0}, "test": {"accuracy": 0.25}}

    text = card(measures=measures)

    assert "| measure | validation | test |\n|---|---|---|\n| accuracy | 0.5 | 0.25 |" in text
    assert "| loss | 1 |  |" in text


def test_the_license_is_left_to_whoever_publishes():
    text = card()

    assert text.startswith("---\nlicense: other   # fill in\n")
    assert "To be filled in by whoever publishes this model" in text
