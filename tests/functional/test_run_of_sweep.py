"""A sweep's folder where a run is named: its best run, in every command that takes one."""

import json
import shutil
from pathlib import Path

import pytest

from tests.fake_runs import write_sweep
from transfer_cli.runs.sweep import SweepJob


def sweep_of(run, folder, *, failed=None):
    """Write a sweep of two runs: one that learnt nothing, with no error, and a copy of `run`."""
    write_sweep(folder, *(SweepJob(n, (f"seed={n}",), outcome="done") for n in range(2)))
    for number, reason in enumerate(("no better than city", failed)):
        # One folder deeper than the run: what it refers to is found by its whole path.
        shutil.copytree(run, folder / str(number))
        file = folder / str(number) / "results.json"
        results = json.loads(file.read_text()) | {"failed": reason}
        if number == 0:
            results["measures"]["validation"] |= {"error_rate": 0.0, "word_perplexity": 1.0}
        file.write_text(json.dumps(results))
    return folder


@pytest.fixture
def adapted(finetuned, tmp_path):
    return sweep_of(finetuned, tmp_path / "my sweep")


COMMANDS = {
    "evaluate": ("evaluate", "{}", "device=cpu"),
    "evaluate run=": ("evaluate", "run={}", "split=validation", "device=cpu"),
    "predict": ("predict", "{}", "texts.txt", "device=cpu"),
    "predict of two": ("predict", "run=['{}','{}/1']", "input=texts.txt", "device=cpu"),
    "export": ("export", "{}", "out"),
    "diff": ("diff", "{}", "{}/0"),
    "inspect": ("inspect", "data=sample_questions", "init_from='{}'", "samples=0"),
    "plan": ("plan", "finetune", "experiment=sample/finetune", "init_from='{}'"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_sweep_is_its_best_run_and_that_is_said_once(transfer, adapted, words):
    Path("texts.txt").write_text("Who wrote it ?\n")

    ended = transfer(*(word.format("my sweep", "my sweep") for word in words)).ok()

    assert ended.err.count(": took my sweep/1, the best of 1 run of that sweep by ") == 1


@pytest.mark.parametrize("words", [("generate", "{}", "The"), ("fill", "{}", "The [MASK] .")])
def test_a_sweep_of_language_models_speaks_for_its_best(transfer, pretrained, tmp_path, words):
    sweep_of(pretrained, tmp_path / "lms")

    ended = transfer(*(word.format("lms") for word in words), "device=cpu")

    assert ": took lms/1, the best of 1 run of that sweep by validation/" in ended.err
    # The run is causal: it goes on with a text and fills no gap.
    assert ended.code == (0 if words[0] == "generate" else 2), ended.err


def test_a_run_that_begins_from_a_sweep_remembers_which_run_it_was(transfer, adapted, loop):
    transfer(
        "finetune", "data=sample_questions", "init_from='my sweep'", *loop, "loop.steps=1",
        "run.dir=next",
    ).ok()  # fmt: skip

    assert "init_from: my sweep/1\n" in Path("next/config.yaml").read_text()


@pytest.mark.parametrize("command", ["evaluate", "export", "generate", "diff"])
def test_a_sweep_without_a_best_run_is_refused_in_a_line(transfer, finetuned, tmp_path, command):
    sweep_of(finetuned, tmp_path / "none", failed="no better than person")
    more = {"export": ["out"], "generate": ["The"], "diff": ["none/0"]}.get(command, [])

    ended = transfer(command, "none", *more)

    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "none is a sweep without a best run: no finished run learnt anything (2 l" in ended.err
    assert not Path("out").exists()
