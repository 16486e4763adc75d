"""Calibrated runs that may say nothing: what they store, write, export and say at the end."""

import csv
import json
import logging
import math
import random
import re
import shlex
from pathlib import Path

import pytest
import torch

from tests import several
from tests.functional.conftest import LOOP, finished
from tests.functional.test_pages import commands
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.commands import closing
from transfer_cli.commands.closing import AnswerSummary
from transfer_cli.engine.precision import Precision
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.multilabel import MultilabelTask
from transfer_cli.tasks.regression import RegressionTask
from transfer_cli.tasks.tagging.task import TaggingTask

TAGS = TaggingTask(("O", "B-LOC", "B-PER", "I-PER"))

THINGS = {"place": ["river", "bridge", "street"], "person": ["king", "poet", "sailor"]}


def write_rows(file, count, *, share=0.5, open_share=0.4):
    """Write texts of two kinds, and others that may be of either."""
    draw = random.Random(count).random
    rows = [["text", "label"]]
    for number in range(count):
        kind = "place" if draw() < share else "person"
        thing = "one" if draw() < open_share else THINGS[kind][int(3 * draw())]
        rows.append([f"the {thing} numbered {number % 50}", kind])
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory, pretrained):
    """Return the run of the page on confidence."""
    folder = tmp_path_factory.mktemp("tickets")
    write_rows(folder / "tickets.csv", 600)
    words = words_of_page(folder, pretrained)
    finished(*words, f"run.dir={folder / 'run'}")
    return folder / "run"


def words_of_page(folder, pretrained):
    typed = commands("confidence.md")[0]
    words = [word for word in typed if not word.startswith(("init_from", "run.dir", "data.train"))]
    place = (f"data.train={folder / 'tickets.csv'}", f"init_from={pretrained}")
    more = ("loop.steps=60", "loop.evaluate_every=60 steps", "optimizer.lr=1e-2")
    return [*words, *place, *LOOP, *more]


def measures_of(run):
    return json.loads((run / "results.json").read_text())["measures"]["validation"]


def test_what_is_fitted_is_stored_measured_and_changes_no_answer(
    run, pretrained, transfer, tmp_path
):
    fitted = json.loads((run / "model" / "model.json").read_text())["task"]["fitted"]
    measures = measures_of(run)
    words = words_of_page(run.parent, pretrained)

    ended = transfer(*words, "objective.calibrate=false", "objective.abstain=null", "run.dir=plain")
    again = transfer("evaluate", run, "split=validation", "output=again.json", "device=cpu").ok()

    plain = measures_of(tmp_path / "plain")
    assert ended.code == 0
    assert 0.5 < fitted["abstain_below"] < 1
    assert {name: measures[name] for name in plain} == plain
    assert measures.keys() - plain.keys() == {
        "ece", "ece/before", "coverage", "precision_at_coverage",
    }  # fmt: skip
    assert 0 < measures["coverage"] < 1
    assert measures["precision_at_coverage"] >= 0.8
    assert "precision_at_coverage" in again.out
    measured = json.loads((tmp_path / "again.json").read_text())["measures"]["validation"]
    assert measured == pytest.approx(measures, abs=1e-6)


def test_answers_that_are_not_sure_are_null_and_the_end_tells_of_all(run, transfer, tmp_path):
    write_rows(tmp_path / "new.csv", 80, share=0.95)
    with (tmp_path / "new.csv").open("a") as file:
        file.write('"   ",place\n')
    write_rows(tmp_path / "later.csv", 40)
    Path("runs").mkdir()
    Path("runs/tickets").symlink_to(run)
    table, evaluated = commands("confidence.md")[1:]

    lines = transfer("predict", "runs/tickets", "new.csv", "device=cpu").ok()
    transfer(*table, "device=cpu").ok()
    scored = transfer(*evaluated, "device=cpu").ok()

    answers = [json.loads(line) for line in lines.out.splitlines()]
    below = json.loads((run / "results.json").read_text())["fitted"]["abstain_below"]
    for answer in answers:
        likeliest = max(answer["probabilities"], key=answer["probabilities"].get)
        assert answer["probability"] == answer["probabilities"][likeliest]
        assert answer["label"] == (likeliest if answer["probability"] >= below else None)
    assert {answer["label"] for answer in answers} > {None}
    assert [answer.get("warning") for answer in answers[-2:]] == [None, "empty"]
    with (tmp_path / "answers.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["label"] for row in rows] == [answer["label"] or "" for answer in answers]
    assert [row["warning"] for row in rows] == [*[""] * 80, "empty"]
    assert "the shares of 81 answers" in lines.err
    assert "otherwise than the labels in training" in lines.err
    unsure = sum(answer["label"] is None for answer in answers)
    assert f"unsure: {unsure} of 81" in lines.err
    assert "unsure:" in scored.err


@pytest.mark.parametrize(
    "kind",
    ["tagging", *(pytest.param(kind, marks=pytest.mark.slow)
                  for kind in ("choice", "dialog", "multilabel"))],
)  # fmt: skip
def test_every_kind_of_answer_is_calibrated(kind, transfer, task_words, read_json, tmp_path):
    words = (*task_words(kind), "loop.steps=4", "objective.calibrate=true", "objective.abstain=0.1")

    transfer(*words, "run.dir=run").ok()
    transfer("evaluate", "run", "split=validation", "output=out.json", "device=cpu").ok()

    measures = measures_of(tmp_path / "run")
    assert measures.keys() >= {"ece", "ece/before", "coverage", "precision_at_coverage"}
    again = read_json(tmp_path / "out.json")["measures"]["validation"]
    assert again == pytest.approx({name: measures[name] for name in again}, abs=1e-6)


def test_runs_together_answer_above_the_mean_of_their_thresholds(run):
    precision = Precision("fp32", torch.device("cpu"))

    two = Ensemble([open_trained(str(run), precision)] * 2, precision, 8).task
    one = Ensemble([open_trained(str(run), precision)], precision, 8).task

    assert two.abstain_below == one.abstain_below > 0


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_fit_the_same(still, tmp_path):
    write_rows(tmp_path / "tickets.csv", 600)
    # Dropout would be drawn otherwise, and lead to other weights.
    words = [*words_of_page(tmp_path, still), "objective.dropout=0"]
    finished(*words, f"run.dir={tmp_path / 'one'}")

    ended = several.torchrun(2, "-m", "transfer_cli", *words, f"run.dir={tmp_path / 'two'}")

    assert ended.returncode == 0, ended.stderr
    one, two = (
        json.loads((tmp_path / folder / "results.json").read_text()) for folder in ("one", "two")
    )
    assert two["fitted"] == pytest.approx(one["fitted"], rel=1e-3)


# --- the end of a file ---------------------------------------------------------------------------


def told(caplog, ends, answers):
    """Return what is told of answers, as labels and probabilities."""
    caplog.set_level(logging.INFO)
    for line, (label, probability) in enumerate(answers, 1):
        ends.add(label, probability, f"text {line}", line)
    ends.log_summary()
    return [record.getMessage() for record in caplog.records]


def test_the_ten_least_sure_are_told_in_order_and_few_answers_are_not(caplog):
    task = ClassificationTask(("a", "b"))
    answers = [("a", 0.4 + number / 100) for number in random.Random(0).sample(range(30), 30)]

    assert not told(caplog, AnswerSummary(task, {}, 0), answers[:19])
    lines = told(caplog, AnswerSummary(task, {}, 0), answers)

    assert any(line.startswith("unsure: 10 of 30 answers (33.3 %)") for line in lines)
    sure = [float(line.split()[2]) for line in lines[-10:]]
    assert sure == pytest.approx([0.4 + number / 100 for number in range(10)])


@pytest.mark.parametrize(
    ("task", "trained", "texts", "answers", "drifts"),
    [
        (ClassificationTask(("a", "b")), {"a": 50, "b": 50}, 100, ["a"] * 90 + ["b"] * 10, True),
        (ClassificationTask(("a", "b")), {"a": 50, "b": 50}, 100, ["a"] * 55 + ["b"] * 45, False),
        # Of few training texts as little is known as of few answers.
        (ClassificationTask(("a", "b")), {"a": 4, "b": 4}, 8, ["a"] * 70 + ["b"] * 30, False),
        (MultilabelTask(("a", "b")), {"a": 98, "b": 80}, 100, ["a|b"] * 85 + ["a"] * 15, False),
        (MultilabelTask(("a", "b")), {"a": 90, "b": 80}, 100, ["a"] * 85 + [""] * 15, True),
        (ClassificationTask(("a", "b")), {}, 0, ["a"] * 100, False),
        (TAGS, {"LOC": 50, "PER": 50}, 100, ["PER: Ann; PER: Bob"] * 90 + ["LOC: Ulm"] * 10, True),
        (TAGS, {"LOC": 50, "PER": 80}, 100,
         ["PER: Ann; LOC: Ulm"] * 50 + ["PER: B"] * 30 + ["(none)"] * 20, False),
        (TaggingTask(("N", "V"), marks_entities=False), {"N": 90, "V": 90}, 100, ["Go/V"] * 100,
         True),
        # An earlier run has counted tags.
        (TAGS, {"B-PER": 9, "O": 100}, 100, ["PER: Ann"] * 100, False),
    ],
)  # fmt: skip
def test_shares_that_differ_by_more_than_chance_are_named(
    caplog, task, trained, texts, answers, drifts
):
    lines = told(caplog, AnswerSummary(task, trained, texts), [(answer, 0.9) for answer in answers])

    assert lines[0].startswith("the shares of 100 answers")
    assert any("otherwise than the labels in training" in line for line in lines) == drifts


@pytest.mark.parametrize(
    ("kind", "counted"),
    [
        ("tagging", r"the shares of \d+ answers .* labels in training:\n  CITY +\d"),
        ("regression", r"the quartiles of \d+ answers: .+; those of the numbers in training: "),
    ],
)
def test_a_file_ends_with_what_its_kind_of_answers_tells(
    kind, counted, transfer, task_run, task_file, tmp_path
):
    (tmp_path / "in.txt").write_text("the market of Oslo\n" * 20)

    for words in (("predict", "in.txt"), ("evaluate", str(task_file(kind)))):
        ended = transfer(words[0], str(task_run(kind)), words[1], "device=cpu").ok()
        assert re.search(counted, ended.err)


def test_of_many_numbers_a_part_is_kept(caplog, monkeypatch):
    monkeypatch.setattr(closing, "MOST_VALUES", 16)
    task = RegressionTask(quartiles=(1.0, 2.0, 3.0))

    (line,) = told(caplog, AnswerSummary(task, {}, 0), [(str(n), math.nan) for n in range(1000)])

    assert line.startswith("the quartiles of 1,000 answers: ")
    parts = [float(part) for part in line.split(": ")[1].split(";")[0].split(", ")]
    assert parts == pytest.approx([250, 500, 750], abs=70)
    assert line.endswith("in training: 1, 2, 3")


def test_the_page_is_typed_on_a_run_of_these_tests():
    assert [shlex.join(words[:2]) for words in commands("confidence.md")] == [
        "finetune data=table", "predict runs/tickets", "evaluate runs/tickets",
    ]  # fmt: skip
