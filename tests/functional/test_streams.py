"""Further streams: which losses read them, how often they are drawn, what is measured on them."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.records import read_metrics
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.data.loader import StepDataLoader
from transfer_cli.data.mixture import Mixture

CONSTANT = ("schedule=constant",)


@pytest.fixture
def drawn(monkeypatch):
    """Return the stream that each step drew, and how many examples of it, as a run goes on."""
    draws, load = [], StepDataLoader.load

    def note(self, step):
        batches = load(self, step)
        (name,) = {name for micro in batches for name in micro}
        draws.append((name, sum(len(micro[name]["tokens"]) for micro in batches)))
        return batches

    monkeypatch.setattr(StepDataLoader, "load", note)
    return draws


@pytest.fixture
def second_task(tmp_path):
    """Return the words of a second labelled table, of three labels, as the stream `more`."""
    rows = [f"the tower number {n},{['red', 'green', 'blue'][n % 3]}" for n in range(40)]
    (tmp_path / "more.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return (
        "+data@streams.more.data=table", f"streams.more.data.train={tmp_path / 'more.csv'}",
        "streams.more.data.validation_share=0.25", "+objective@losses.more=classification",
        "+losses.more.stream=more",
    )  # fmt: skip


@pytest.fixture
def run(adapt):
    """Return how to fine-tune on several streams; gives the ended command."""
    return lambda preset, *words, ends=0: adapt(preset, *CONSTANT, *words, ends=ends)


def records(kind):
    return [r for r in read_metrics(Path("run/metrics.jsonl")) if r["kind"] == kind]


# --- text beside a task ------------------------------------------------------------------------


def test_unlabelled_text_trains_and_is_measured_beside_the_task(run, drawn, read_json):
    run("full", "adaptation=multitask", "data@streams.second.data=sample_text",
        "streams.second.data.length=16", "mixing.power=0")  # fmt: skip

    assert {name for name, _ in drawn} == {"main", "second"}
    for record in records("validation"):
        assert {"loss", "accuracy", "second/loss", "second/token_perplexity"} <= record.keys()
    results = read_json("run/results.json")
    assert "accuracy" in results["measures"]["validation"]
    assert results["seen"]["examples"] == sum(count for _, count in drawn)
    losses = [record["second/loss"] for record in records("validation")]
    assert losses[-1] < losses[0]


def test_a_step_has_the_batch_and_the_loss_of_the_stream_that_it_drew(run, drawn):
    run("multitask", "streams.second.batch=3", "mixing.power=0")

    for record, (name, count) in zip(records("train"), drawn, strict=True):
        assert count == {"main": 8, "second": 3}[name]
        terms = {key for key in record if key.startswith("loss/")}
        # One curve of a step's loss would mix what cannot be compared.
        assert terms == {f"loss/{name}/loss"}
        assert record["loss"] == pytest.approx(record[f"loss/{name}/loss"])
    assert {name for name, _ in drawn} == {"main", "second"}


@pytest.mark.slow
def test_a_validation_may_score_some_examples_of_a_stream(run, read_json):
    run("multitask", "streams.second.scored=1", "run.dir=some")
    run("multitask", "streams.second.scored=null", "run.dir=whole")

    measures = [
        read_json(Path(folder) / "results.json")["measures"]["validation"]
        for folder in ("some", "whole")
    ]
    assert "second/word_perplexity" not in measures[0]
    assert "second/word_perplexity" in measures[1]
    assert measures[0]["second/loss"] != measures[1]["second/loss"]


@pytest.mark.slow
def test_a_batch_of_a_stream_in_portions_is_the_same_step(transfer, deep_words, adapting, drawn):
    transfer(*deep_words, "model.dropout=0", "run.dir=still").ok()
    still = ("init_from=still", "objective.dropout=0", "optimizer=sgd", "optimizer.lr=0.1")
    words = adapting("multitask", *still, "mixing.power=0")

    for portion in (8, 3):
        transfer(
            "finetune", *words, *CONSTANT, f"loop.micro_batch={portion}", f"run.dir=run{portion}"
        ).ok()

    one, other = (open_pretrained(f"run{portion}").tensors() for portion in (8, 3))
    assert one.keys() == other.keys()
    assert all(np.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_annealed_sampling_ends_nearer_to_equal_parts(run, drawn, transfer):
    words = ("mixing.anneal=true", "mixing.target_only=4 steps", "loop.steps=null")
    ended = run("multitask", *words, "loop.epochs=2")

    assert {name for name, _ in drawn} == {"main", "second"}
    assert re.search(rf"steps +{len(drawn)} of 8 sequences", ended.err)
    longer = transfer("plan", "finetune", "resume=run", "loop.epochs=4").ok().out
    assert "mixing follows from the length: some examples come again" in " ".join(longer.split())


# --- two tasks ---------------------------------------------------------------------------------


def test_a_second_task_has_its_own_head_labels_and_measures(run, second_task, drawn, read_json):
    run("full", *second_task, "mixing.power=0", "seed=5", "loop.steps=16")

    mixture = Mixture({"main": 24, "more": 30}, total=16, steps_per_epoch=6, seed=5, power=0)
    assert [name for name, _ in drawn] == [mixture.draw(step)[0] for step in range(16)]
    assert {name for name, _ in drawn} == {"main", "more"}
    last = records("validation")[-1]
    assert {"accuracy", "more/accuracy", "more/loss", "more/macro_f1"} <= last.keys()
    assert {"accuracy/person", "accuracy/place"} <= last.keys()
    assert {"more/accuracy/red", "more/accuracy/green", "more/accuracy/blue"} <= last.keys()
    weights = open_pretrained("run").tensors()
    assert weights["heads.class.linear.weight"].shape[0] == 2
    assert weights["heads.class_more.linear.weight"].shape[0] == 3
    assert read_json("run/results.json")["labels"] == ["person", "place"]
    first = records("train")[0]
    assert {"rate/head.class", "rate/head.class_more"} <= first.keys()


def test_a_second_head_on_the_same_texts_is_another_one(run):
    run("full", "+objective@losses.more=classification", "losses.more.weight=0.5")

    weights = open_pretrained("run").tensors()
    heads = [weights[f"heads.{name}.linear.weight"] for name in ("class", "class_more")]
    assert heads[0].shape == heads[1].shape
    assert not np.allclose(*heads)
    first = records("train")[0]
    parts = first["loss/main/loss"] + 0.5 * first["loss/more/loss"]
    assert first["loss"] == pytest.approx(parts)


def test_a_run_on_two_tasks_scores_and_predicts_the_main_one(
    run, second_task, transfer, few_questions, read_json
):
    run("full", *second_task)

    scored = transfer("evaluate", "run=run", "split=validation", "output=score.json")
    said = transfer("predict", "run=run", f"input={few_questions}")

    assert scored.code == said.code == 0, scored.err + said.err
    measured = read_json("score.json")["measures"]["validation"]
    expected = read_json("run/results.json")["measures"]["validation"]
    assert measured == pytest.approx({name: expected[name] for name in measured})
    assert {"loss", "accuracy", "accuracy/person"} <= measured.keys()
    assert len(said.out.splitlines()) == 30


@pytest.mark.slow
@pytest.mark.parametrize(("monitor", "best"), [("more/loss", min), ("more/accuracy", max)])
def test_what_is_best_can_be_decided_by_the_second_task(monitor, best, run, second_task, read_json):
    run("full", *second_task, f"loop.monitor={monitor}", "loop.evaluate_every=1 steps",
        "mixing.power=0")  # fmt: skip

    scores = {r["step"]: r[monitor] for r in records("validation")}
    assert len(set(scores.values())) > 1
    assert scores[read_json("run/results.json")["best_step"]] == best(scores.values())
