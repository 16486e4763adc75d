"""`transfer analyze analysis=edges`."""

import json

import pytest


@pytest.fixture
def files(tmp_path):
    """Write sentences whose second span says what the first one is; return the words for them."""
    words = []
    for number, part in enumerate(("train", "validation", "test")):
        lines = []
        for row in range(number, 40 + number):
            kind = ("city", "river", "animal")[row % 3]
            target = {"span1": [3, 4], "span2": [0, 2], "label": kind}
            lines.append({"text": f"The old {kind} : {kind} {row} .", "targets": [target]})
        path = tmp_path / f"{part}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        words.append(f"analysis.edges.{part}={path}")
    return words


def test_spans_are_probed_with_the_layers_up_to_each(
    transfer, finetuned, files, read_json, tmp_path
):
    ended = transfer("analyze", f"run={finetuned}", "analysis=edges", "device=cpu", "output=found",
                     "html=page.html", *files)  # fmt: skip

    assert ended.code == 0, ended.err
    assert "layers up to  micro-F1" in ended.out
    found = read_json(tmp_path / "found" / "analyses" / "edges.json")
    assert [(each["layers_up_to"], each["control"]) for each in found["probes"]] == [
        (0, None), (1, None), (0, "random"), (1, "random"),
    ]  # fmt: skip
    assert all(0 <= each["micro_f1"] <= 1 for each in found["probes"])
    assert found["targets"] == {"train": 40, "chosen_on": 40, "scored": 40}
    assert sum(found["mix"]["shares"]) == pytest.approx(1)
    assert "Edge probes" in (tmp_path / "page.html").read_text()


def test_a_label_that_training_lacks_is_named(transfer, finetuned, files, tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text(path.read_text().replace("animal", "disease"))

    ended = transfer("analyze", f"run={finetuned}", "analysis=edges", "output=found", *files)

    assert ended.code == 2
    assert "test.jsonl: training has no label disease" in ended.err
    assert not (tmp_path / "found").exists()
