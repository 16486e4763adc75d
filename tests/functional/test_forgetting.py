"""`forgetting.data`: what a backbone was pretrained for, measured before and after adapting it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.records import read_metrics
from transfer_cli.assembly import datasets
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.config.build import build
from transfer_cli.data.split import Split
from transfer_cli.data.text import TextData
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.precision import Precision

FP32 = Precision("fp32", torch.device("cpu"))

MEASURES = {"loss", "token_perplexity", "word_perplexity", "bits_per_byte", "token_accuracy"}


@pytest.fixture
def adapt(transfer, adapting, read_json):
    """Return how to fine-tune with `forgetting`; gives the ended command and what was forgotten."""

    def call(preset, *words):
        usual = ("schedule=constant", "loop.steps=6", "run.dir=run")
        ended = transfer("finetune", *adapting(preset), *usual, *words).ok()
        return ended, read_json("run/results.json")["forgetting"]

    return call


@pytest.fixture
def pretrained_score(transfer, deep):
    """Return what `evaluate` says of the pretrained run on its validation text, or other text."""

    def call(*words):
        words = (*(words or ("split=validation",)), "output=score.json")
        transfer("evaluate", f"run={deep}", *words).ok()
        (measures,) = json.loads(Path("score.json").read_text())["measures"].values()
        return measures

    return call


# --- before and after --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        pytest.param("frozen", (), marks=pytest.mark.slow),
        ("feature_extraction", ("forgetting.blocks=100000",)),  # more than there are
    ],
)
def test_a_frozen_backbone_forgets_nothing(preset, words, adapt, pretrained_score):
    _, forgetting = adapt(preset, "forgetting.data=source", *words)

    assert forgetting["before"] == pytest.approx(pretrained_score(), rel=1e-6)
    assert forgetting["after"] == forgetting["before"]
    records = [r for r in read_metrics(Path("run/metrics.jsonl")) if r["kind"] == "forgetting"]
    assert records[-1] == {"kind": "forgetting", "step": 6, **forgetting["after"]}


@pytest.mark.parametrize("preset", ["full", pytest.param("adapters", marks=pytest.mark.slow)])
def test_a_backbone_that_trains_is_measured_as_it_is_afterwards(preset, adapt, pretrained_score):
    ended, forgetting = adapt(preset, "forgetting.data=source", "optimizer.lr=0.05")

    assert forgetting["before"] == pytest.approx(pretrained_score(), rel=1e-6)
    assert forgetting["after"]["loss"] != forgetting["before"]["loss"]
    assert forgetting["after"].keys() == MEASURES
    before, after = (forgetting[when]["token_perplexity"] for when in ("before", "after"))
    assert f"source     token_perplexity {before:.4g} before, {after:.4g} after" in ended.out
    # The weights that are stored, under the head of the checkpoint.
    tensors = open_pretrained("run").tensors()
    trained = open_trained("run", FP32)
    backbone = {n: t for n, t in tensors.items() if n.startswith("backbone.")}
    state = {f"backbone.{n}": t for n, t in trained.model.backbone.state_dict().items()}
    assert all(torch.equal(backbone[name], state[name]) for name in state)


def test_a_run_that_is_not_asked_measures_nothing(adapted, read_json):
    run = adapted("full").run

    assert read_json(run / "results.json")["forgetting"] is None
    assert "source " not in adapted("full").out


# --- of which text -----------------------------------------------------------------------------


def test_blocks_limit_it_to_some_that_are_spread_evenly(adapt, deep, short_text):
    _, forgetting = adapt("frozen", "forgetting.data=source", "forgetting.blocks=3")

    trained = open_trained(str(deep), FP32)
    config, start = trained.config, trained.start
    found_text = build(config.data, "data", TextData)
    place = datasets.DataPlace(config.data_dir, config.seed)
    text, _ = datasets.prepare_text(found_text, place, start.description.shape, start.tokenizer)
    split = text.splits["validation"]
    last = len(split.data) - 1
    assert last > 4
    some = Split("validation", split.data, order=np.array([0, last // 2, last]))
    wanted = evaluate(trained.model, trained.objective, some, batch=8, precision=FP32).measures
    assert forgetting["before"] == pytest.approx(wanted, rel=1e-6)
    assert "word_perplexity" not in forgetting["before"]


def test_it_can_be_measured_on_a_text_of_ones_own(adapt, pretrained_score, corpus, short_text):
    _, forgetting = adapt("full", f"forgetting.data={corpus}")

    other = ("data=text", f"data.train={short_text}", f"data.validation={corpus}")
    wanted = pretrained_score("split=validation", *other, "data.length=16")
    assert forgetting["before"]["loss"] == pytest.approx(wanted["loss"], rel=1e-6)


@pytest.mark.slow
def test_it_can_be_measured_on_a_data_set(adapt):
    _, forgetting = adapt("frozen", "data@forgetting.data=sample_text", "forgetting.blocks=5")

    assert forgetting["before"] == forgetting["after"]


@pytest.mark.slow
def test_a_moved_text_is_replaced_by_a_named_one(transfer, adapting, deep_words, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("\n".join(f"the tower number {n} is tall" for n in range(60)))
    words = ("run.dir=base", f"data.train={text}")
    transfer(*deep_words, *words).ok()
    moved = text.rename(tmp_path / "moved.txt")
    run = ("finetune", *adapting("frozen"), "init_from=base", "forgetting.data=source")

    ended = transfer(*run, "run.dir=one")
    transfer(
        *run, "data@source.data=text", f"source.data.train={moved}",
        "source.data.validation_share=0.1", "run.dir=two",
    ).ok()  # fmt: skip

    assert ended.code == 2
    assert "own.txt" in ended.err
    assert not (tmp_path / "one").exists()


# --- of which model ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_adaptation_is_measured_on_the_first_pretraining(
    adapt, transfer, adapting, read_json, tmp_path
):
    adapt("adapters", "forgetting.data=source", "optimizer.lr=0.05")
    Path("run").rename("first")

    _, forgetting = adapt("frozen", "init_from=first", "forgetting.data=source")

    first = read_json(tmp_path / "first" / "results.json")["forgetting"]
    assert forgetting["before"] == pytest.approx(first["after"], rel=1e-6)
    assert forgetting["after"] == forgetting["before"]


@pytest.mark.slow
def test_a_masked_model_is_measured_by_what_it_restores(
    transfer, deep_words, adapting, read_json, tmp_path
):
    transfer(*deep_words, "objective=mlm", "run.dir=masked").ok()

    transfer(
        "finetune", *adapting("frozen"), "init_from=masked", "forgetting.data=source", "run.dir=run"
    ).ok()

    forgetting = read_json("run/results.json")["forgetting"]
    assert forgetting["before"] == forgetting["after"]
    transfer("evaluate", "run=masked", "split=validation", "output=score.json").ok()
    wanted = read_json("score.json")["measures"]["validation"]
    assert forgetting["before"] == pytest.approx(wanted, rel=1e-6)
