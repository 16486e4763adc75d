"""What a run cost: operations counted, seconds and energy added up, and told before by `plan`."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.functional.conftest import LOOP
from transfer_cli import progress as module

SIGNS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def spent(run):
    return json.loads((Path(run) / "timing.json").read_text())["spent"]


def cost(run):
    return json.loads((Path(run) / "results.json").read_text())["cost"]


@pytest.fixture
def words(corpus, tiny, loop):
    """Return the command line of a short run that saves every two steps."""
    return ("pretrain", "data=text", f"data.train={corpus}", "schedule=constant", *tiny, *loop)


def test_every_run_says_what_its_steps_took_and_what_was_spent(pretrained, finetuned, read_json):
    for run in (pretrained, finetuned):
        results = read_json(run / "results.json")
        assert 0 < results["cost"]["flops_real"] <= results["cost"]["flops"]
        assert results["cost"]["tokens"] == results["seen"]["tokens"]
        expenses = spent(run)
        assert expenses["flops"] == results["cost"]["flops"]
        assert expenses["device_seconds"] >= read_json(run / "timing.json")["seconds"]
        assert expenses["joules"] is expenses["kg_co2"] is None
        assert expenses["joules_source"] == "cost.energy=off"


def test_work_that_is_done_again_is_spent_twice_and_counts_once(transfer, words):
    transfer(*words, "run.dir=run", "loop.steps=6", "checkpoint.keep=2").ok()
    before, once = spent("run"), cost("run")
    shutil.rmtree("run/checkpoints/step-00000006")
    Path("run/status.json").write_text('{"status": "stopped"}')

    ended = transfer("pretrain", "resume=run").ok()

    assert "going on after step 4" in ended.err
    assert cost("run") == once
    again = spent("run")["flops"] - before["flops"]  # two steps of six, of texts not all as long
    assert again == pytest.approx(once["flops"] / 3, rel=0.2)
    assert spent("run")["device_seconds"] > before["device_seconds"]


def test_states_that_are_kept_are_computed_before_the_steps(
    transfer, pretrained, loop, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))  # others keep the same states
    words = ("finetune", "data=sample_questions", f"init_from={pretrained}", *loop,
             "adaptation=frozen", "loop.steps=3", "seed=3")  # fmt: skip

    for run in ("computed", "taken"):
        transfer(*words, f"run.dir={run}").ok()

    taken = cost("taken")
    assert cost("computed") == taken
    assert taken["flops_of_states"] > 100 * taken["flops"]
    assert spent("taken")["flops"] == taken["flops"]
    assert spent("computed")["flops"] == taken["flops"] + taken["flops_of_states"]


# --- lengths in tokens and operations ----------------------------------------------------------


def test_a_run_ends_by_tokens_or_by_operations_at_the_step_that_reaches_them(transfer, words):
    one = (*words, "loop.batch=4", "loop.steps=null", "schedule=linear")
    transfer(*one, "run.dir=tokens", "loop.tokens=1500").ok()
    reached = cost("tokens")
    by_flops = f"loop.flops={reached['flops']}"
    transfer(*one, "run.dir=flops", by_flops).ok()

    of_step = reached["tokens"] / json.loads(Path("tokens/results.json").read_text())["best_step"]
    assert abs(reached["tokens"] - 1500) < of_step  # the last block of an epoch is short
    assert cost("flops")["flops"] == pytest.approx(reached["flops"], rel=0.05)
    assert "loop.tokens=3000" in transfer("pretrain", "resume=tokens").err
    transfer("pretrain", "resume=tokens", "loop.tokens=3000").ok()
    assert abs(cost("tokens")["tokens"] - 3000) < of_step


@pytest.mark.parametrize(
    "lengths",
    [("loop.tokens=1e5", "loop.flops=1e9"), ("loop.steps=9", "loop.tokens=1e5"),
     ("loop.steps=null", "loop.epochs=2", "loop.flops=1e9"), ("loop.tokens=0",)],
)  # fmt: skip
def test_two_lengths_are_refused(transfer, words, lengths):
    ended = transfer(*words, *lengths)

    assert ended.code == 2
    assert "loop.tokens" in ended.err or "loop.flops" in ended.err
    assert not Path("runs").exists()


def test_labelled_texts_have_no_length_in_tokens(transfer, pretrained):
    words = ("finetune", "data=sample_questions", f"init_from={pretrained}", "adaptation=full")

    ended = transfer(*words, "loop.tokens=1e4")

    assert (ended.code, ended.err.count("loop.tokens:")) == (2, 1)


# --- energy ------------------------------------------------------------------------------------


def test_a_processor_says_why_it_has_no_energy(transfer, words):
    ended = transfer(*words, "run.dir=run", "loop.steps=2", "cost.energy=auto").ok()

    assert "energy: not known: only a GPU" in ended.err
    assert spent("run")["joules"] is None
    assert "GPU" in spent("run")["joules_source"]


# --- the plan ----------------------------------------------------------------------------------


def told(text):
    """Return all numbers of operations in the line of a plan, the whole run's first."""
    (line,) = (line for line in text.splitlines() if line.startswith("flops: "))
    amounts = re.findall(r"([\d.]+) ([kMGT]?)FLOP", line)
    return [float(number) * SIGNS[sign] for number, sign in amounts]


@pytest.mark.parametrize("steps", [[], ["plan.steps=0"]])
def test_a_plan_tells_the_operations_of_the_run(transfer, words, steps):
    planned = transfer("plan", *words, "loop.steps=4", *steps).ok()
    transfer(*words, "run.dir=run", "loop.steps=4").ok()

    assert told(planned.out)[0] == pytest.approx(cost("run")["flops"], rel=0.03)


def test_a_plan_tells_what_a_step_of_each_stage_takes(transfer, adapting):
    ended = transfer("plan", "finetune", *adapting("gradual_unfreezing"), "plan.steps=2")

    whole, *stages = told(ended.out)
    assert len(stages) > 2
    assert stages == sorted(stages)
    assert stages[-1] > 2 * stages[0]
    assert whole > 12 * stages[0]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_processes_add_up(shell, transfer, words, tmp_path):
    more = ("loop.steps=2", "model.dropout=0")
    transfer(*words, *more, "run.dir=one").ok()
    process = shell(*words, *more, "run.dir=two", "devices=2")
    _, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    assert cost("two") == cost("one")
    assert spent("two")["flops"] == spent("one")["flops"]
    seconds = json.loads(Path("two/timing.json").read_text())["seconds"]
    assert spent("two")["device_seconds"] > 1.9 * seconds


# --- progress ------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch):
    """Return what would have been shown, however short: (total, done) by name."""
    progress = {}

    def note(ended, what, total, unit, done):
        ended.wait()
        whole = total() if callable(total) else total
        progress.setdefault(what, []).append((whole, done()))

    monkeypatch.setattr(module, "_show", note)
    return progress


def test_text_is_counted_to_its_end(transfer, shown, corpus):
    words = ("data=text", f"data.train={corpus}", "data.validation_share=0.1", "tokenizer.size=600")

    transfer("prepare", *words, f"data_dir={corpus.parent / 'own'}").ok()

    assert shown["learning tokens"] == [(None, 0)]
    size = corpus.stat().st_size
    assert shown[f"reading {corpus}"] == [(size, size)]
    for what, share in (
        ("counting words", 0.9), ("encoding the train text", 0.9),
        ("encoding the validation text", 0.1),
    ):  # fmt: skip
        [(total, done)] = shown[what]
        assert total == round(share * size)
        assert done == pytest.approx(total, rel=0.2)


def test_an_adapted_model_is_scored_asked_and_exported_to_the_end(
    transfer, shown, pretrained, questions
):
    words = ("data=table", f"data.train={questions}", "adaptation=frozen", "loop.steps=4")
    transfer("finetune", *words, f"init_from={pretrained}", *LOOP, "run.dir=run").ok()
    transfer("predict", "run=[run,run]", f"input={questions}", "output=labels.csv")
    transfer("evaluate", "run=run")
    transfer("export", "run=run", "to=out")

    rows = 60
    [(total, done)] = shown.pop(f"reading {questions}")[:1]
    assert rows <= done <= total == rows + 1
    assert shown["exporting as hf"] == [(None, 0)]
    # A line holds the names of the columns.
    assert shown["predicting"] == [(2 * (rows + 1), 2 * rows)]
    for what in ("encoding", "features", "scoring validation"):
        for total, done in shown[what]:
            assert 0 < done == total, what


def test_fisher_information_is_counted(transfer, shown, pretrained):
    words = ("data=sample_questions", "adaptation=ewc")
    transfer(
        "finetune", *words, "adaptation.penalty.sequences=4", f"init_from={pretrained}", *LOOP,
        "loop.steps=1", "data_dir=own",
    ).ok()  # fmt: skip

    assert shown["Fisher information"] == [(4, 4)]


@pytest.mark.slow
def test_a_report_counts_runs_and_comparisons(transfer, shown, deep):
    for seed, rate in ((0, 0.01), (1, 0.01), (0, 0.02), (1, 0.02)):
        words = ("data=sample_questions", f"init_from={deep}", *LOOP, "loop.steps=2")
        of_run = (f"optimizer.lr={rate}", f"seed={seed}", f"run.dir=runs/{rate}-{seed}")
        transfer("finetune", *words, *of_run)

    transfer("report", "runs").ok()

    assert shown["reading"] == [(None, 4)]
    assert shown["comparing groups"] == [(2, 2)]
