"""Which run of several is taken, why, and what is said of it."""

import json
import logging
import shlex
from pathlib import Path

import pytest

from tests.fake_runs import write_run, write_sweep
from transfer_cli.errors import ConfigError
from transfer_cli.report.best import best_of, choice_of, commands, learnt, reasons
from transfer_cli.report.best_of_sweep import last_words, run_of
from transfer_cli.report.collect import collect
from transfer_cli.report.compare import tasks
from transfer_cli.runs.sweep import SweepJob


def runs_of(folder):
    return collect([folder]).runs


def best(folder):
    runs = runs_of(folder)
    return best_of(runs, choice_of(learnt(runs)))


def sweep(folder, *validations, **more):
    """Write a sweep with a run for each dict of validation measures, all at chance on test."""
    words = [(f"optimizer.lr={10**-n:g}",) for n in range(1, 1 + len(validations))]
    jobs = [SweepJob(n, each, each, outcome="done") for n, each in enumerate(words)]
    write_sweep(folder, *jobs)
    for n, each in enumerate(validations):
        given = {"validation": each, "typed": words[n], "optimizer__lr": 10.0**-n, **more}
        write_run(folder / str(n), **{**given, **each.get("run", {})})
    return folder


def error(rate, **more):
    return {"error_rate": rate, **more}


def test_validation_chooses_and_the_test_split_does_not(tmp_path):
    write_run(tmp_path / "a", wrong=range(9), validation=error(10.0))
    write_run(tmp_path / "b", wrong=range(1), validation=error(20.0), optimizer__lr=0.1)

    [task] = tasks(runs_of(tmp_path))

    assert best(tmp_path).run.path == tmp_path / "a"
    assert [group.is_best for group in task.groups] == [True, False]
    assert task.groups[0].runs[0].path == tmp_path / "a"
    assert (task.best.run.path, task.sort) == (tmp_path / "a", "validation/error_rate")


def test_what_learnt_nothing_is_never_the_best_and_stands_last(tmp_path):
    write_run(tmp_path / "a", failed="no better than city", validation=error(0.0))
    write_run(tmp_path / "b", validation=error(30.0), optimizer__lr=0.1)
    write_run(tmp_path / "c", status="failed", optimizer__lr=0.2)

    [task] = tasks(runs_of(tmp_path))

    assert (best(tmp_path).run.path, best(tmp_path).among) == (tmp_path / "b", 1)
    assert [group.is_best for group in task.groups] == [True, False, False]
    assert task.groups[1].learnt_nothing == 1


@pytest.mark.parametrize(
    ("settings", "measure", "taken"),
    [
        ({}, "validation/error_rate", "0"),
        ({"loop__monitor": "loss"}, "validation/error_rate", "0"),
        ({"loop__monitor": "accuracy"}, "validation/accuracy", "1"),
        ({"sweep__objective": "validation/loss"}, "validation/loss", "2"),
        ({"sweep__objective": "test/error_rate"}, "validation/error_rate", "0"),
        ({"loop__monitor": "accuracy/gone"}, "validation/error_rate", "0"),
    ],
)
def test_a_search_then_the_monitored_then_the_headline_decides(tmp_path, settings, measure, taken):
    sweep(
        tmp_path / "s", error(10.0, accuracy=0.5), error(20.0, accuracy=0.9),
        error(30.0, accuracy=0.1, loss=0.1),
        **settings,
    )  # fmt: skip

    found = best(tmp_path / "s")

    assert (found.choice.measure, found.run.path.name) == (measure, taken)


@pytest.mark.parametrize(
    ("second", "taken", "words"),
    [
        ({"loss": 0.1}, "1", "the lower validation/loss decided"),
        ({"run": {"adaptation": "lora"}}, "1", "the fewer trained parameters decided"),
        ({}, "0", "nothing else tells them apart, and the first was taken"),
    ],
)
def test_a_tie_is_said_and_broken_by_loss_then_by_cost(tmp_path, second, taken, words):
    sweep(tmp_path / "s", error(10.0, loss=0.2), error(10.0, **{"loss": 0.2} | second))

    found = best(tmp_path / "s")
    [task] = tasks(runs_of(tmp_path / "s"))

    assert (found.run.path.name, found.decided) == (taken, words)
    assert [run.path.name for run in found.tied] == [str(1 - int(taken))]
    assert [group.is_best for group in task.groups] == [True, False]
    assert f"{words}" in " ".join(task.notes)
    assert any("a tie: " in line for line in last_words(tmp_path / "s"))


def test_by_how_much_the_best_is_ahead_and_what_a_cheaper_equal_costs_is_said(tmp_path):
    for name, rate, scheme in (("a", 0.1, "full"), ("b", 0.2, "lora"), ("c", 0.3, "lora")):
        measures = {"error_rate": 12.5 if name == "c" else 10.0, "loss": rate}
        write_run(tmp_path / name, adaptation=scheme, optimizer__lr=rate, validation=measures)

    said = list(reasons(best(tmp_path)))

    assert said[1:] == [
        f"a tie: {tmp_path / 'b'} has the same; the lower validation/loss decided",
        f"as good and cheaper: {tmp_path / 'b'} trains 80 parameters, {tmp_path / 'a'} 1,000",
        f"the next, {tmp_path / 'c'}, has 12.50 %, 2.50 points above",
    ]


def test_without_validation_nothing_is_marked_and_that_is_said(tmp_path):
    for name in ("full", "lora"):
        results = {"measures": {"test": {"error_rate": 3.0}}, "labels": ["a", "b"]}
        write_run(tmp_path / name, adaptation=name, results=results)

    [task] = tasks(runs_of(tmp_path))

    assert not any(group.is_best for group in task.groups)
    assert any("nothing was measured on a validation split" in note for note in task.notes)
    assert task.best is None


# --- what to type ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plain", "two words", "it's", "a;b$(c)", "lr=1e-3", "-m", "~root", "+x", "[a,b]"]
)
def test_the_lines_name_the_run_whatever_it_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_run(Path(name))
    [run] = runs_of(Path(f"./{name}"))

    typed = commands(run)

    for line in (typed["predict"], typed["export"]):
        word = shlex.split(line)[2]
        assert Path(word).is_dir()
        assert word[0] not in "-~+"
        assert "=" not in word.partition("/")[0]
    assert list(typed) == ["predict", "export", "compare"]


def test_a_pretrained_model_is_adapted_and_not_asked_for_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {"measures": {"validation": {"loss": 1.0}}, "labels": [], "task": None}
    write_run(Path("a b"), command="pretrain", results=results)
    [run] = runs_of(Path("a b"))

    typed = commands(run)

    assert shlex.split(typed["adapt"])[2] == "init_from='a b'"
    assert "predict" not in typed


def test_a_sweep_ends_with_its_best_run_and_the_lines_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep(Path("my sweep"), error(20.0), error(12.5))

    assert list(last_words(Path("my sweep"))) == [
        "best run by validation: my sweep/1 (optimizer.lr=0.01)",
        "  validation/error_rate 12.50 %, the lowest of 2 runs that learnt anything; "
        "the test split had no say",
        "  the next, my sweep/0, has 20.00 %, 7.50 points above",
        "  predict: transfer predict 'my sweep/1' FILE",
        "  export:  transfer export 'my sweep/1' FOLDER",
        "compare: transfer report 'my sweep'",
    ]


def test_a_sweep_without_a_best_run_says_why_and_where_to_look(tmp_path):
    sweep(tmp_path / "s", error(0.0), failed="no better than city")

    why, compare = last_words(tmp_path / "s")

    assert why == "no best run: no finished run learnt anything (1 learnt next to nothing)"
    assert compare == f"compare: transfer report {tmp_path / 's'}"


# --- a sweep in the place of a run ---------------------------------------------------------------


def test_a_sweep_stands_for_its_best_run_and_that_is_said_in_a_line(tmp_path, caplog):
    sweep(tmp_path / "s", error(20.0), error(12.5))
    caplog.set_level(logging.INFO)

    assert run_of(str(tmp_path / "s"), "run") == str(tmp_path / "s" / "1")
    [line] = caplog.messages
    assert line == (
        f"run: took {tmp_path / 's' / '1'}, the best of 2 runs of that sweep by "
        "validation/error_rate (12.50 %)"
    )


@pytest.mark.parametrize("name", ["s/1", "nowhere", ".", "hf:owner/name"])
def test_all_else_stays_as_it_is(tmp_path, monkeypatch, caplog, name):
    monkeypatch.chdir(tmp_path)
    sweep(Path("s"), error(20.0), error(12.5))

    assert run_of(name, "run") == name
    assert not caplog.messages


def refused(folder):
    with pytest.raises(ConfigError) as caught:
        run_of(str(folder), "run")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sweep_of_which_nothing_learnt_is_refused(tmp_path):
    folder = sweep(tmp_path / "s", error(0.0), error(0.0), failed="no better than city")

    assert "without a best run: no finished run learnt anything (2 learnt" in refused(folder)


def test_a_sweep_with_nothing_finished_is_refused(tmp_path):
    write_sweep(
        tmp_path / "s", SweepJob(0, ("a=1",), outcome="failed", reason="why"), SweepJob(1, ("a=2",))
    )

    assert "no finished run learnt anything (1 failed, 1 left)" in refused(tmp_path / "s")


def test_a_sweep_over_several_tasks_is_refused(tmp_path):
    folder = sweep(tmp_path / "s", error(1.0), error(2.0))
    other = folder / "1" / "config.yaml"
    other.write_text(other.read_text().replace("samples.EmbeddedSample", "trec.Trec"))

    assert "a sweep over 2 tasks, whose runs cannot be compared; name" in refused(folder)
    assert sum(line.startswith("best run by") for line in last_words(folder)) == 2


def test_a_sweep_whose_results_are_damaged_is_refused(tmp_path):
    folder = sweep(tmp_path / "s", error(1.0))
    (folder / "0" / "results.json").write_text("{")

    assert "without a best run" in refused(folder)


def test_a_damaged_result_leaves_the_others(tmp_path):
    folder = sweep(tmp_path / "s", error(1.0), error(2.0))
    (folder / "0" / "results.json").write_text(json.dumps({"measures": "none"}))

    assert run_of(str(folder), "run") == str(folder / "1")
