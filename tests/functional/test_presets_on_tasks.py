"""Every preset of conf/adaptation on every kind of task: trained, scored, read back, answering."""

import json
from pathlib import Path

import pytest

from transfer_cli.config.locate import conf_dir

pytestmark = [pytest.mark.functional, pytest.mark.slow]

PRESETS = sorted(path.stem for path in (conf_dir() / "adaptation").glob("*.yaml"))
KINDS = {
    "sample_questions": ("classification", {"text": "Where is it ?"}),
    "sample_pairs": ("classification", {"text": "Where is it ?", "text_pair": "Who is it ?"}),
    "sample_numbers": ("regression", {"text": "Where is it ?"}),
    "sample_labels": ("multilabel", {"text": "Where is it ?"}),
    "sample_tags": ("tagging", {"text": "Where is it ?"}),
    "sample_spans": ("span", {"question": "Where is it ?", "context": "It is in the sea ."}),
    "sample_choices": ("choice", {"context": "Where is it ?", "choices": ["here", "in the sea"]}),
    "sample_dialog": ("next_utterance", {"history": ["Where ?"], "candidates": ["Here .", "No ."]}),
    "sample_text_pairs": ("prefix_lm", {"text": "Where is it ?"}),
}

BESIDES = {"next_utterance": ("objective.reply_tokens=0", "data.speakers=[the,in]")}


def test_no_kind_of_task_is_missing():
    samples = {path.stem for path in (conf_dir() / "data").glob("sample_*.yaml")}

    assert set(KINDS) == {name for name in samples if not name.endswith("_text")}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("data", KINDS)
def test_a_preset_works_on_a_task(data, preset, transfer, adapting, read_json):
    objective, asked = KINDS[data]
    words = [
        word for word in adapting(preset)
        if not word.startswith(("data=", "data.", "loop.", "checkpoint."))
    ]  # fmt: skip
    ended = transfer(
        "finetune", f"data={data}", f"objective={objective}", *words, "data.labelled=12",
        "loop.batch=1", "loop.epochs=1", "loop.evaluate_every=1 epoch", "checkpoint.every=9 epochs",
        *BESIDES.get(objective, ()), "run.dir=run",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    results = read_json(Path("run/results.json"))
    assert results["presets"]["adaptation"] == preset
    again = transfer("evaluate", "run", "device=cpu", "output=again.json")
    assert again.code == 0, again.err
    expected = results["measures"]["test"]
    found = read_json(Path("again.json"))["measures"]["test"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    # Ranks and decisions turn over where answers are nearly equal, as they are after 12 steps.
    close = {name: expected[name] for name in found}
    assert found == pytest.approx(close, rel=0.05, abs=0.05, nan_ok=True)
    Path("asked.jsonl").write_text(json.dumps(asked) + "\n")
    answered = transfer("predict", "run", "asked.jsonl", "output=said.jsonl", "device=cpu")
    assert answered.code == 0, answered.err
    assert len(Path("said.jsonl").read_text().splitlines()) == 1
