"""Models for long texts: a memory of the text before a block, strided and fixed attention."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.functional.conftest import LOOP

# --- memory --------------------------------------------------------------------------------------

XL = (
    "model=xl-tiny", "model.width=32", "model.heads=2", "model.depth=2", "model.feedforward=64",
    "model.positions=32", "model.recurrence=48", "tokenizer.size=600",
)  # fmt: skip


@pytest.fixture(scope="module")
def words(corpus, loop):
    steps = ("schedule=constant", "loop.steps=6")
    return ("pretrain", "data=text", f"data.train={corpus}", *XL, *loop, *steps)


@pytest.fixture
def run(transfer, words):
    transfer(*words, "run.dir=run").ok()
    return "run"


def test_it_is_scored_by_what_it_remembers(transfer, run, read_json):
    at = ("evaluate", run, "device=cpu")
    found = {}
    for name, given in {
        "again": (),
        "the same": ("evaluation.context=48", "batch=3"),
        "less": ("evaluation.context=16",),
        "windows": ("evaluation.context=48", "evaluation.by=windows"),
    }.items():
        transfer(*at, *given, f"output={name}.json").ok()
        scored = read_json(f"{name}.json")
        found[name] = scored["measures"]["validation"]["loss"]
        context = scored["counts"]["validation"]["context"]
        assert context["by"] == ("windows" if name == "windows" else "memory")

    results = read_json("run/results.json")
    assert results["context"] == {"by": "memory", "tokens": 48, "stride": 32}
    assert found["again"] == pytest.approx(results["measures"]["validation"]["loss"], rel=1e-5)
    assert found["the same"] == pytest.approx(found["again"], rel=1e-6)
    assert found["less"] != pytest.approx(found["again"], rel=1e-6)


def test_it_goes_on_beyond_the_length_of_its_blocks(transfer, run, read_json):
    transfer("generate", run, "Lima", "max_tokens=90", "device=cpu", "output=out.jsonl").ok()

    row = read_json("out.jsonl")
    assert row["tokens"] == 90
    assert row["ended"] == "max_tokens"

    refused = transfer("generate", run, "Lima", "cache=false", "device=cpu")
    assert refused.code == 2
    assert "this model sees the 48 tokens before each" in refused.err


def test_labelled_texts_are_learnt_without_a_memory(transfer, run, loop):
    transfer(
        "finetune", f"init_from={run}", "data=sample_questions", *loop, "loop.steps=1", "run.dir=of"
    ).ok()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_do_what_one_does_and_one_takes_up_what_they_remember(
    transfer, words, shell, read_json
):
    fixed = (*words, "model.dropout=0", "loop.micro_batch=3")
    transfer(*fixed, "run.dir=one").ok()
    for given in (("run.dir=two",), ("run.dir=half", "loop.steps=3")):
        ended = shell(*fixed, *given, "devices=2")
        assert ended.wait(240) == 0, ended.stderr.read()
        ended.communicate()
    transfer("pretrain", "resume=half", "loop.steps=6", "devices=1").ok()

    for other in ("two", "half"):
        one, found = (load_file(f"{name}/model/weights.safetensors") for name in ("one", other))
        assert_close(found, one, rtol=0, atol=1e-5)
        losses = [read_json(f"{name}/results.json")["measures"] for name in ("one", other)]
        assert losses[1]["validation"] == pytest.approx(losses[0]["validation"], rel=1e-5)


# --- sparse attention ----------------------------------------------------------------------------

WORDS = (
    "pretrain", "objective=clm", "data=sample_text", "model=toy", "model.window=8",
    "model.width=16", "model.heads=2", "model.feedforward=24", "tokenizer.size=600", *LOOP,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["strided", "fixed"])
def test_it_trains_as_it_stands_and_its_model_goes_on(attention, transfer):
    transfer(*WORDS, f"model.attention={attention}", "loop.steps=2", "run.dir=run").ok()

    assert json.loads(Path("run/model/model.json").read_text())["shape"]["attention"] == attention
    said = [
        transfer("generate", "run", "The", "max_tokens=20", "temperature=0", f"cache={cache}").out
        for cache in ("true", "false")
    ]
    assert said[0] == said[1] != ""
    transfer("analyze", "run", "analysis=attention").ok()
    refused = transfer("export", "run=run", "to=there")
    assert refused.code == 2
    assert f"attention={attention}" in refused.err
    adapted = ("finetune", "init_from=run", "data=sample_questions", "adaptation=lora", *LOOP)
    transfer(*adapted, "loop.steps=2", "run.dir=adapted").ok()


def test_a_plan_counts_the_pairs_that_are_computed(transfer):
    found = {}
    for attention in ("full", "strided"):
        ended = transfer("plan", *WORDS, f"model.attention={attention}", "plan.steps=0").ok()
        [line] = [line for line in ended.out.splitlines() if line.startswith("flops: ")]
        found[attention] = float(re.search(r"a step takes ([\d.]+) MFLOP", line)[1])

    # 8 texts of 64, 2 blocks, 4 operations for 16 numbers of all heads, in three passes: of half
    # the heads 8 x 8 x 16 pairs are left of 64 x 64, of half 8 x 8 x 8.
    saved = 8 * 2 * 4 * 16 * 3 * (64 * 64 - (1024 + 512) / 2) / 1e6
    assert found["full"] - found["strided"] == pytest.approx(saved, abs=0.2)
