"""What is promised of every kind of task; what one alone has is tested in a file of its own.

How each goes with every preset, is resumed and runs as two processes: `test_every_task.py`.
"""

import io
import json
import re
import shlex

import pytest

from tests.task_kinds import KINDS
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

HEADLINES = {"text_to_text": "perplexity"}
"""Of kinds whose answers are not judged by the first measure of their record."""

PAGES = {
    "choices": ("choices", "accuracy", 0.9),
    "dialog": ("dialog", "hits_at_1", 0.8),
    "multilabel": ("traits", "micro_f1", 0.95),
    "pairs": ("pairs", "accuracy", 0.75),
    "regression": ("sizes", "pearson", 0.95),
    "spans": ("names", "f1", 90),
    "tagging": ("names", "entity_f1", 0.9),
    "text_to_text": ("told", "exact_match", 0.95),
}
"""By the page of a kind: the run that its commands make, and what that exceeds on test."""


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
        ended = transfer("evaluate", str(task_run(name)), str(file), *words)
        assert ended.code == 0, ended.err
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
        f"init_from={pretrained}",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    for line in kind.shown:
        assert line in ended.out


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_its_page_runs(name, transfer, tmp_path, monkeypatch, read_json):
    page = (conf_dir().parent / "docs" / "tasks" / f"{name}.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    asked = re.search(r"^\$ echo '(.+)' >", page, re.MULTILINE)
    rows = re.findall(r"^\{.+\}$", page, re.MULTILINE)
    for file in ("questions.txt", "questions.jsonl", "turns.jsonl"):
        (tmp_path / file).write_text(asked[1] if asked else "".join(rows[-1:]))
    (tmp_path / "pairs.csv").write_text("text,pair\nWhat is Kadru ?,Who is Mavazu ?\n")

    # The others are about files of one's own.
    for words in (each for each in typed if any("runs/" in word for word in each)):
        monkeypatch.setattr("sys.stdin", io.StringIO("What is Kadru ?\n"))
        ended = transfer(*words, *([] if words[0] == "export" else ["device=cpu"]))
        assert ended.code == 0, (words, ended.err)

    assert {"pretrain", "finetune", "evaluate", "predict"} <= {words[0] for words in typed}
    run, measure, least = PAGES[name]
    assert read_json(tmp_path / "runs" / run / "results.json")["measures"]["test"][measure] > least
