"""`transfer analyze analysis=neurons`: what units respond to."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.functional

HERE = ("analysis=neurons", "device=cpu")


def test_units_are_described_by_contexts_and_properties(transfer, finetuned, read_json):
    words = (*HERE, "output=out", "analysis.neurons.contexts=3", "--html", "page.html")
    ended = transfer("analyze", finetuned, *words)

    assert ended.code == 0, ended.err
    content = read_json(Path("out/analyses/neurons.json"))
    lines = Path("out/analyses/neurons-units.jsonl").read_text().splitlines()
    every = [json.loads(line) for line in lines]
    assert len(every) == content["values"]["units"] == 64
    assert {"position", "label city"} <= content["properties"].keys()
    best = content["properties"]["label city"][0]
    strengths = [abs(each["correlations"]["label city"]) for each in every]
    assert abs(best["correlation"]) == max(strengths)
    assert strengths.index(max(strengths)) == best["unit"]
    for unit in every:
        values = [each["value"] for each in unit["contexts"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    shown = {(each["block"], each["unit"]) for each in content["units"]}
    assert {(each["block"], each["unit"]) for each in content["properties"]["position"]} <= shown
    assert "Where these units are highest" in Path("page.html").read_text()


def test_a_block_that_is_not_there_is_named(transfer, finetuned):
    ended = transfer("analyze", finetuned, *HERE, "output=out", "analysis.neurons.blocks=[0,4]")

    assert ended.code == 2
    assert "has the blocks 0 to 0, got 4" in ended.err
    assert not Path("out").exists()


def test_a_text_with_markup_is_shown_as_text(transfer, pretrained):
    Path("texts.txt").write_text("<b>water</b> & wine\nWhere is it ?\n")
    words = (*HERE, "output=out", "input=texts.txt", "--html", "page.html")
    ended = transfer("analyze", pretrained, *words)

    assert ended.code == 0, ended.err
    page = Path("page.html").read_text()
    assert "&lt;" in page
    assert "<b>" not in page
