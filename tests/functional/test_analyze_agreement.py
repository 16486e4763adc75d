"""`transfer analyze analysis=agreement`: the same as `transfer score` says of pairs."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.functional

HERE = ("analysis=agreement", "device=cpu")


def test_it_says_what_score_says(transfer, pretrained, read_json):
    lines = [
        {"sentence_good": f"Where is the {n} ?", "sentence_bad": f"Where the {n} ?", "UID": group}
        for n, group in enumerate("aab")
    ]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    data = ("data=minimal_pairs", "data.files=pairs.jsonl")
    scored = transfer("score", pretrained, *data, "device=cpu", "output=scored")
    assert scored.code == 0, scored.err
    ended = transfer("analyze", pretrained, *HERE, *data, "output=out", "--html", "page.html")
    assert ended.code == 0, ended.err

    content = read_json(Path("out/analyses/agreement.json"))
    measures = read_json(Path("scored/results.json"))["measures"]["test"]
    assert content["values"]["accuracy"] == pytest.approx(measures["accuracy"], abs=1e-6)
    assert content["values"]["macro accuracy"] == pytest.approx(
        measures["macro_accuracy"], abs=1e-6
    )
    assert {each["group"]: each["accuracy"] for each in content["groups"]} == {
        "a": measures["accuracy/a"], "b": measures["accuracy/b"],
    }  # fmt: skip


def test_pairs_are_made_where_none_are_named(transfer, pretrained, read_json):
    ended = transfer("analyze", pretrained, *HERE, "analysis.agreement.pairs=3", "output=out")

    assert ended.code == 0, ended.err
    groups = read_json(Path("out/analyses/agreement.json"))["groups"]
    assert [each["group"] for each in groups] == [
        "agreement/none", "agreement/same", "agreement/other", "agreement/two others",
    ]  # fmt: skip
    assert {each["count"] for each in groups} == {3}
