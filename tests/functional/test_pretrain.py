"""`transfer pretrain`: what it leaves behind, and that it learns from any text."""

import gzip
import json
import math

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.records import read_metrics
from transfer_cli.data.library_tokenizer import LibraryTokenizer
from transfer_cli.model.weights import read_description, read_weights

FILES = {
    "config.yaml", "overrides.txt", "presets.json", "environment.json", "status.json",
    "results.json", "metrics.jsonl", "tensorboard", "checkpoints", "model", "plan.txt",
    "timing.json", "speed.jsonl", "items.jsonl", ".lock",
    "origins.json",
}  # fmt: skip

TEXT_MEASURES = {
    "loss", "token_perplexity", "word_perplexity", "bits_per_byte", "token_accuracy",
}  # fmt: skip


# --- the run directory ---------------------------------------------------------------------------


def test_the_run_directory_is_complete_and_holds_nothing_else(pretrained, read_json):
    assert {path.name for path in pretrained.iterdir()} == FILES
    assert {path.name for path in (pretrained / "model").iterdir()} == {
        "weights.safetensors",
        "model.json",
        "tokenizer.json",
        "meta.json",
    }
    assert {path.name for path in (pretrained / "checkpoints").iterdir()} == {
        "best",
        "step-00000004",
        "step-00000006",
    }
    assert read_json(pretrained / "status.json") == {"status": "finished"}


def test_the_config_is_resolved_and_what_was_typed_is_kept(pretrained):
    text = (pretrained / "config.yaml").read_text()
    config = yaml.safe_load(text)

    assert "${" not in text
    assert config["model"]["width"] == 32
    assert config["loop"]["steps"] == 6
    assert "model.width=32" in (pretrained / "overrides.txt").read_text().splitlines()


def test_the_results_are_what_reports_read(pretrained, read_json):
    found = read_json(pretrained / "results.json")

    assert found["command"] == "pretrain"
    assert found["seed"] == 0
    assert found["presets"]["data"] == "sample_text"
    assert found["presets"]["objective"] == "clm"
    assert found["presets"]["model"] == "tiny"
    assert set(found["measures"]) == {"validation", "test"}
    for measures in found["measures"].values():
        assert set(measures) == TEXT_MEASURES
        assert all(isinstance(value, float) for value in measures.values())
        assert measures["token_perplexity"] == pytest.approx(math.exp(measures["loss"]))
    assert found["parameters"]["total"] == found["parameters"]["trainable"] > 0
    assert found["seen"]["steps"] == 6
    assert found["seen"]["examples"] == 6 * 8
    assert found["seen"]["tokens"] == 6 * 8 * 32
    assert {"python", "torch", "transfer-cli"} <= set(found["versions"])


def test_what_depends_on_the_clock_is_apart(pretrained, read_json):
    timing = read_json(pretrained / "timing.json")
    speeds = read_metrics(pretrained / "speed.jsonl")

    assert timing["seconds"] > 0
    assert timing["peak_memory_bytes"] > 2**20
    assert set(timing["per_second"]) == {"tokens", "examples"}
    assert not set(timing) & set(read_json(pretrained / "results.json"))
    assert [speed["step"] for speed in speeds] == [1, 2, 3, 4, 5, 6]
    assert all(speed["tokens_per_second"] > 0 for speed in speeds)


def test_a_record_is_written_for_each_step_and_each_validation(pretrained):
    records = read_metrics(pretrained / "metrics.jsonl")
    steps = {
        kind: [record["step"] for record in records if record["kind"] == kind]
        for kind in ("train", "validation", "test")
    }

    assert steps == {"train": [1, 2, 3, 4, 5, 6], "validation": [3, 6], "test": [6]}
    first = records[0]
    assert {"loss", "gradient_norm", "stage"} <= set(first)
    assert {"rate/embeddings", "rate/block.0"} <= set(first)


def test_the_curves_are_the_records_and_the_config_is_with_them(pretrained):
    curves = EventAccumulator(str(pretrained / "tensorboard")).Reload()
    scalars, texts = curves.Tags()["scalars"], curves.Tags()["tensors"]

    losses = [record["loss"] for record in read_metrics(pretrained / "metrics.jsonl")
              if record["kind"] == "train"]  # fmt: skip
    assert [event.value for event in curves.Scalars("train/loss")] == pytest.approx(losses)
    assert {
        "train/gradient_norm",
        "train/tokens_per_second",
        "train/rate/embeddings",
        "train/rate/block.0",
        *(f"validation/{name}" for name in TEXT_MEASURES),
        *(f"weights_kept/test/{name}" for name in TEXT_MEASURES),
    } <= set(scalars)
    assert {"config/text_summary", "validation/samples/text_summary"} <= set(texts)
    shown = curves.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "width: 32" in shown


def test_the_model_folder_is_all_that_the_next_run_needs(pretrained):
    description = read_description(pretrained / "model")
    tokenizer = LibraryTokenizer.load(pretrained / "model" / "tokenizer.json")
    weights = read_weights(pretrained / "model")

    assert description.shape.direction == "causal"
    assert description.tokenizer_hash == tokenizer.hash
    assert weights["backbone.token_embedding.weight"].shape == (tokenizer.size, 32)


def test_the_best_weights_are_the_models(pretrained, read_json):
    best = pretrained / "checkpoints" / "best"
    measured = {
        record["step"]: record["loss"]
        for record in read_metrics(pretrained / "metrics.jsonl")
        if record["kind"] == "validation"
    }

    step = read_json(pretrained / "results.json")["best_step"]
    assert measured[step] == min(measured.values())
    assert read_json(best / "meta.json")["step"] == step
    model = pretrained / "model" / "weights.safetensors"
    assert model.read_bytes() == (best / "weights.safetensors").read_bytes()


# --- word vectors ---


def test_embeddings_begin_as_word_vectors_and_a_resume_does_not_read_them(
    transfer, tiny, loop, tmp_path
):
    path = tmp_path / "glove.txt"
    path.write_text(f"the {' '.join(['0.5'] * 32)}\nnoword {' '.join(['9'] * 32)}\n")
    words = (
        "pretrain", "data=sample_text", *tiny, *loop, "loop.steps=1", "optimizer.lr=1e-6",
        "run.dir=run",
    )  # fmt: skip

    ended = transfer(*words, f"model.embeddings={path}").ok()

    assert "1 of 600 tokens begin as a vector" in ended.err
    tokenizer = LibraryTokenizer.load(tmp_path / "run" / "model" / "tokenizer.json")
    table = read_weights(tmp_path / "run" / "model")["backbone.token_embedding.weight"]
    row = table[tokenizer.encode("the")[0]]
    assert row.sub(0.5).abs().max() < 1e-4
    assert table.abs().gt(0.2).any(1).sum() == 1
    path.unlink()
    transfer("pretrain", "resume=run", "loop.steps=2").ok()
    ended = transfer(*words, f"model.embeddings={path}", "model.width=64", "run.dir=other")
    assert (ended.code, (tmp_path / "other").exists()) == (2, False)
    assert "model.embeddings: " in ended.err


# --- other runs ----------------------------------------------------------------------------------


def test_a_run_without_a_name_gets_one_by_date_and_choice(transfer, corpus, tiny, loop, tmp_path):
    ended = transfer(
        "pretrain", "data=text", f"data.train={corpus}", *tiny, *loop, "loop.steps=1"
    ).ok()

    (run,) = (tmp_path / "runs" / "pretrain").iterdir()
    assert run.name.endswith("-text-clm-tiny")
    assert f"next       transfer finetune init_from=runs/pretrain/{run.name}" in ended.out


def test_own_texts_may_be_packed_and_in_json(transfer, corpus, tiny, loop, tmp_path, read_json):
    lines = corpus.read_text().splitlines()
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"body": line}) + "\n" for line in lines)
    (tmp_path / "held-out.txt").write_text("\n".join(lines[:40]))
    words = ("data=text", "data.train=*.jsonl.gz", "data.field=body", "data.test=held-out.txt")

    transfer("pretrain", *words, *tiny, *loop, "loop.steps=1", "run.dir=run").ok()

    assert set(read_json(tmp_path / "run" / "results.json")["measures"]) == {"validation", "test"}


def test_the_same_command_gives_the_same_weights_and_another_seed_others(
    transfer, corpus, tiny, loop, tmp_path
):
    words = ("data=text", f"data.train={corpus}", *tiny, *loop, "loop.steps=3")

    for name, seed in {"one": 1, "two": 1, "other": 2}.items():
        transfer("pretrain", *words, f"run.dir={name}", f"seed={seed}").ok()

    one, two, other = (
        (tmp_path / name / "model" / "weights.safetensors").read_bytes()
        for name in ("one", "two", "other")
    )
    assert one == two
    assert one != other


def test_pretraining_goes_on_from_another_run(transfer, pretrained, corpus, loop, tmp_path):
    words = ("data=text", f"data.train={corpus}", f"init_from={pretrained}", *loop, "loop.steps=1")

    ended = transfer("pretrain", *words, "optimizer.lr=1e-30", "run.dir=run").ok()

    assert "new:" not in ended.err
    before, after = read_weights(pretrained / "model"), read_weights(tmp_path / "run" / "model")
    assert all(before[name].equal(after[name]) for name in before)


# --- loop.minutes: a run ends by the clock, with its rate decayed --------------------------------

SECONDS = 1.5


@pytest.fixture
def bounded(transfer, corpus, tiny, loop, tmp_path):
    """Train by the clock; return the run directory."""
    words = (
        "data=text",
        f"data.train={corpus}",
        *tiny,
        *loop,
        "optimizer.lr=1e-3",
        "schedule=linear",
        "schedule.warmup=0",
    )
    transfer(
        "pretrain", *words, "loop.steps=1000000", f"loop.minutes={SECONDS / 60}", "run.dir=run",
        "loop.evaluate_every=1000 steps", "checkpoint.every=1000 steps",
    ).ok()  # fmt: skip
    return tmp_path / "run"


def rates(run):
    records = [each for each in read_metrics(run / "metrics.jsonl") if each["kind"] == "train"]
    return [each[next(name for name in each if name.startswith("rate/"))] for each in records]


def seconds(run):
    return json.loads((run / "timing.json").read_text())["seconds"]


@pytest.mark.slow
def test_a_run_by_the_clock_ends_in_time_at_the_end_of_its_rate(bounded):
    found = rates(bounded)

    assert SECONDS <= seconds(bounded) < 10 * SECONDS
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.3 * found[0]
    assert json.loads((bounded / "status.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_resume_goes_on_with_the_time_that_is_left(transfer, bounded):
    steps = len(rates(bounded))

    nothing_left = transfer("pretrain", f"resume={bounded}")
    transfer("pretrain", f"resume={bounded}", f"loop.minutes={2 * SECONDS / 60}").ok()

    assert nothing_left.code == 2
    assert "is finished" in nothing_left.err
    assert "loop.minutes" in nothing_left.err
    assert seconds(bounded) >= 2 * SECONDS
    # Half of the time is used when it goes on.
    assert rates(bounded)[steps] <= 0.51e-3
