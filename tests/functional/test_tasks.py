"""What is promised of every kind of task; what one alone has is tested in a file of its own.

How each goes with every preset, is resumed and runs as two processes: `test_every_task.py`.
"""

import json
from pathlib import Path

import pytest

from tests.functional.test_pages import commands
from tests.task_kinds import ALIKE, KINDS
from transfer_cli.config.stored import read_stored

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
    assert next(metric["name"] for metric in results["metrics"] if metric["headline"]) == headline
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


# --- equal texts ---------------------------------------------------------------------------------


LABELS = "ab"


def table(path, numbers):
    """Write a table of texts; the second time that one stands there it may have another label."""
    rows, before = ["text,label"], set()
    for number in numbers:
        other = number in before and number % 3 == 0
        rows.append(
            f"{'Who' if other else 'who'} is number {number} ?,{LABELS[(number + other) % 2]}"
        )
        before.add(number)
    Path(path).write_text("\n".join(rows) + "\n")


@pytest.fixture
def tables():
    table("doubled.csv", [*range(30), *range(30)])
    table("exam.csv", range(20, 40))


@pytest.fixture
def typed(deep):
    """Return the commands of the page, with a model and few steps."""
    words = [words for words in commands("tables.md") if "data.train=doubled.csv" in words]
    more = [f"init_from={deep}", "device=cpu", "loop.steps=2"]
    return [[word for word in command if word != "init_from=MODEL"] + more for command in words]


def test_the_commands_of_the_page_run_and_what_training_lacks_is_scored_beside(
    transfer, tables, typed
):
    together, drop, given = typed

    said = transfer(*together, "run.dir=together").ok()
    dropped = transfer(*drop, "run.dir=drop").ok()
    whole = transfer(*given).ok()
    scored = transfer("evaluate", "RUN", "device=cpu").ok()

    line = "60 of the 60 rows are equal to others (30 different texts, 10 of them with different"
    assert line in said.err
    assert "54 train · 6 validation" in said.err
    assert "27 train · 3 validation" in dropped.err
    test = json.loads(Path("RUN/results.json").read_text())["measures"]["test"]
    assert test["count/unseen"] == 10
    assert {f"{name}/unseen" for name in test if "/" not in name} | {"count/unseen"} == {
        name for name in test if name.endswith("/unseen")
    }
    assert "unseen in training: count 10" in " ".join(whole.out.split())
    assert f"accuracy/unseen          {test['accuracy/unseen']:.6g}" in scored.out
    right = round(20 * test["accuracy"]), round(10 * test["accuracy/unseen"])
    items = [json.loads(row) for row in Path("RUN/items.jsonl").read_text().splitlines()]
    of_test = [item for item in items if item["split"] == "test"]
    assert right == tuple(
        sum(item["label"] == item["predicted"] for item in part) for part in (of_test, of_test[10:])
    )
    transfer("report", "RUN", "--html", "page.html").ok()
    assert "test error rate/unseen" in Path("page.html").read_text()


def test_a_run_that_said_nothing_of_equal_texts_resumes_with_its_own_draw(transfer, tables, typed):
    transfer(*typed[0], "data.duplicates=keep", "run.dir=now").ok()
    path = Path("now/config.yaml")
    kept = [line for line in path.read_text().splitlines()
            if not line.startswith(("# hash", "  duplicates:", "  conflicts:"))]  # fmt: skip
    path.write_text("\n".join(kept) + "\n")

    again = transfer(*typed[0], "run.dir=now", "resume=auto", "loop.steps=4").ok()

    assert read_stored(path, "finetune", "run").data.duplicates == "keep"
    assert "(data.duplicates=keep)" in again.err
