"""What is promised of every kind of task; what one alone has is tested in a file of its own.

How each goes with every preset, is resumed and runs as two processes: `test_every_task.py`.
"""

import json

import pytest

from tests.task_kinds import ALIKE, KINDS

HEADLINES = {"chat": "perplexity", "text_to_text": "perplexity"}
"""Of kinds whose answers are not judged by the first measure of their record."""


@pytest.mark.parametrize("name", KINDS)
def test_its_examples_are_learnt_measured_and_noted(name, task_run, read_json):
    kind, run = KINDS[name], task_run(name)

    results = read_json(run / "results.json")
    measures = results["measures"]["validation"]
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    for measure, least in kind.least.items():
        assert measures[measure] > least, measure
    for measure, most in kind.most.items():
        assert measures[measure] < most, measure
    headline = HEADLINES.get(name, next(iter(kind.least)))
    assert next(each["name"] for each in results["metrics"] if each["headline"]) == headline
    assert items
    if kind.labels is not None:
        assert {item["label"] for item in items} <= kind.labels


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"dialog"}))
def test_every_example_of_a_file_is_scored_whatever_the_batch(
    name, task_run, task_file, transfer, read_json
):
    kind, file = KINDS[name], task_file(name)
    count = 160 if name in ("span", "tagging") else 120

    for batch in (7, 64):
        words = (f"batch={batch}", f"output={batch}.json", "device=cpu")
        ended = transfer("evaluate", str(task_run(name)), str(file), *words).ok()
        assert f"input: scored {count} of {count} examples" in ended.out
    one, other = (read_json(f"{batch}.json")["measures"]["input"] for batch in (7, 64))

    for measures in (one, other):
        measures.pop("spearman", None)  # ranks of numbers that differ in their last digit
    assert one == pytest.approx(other, abs=1e-4, nan_ok=True)
    headline, least = next(iter(kind.least.items()))
    assert one[headline] > least


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.shown])
def test_its_data_are_looked_at(name, task_file, transfer, pretrained):
    kind = KINDS[name]
    more = [word for word in kind.words if word.startswith("data.separator")]

    ended = transfer(
        "inspect", f"data={kind.data}", f"data.train={task_file(name)}", *more,
        f"init_from={pretrained}", ALIKE,
    ).ok()  # fmt: skip

    for line in kind.shown:
        assert line in ended.out
