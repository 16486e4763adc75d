"""`transfer pretrain`: what it leaves behind, and that it learns from any text."""

import gzip
import itertools
import json
import math
import os
import random
import re
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close

from tests.functional.conftest import LOOP
from tests.published import publish, reference
from tests.records import read_metrics
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.engine.precision import Precision
from transfer_cli.model.weights import read_description, read_weights
from transfer_cli.objectives.base import Encoding

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
    results = read_json(pretrained / "results.json")

    assert results["command"] == "pretrain"
    assert results["seed"] == 0
    assert results["presets"]["data"] == "sample_text"
    assert results["presets"]["objective"] == "clm"
    assert results["presets"]["model"] == "tiny"
    assert set(results["measures"]) == {"validation", "test"}
    for measures in results["measures"].values():
        assert set(measures) == TEXT_MEASURES
        assert all(isinstance(value, float) for value in measures.values())
        assert measures["token_perplexity"] == pytest.approx(math.exp(measures["loss"]))
    assert results["parameters"]["total"] == results["parameters"]["trainable"] > 0
    assert results["seen"]["steps"] == 6
    assert results["seen"]["examples"] == 6 * 8
    assert results["seen"]["tokens"] == 6 * 8 * 32
    assert {"python", "torch", "transfer-cli"} <= set(results["versions"])


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
    tokenizer = load_tokenizer(pretrained / "model" / "tokenizer.json")
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


@pytest.mark.slow
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
    tokenizer = load_tokenizer(tmp_path / "run" / "model" / "tokenizer.json")
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
    records = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    return [row[next(name for name in row if name.startswith("rate/"))] for row in records]


def seconds(run):
    return json.loads((run / "timing.json").read_text())["seconds"]


@pytest.mark.slow
def test_a_run_by_the_clock_ends_in_time_at_the_end_of_its_rate(bounded):
    curve = rates(bounded)

    assert SECONDS <= seconds(bounded) < 10 * SECONDS
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] < 0.3 * curve[0]
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


# --- pairs of sentences --------------------------------------------------------------------------


PAIR = "+objective@losses.pair=sentence_pair"
WORDS = (
    "pretrain", "objective=mlm", "data=sample_text", "model=toy", "model.width=16",
    "model.heads=2", "model.feedforward=24", "tokenizer.size=600", *LOOP, "loop.steps=2",
)  # fmt: skip
BERT = ("model=bert-base", "model.width=16", "model.heads=2", "model.depth=2",
        "model.feedforward=24", "model.positions=48", "model.dropout=0")  # fmt: skip
ALBERT = (*BERT, "model.embedding_width=8", "model.share=all")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_it_trains_as_it_stands_and_says_what_lacks_segments(kind, transfer):
    ended = transfer(*WORDS, f"data.pairs={kind}", PAIR, "run.dir=run").ok()

    assert "(pairs of texts)" in ended.err
    assert "a fresh one learns them with model.segments=2" in ended.err
    [validation] = [r for r in read_metrics(Path("run/metrics.jsonl")) if r["kind"] == "validation"]
    assert 0.2 < validation["pair/accuracy"] < 0.8
    assert validation["pair/loss"] == pytest.approx(0.69, abs=0.05)
    assert json.loads(Path("run/model/model.json").read_text())["pairs"]
    transfer("evaluate", "run=run", "device=cpu").ok()
    inspected = transfer(
        "inspect", "data=sample_text", f"data.pairs={kind}", "tokenizer.size=600"
    ).ok()
    assert "pairs of" in inspected.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "architecture"),
    [("nsp", BERT, "BertForPreTraining"), ("sop", ALBERT, "AlbertForPreTraining")],
)
def test_both_heads_go_out_and_come_back(kind, shape, architecture, transfer):
    words = (*WORDS, *shape, "optimizer.lr=1e-2", f"data.pairs={kind}", PAIR)
    ended = transfer(*words, "run.dir=run").ok()
    assert f"transformers.{architecture}" in ended.err

    exported = transfer("export", "run=run", "to=out").ok()

    assert f"transformers.{architecture}" in exported.out
    first, second = open_pretrained("run").tensors(), open_pretrained("out").tensors()
    assert first.keys() == second.keys()
    assert {"heads.pair.linear.weight", "heads.pooler.linear.bias"} < second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with warnings.catch_warnings(action="ignore"):
        theirs = reference().AutoTokenizer.from_pretrained("out")
    assert theirs("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]

    again = transfer(
        "pretrain", "init_from=out", "objective=mlm", "data=sample_text", f"data.pairs={kind}",
        PAIR, *LOOP, "loop.steps=1", "optimizer.lr=1e-20", "run.dir=again",
    ).ok()  # fmt: skip
    assert "new: " not in again.err
    assert "dropped: " not in again.err
    kept = open_pretrained("again").tensors()
    assert all(torch.equal(first[name], kept[name]) for name in first)


def write_language(path, documents, seed):
    """Write documents of a made language: each has one of eight topics, sentences have no order."""
    draw = random.Random(seed)
    words = ["".join(pair) for pair in itertools.product("bdfgklmnprst", "aeiou", "bdfgklm", "aei")]
    random.Random(0).shuffle(words)
    lines = []
    for number in range(documents):
        topic = 8 * (number % 8)
        for _ in range(draw.randint(8, 16)):
            text = draw.choices(words[topic : topic + 8], k=3) + draw.choices(words[64:124], k=3)
            draw.shuffle(text)
            lines.append(f"{' '.join(text)} .")
        lines.append("")
    Path(path).write_text("\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lowest", "highest"), [("nsp", 0.9, 1.0), ("sop", 0.45, 0.55)])
def test_next_sentences_ask_for_the_topic_and_the_order_of_sentences_does_not(
    kind, lowest, highest, transfer, read_json
):
    write_language("train.txt", 800, 1)
    write_language("validation.txt", 200, 2)

    transfer(
        "pretrain", "objective=mlm", "data=text", "data.train=train.txt", "device=cpu",
        "data.validation=validation.txt", f"data.pairs={kind}", PAIR, "model=toy",
        "model.segments=2", "tokenizer.size=2000", "loop.steps=400", "loop.batch=64",
        "optimizer.lr=2e-3", "loop.evaluate_every=400 steps", "run.dir=run",
    ).ok()  # fmt: skip

    accuracy = read_json("run/results.json")["measures"]["validation"]["pair/accuracy"]
    print(f"{kind}: {accuracy=:.3f}")
    assert lowest <= accuracy <= highest


# --- replaced tokens -----------------------------------------------------------------------------


DETECTION = (
    "pretrain", "objective=replaced_tokens", "objective.width=0.5", "data=sample_text",
    "model=toy", "model.width=16", "model.heads=2", "model.feedforward=24", "tokenizer.size=600",
    "data.length=32", "optimizer.lr=1e-2", "schedule=constant", *LOOP, "loop.steps=4",
    "loop.evaluate_every=4 steps",
)  # fmt: skip
ELECTRA = (
    "model.residual=post", "model.segments=2", "model.embedding_width=12",
    "model.output_transform=true",
)  # fmt: skip
MODES = ("detect", "all_tokens", "detect_selected", "replace")


def measures(folder):
    return json.loads((Path(folder) / "results.json").read_text())["measures"]


def parts_of(run):
    """Return the weights of a run, and those that its generator does not share."""
    generator = load_file(Path(run) / "parts" / "generator" / "weights.safetensors")
    return {**load_file(Path(run) / "model" / "weights.safetensors"), "generator": generator}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_scored_again_and_adapted_and_its_model_has_no_generator(mode, transfer):
    transfer(*DETECTION, f"objective.mode={mode}", "run.dir=run").ok()

    transfer("evaluate", "run=run", "split=test", "output=again.json", "device=cpu").ok()
    transfer(
        "finetune", "experiment=sample/finetune", "init_from=run", "run.dir=adapted",
        "loop.steps=2", "device=cpu",
    ).ok()  # fmt: skip

    again = json.loads(Path("again.json").read_text())["measures"]["test"]
    assert again == pytest.approx(measures("run")["test"], rel=1e-5)
    parts = parts_of("run")
    assert not [name for name in parts if name.startswith("heads.generator")]
    assert any(name.startswith("heads.") for name in parts)
    table = "backbone.token_embedding.weight"
    assert torch.equal(parts["generator"][table], parts[table])
    words = [word for word in DETECTION if not word.startswith(("model", "tokenizer"))]
    on = ("init_from=run", "optimizer.lr=1e-12", "run.dir=on")
    transfer(*words, f"objective.mode={mode}", *on).ok()
    assert measures("on")["test"] == pytest.approx(measures("run")["test"], rel=1e-3)
    refused = transfer("analyze", "run=run", "analysis=importance", "device=cpu")
    assert refused.code == 2
    assert "a generator replaces, which is no part of the model; adapt it" in refused.err


@pytest.mark.slow
def test_discriminator_and_generator_go_out_and_say_the_same_there(transfer):
    told = transfer(*DETECTION, *ELECTRA, "run.dir=run").ok()
    assert "transformers.ElectraForPreTraining" in told.err

    out = transfer("export", "run=run", "to=out").ok().out
    generator = transfer("export", "run=run", "part=generator", "to=generator").ok().out

    assert "transformers.ElectraForPreTraining" in out
    assert "transformers.ElectraForMaskedLM" in generator
    model = open_trained("run", Precision("fp32", torch.device("cpu"))).model
    tokens = torch.randint(5, 500, (3, 20), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
    inside = model.heads["generator"]
    lib = reference()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        theirs = lib.AutoModelForPreTraining.from_pretrained("out").eval()(tokens).logits
        filled = lib.AutoModelForMaskedLM.from_pretrained("generator").eval()(tokens).logits
        ours = model.heads["discriminator"](Encoding(model, batch).top)
        table = model.backbone.token_embedding.weight
        words = inside.heads["lm"](Encoding(inside, batch).top, table)
    assert_close(theirs, ours, atol=1e-6, rtol=0)
    assert_close(filled, words, atol=1e-5, rtol=0)
    back, before = open_pretrained("out").tensors(), open_pretrained("run").tensors()
    assert back.keys() == before.keys()
    assert all(torch.equal(back[name], before[name]) for name in before)


@pytest.mark.slow
def test_a_published_discriminator_comes_with_its_head(transfer, tmp_path):
    publish(tmp_path / "published", "electra", "PreTraining")

    start = open_pretrained("published")
    again = transfer(
        "pretrain", "init_from=published", "objective=replaced_tokens", "objective.width=0.5",
        "data=sample_text", *LOOP, "loop.steps=1", "optimizer.lr=1e-20", "run.dir=run",
    ).ok()  # fmt: skip

    head = "heads.discriminator.linear.weight"
    assert torch.equal(open_pretrained("run").tensors()[head], start.tensors()[head])
    assert "new: heads.generator." in again.err
    refused = transfer("evaluate", "run=published", "data=sample_text", "device=cpu")
    assert refused.code != 0
    assert "there is no generator to replace tokens" in refused.err.splitlines()[-1]


def write_detection_language(path, sentences, seed):
    """Write sentences of a made language, documents of one of six topics and of words for all."""
    draw = random.Random(seed)
    lines = []
    for _ in range(sentences):
        topic = draw.randrange(6)
        words = (
            f"f{draw.randrange(20)}" if draw.random() < 0.3 else f"t{topic}w{draw.randrange(30)}"
            for _ in range(12)
        )
        lines.append(" ".join(words))
    Path(path).write_text("\n\n".join(lines) + "\n")


@pytest.mark.slow
def test_detection_beats_who_knows_the_share_alone(transfer):
    write_detection_language("train.txt", 12_000, 1)
    write_detection_language("validation.txt", 1_000, 2)

    transfer(
        "pretrain", "objective=replaced_tokens", "objective.depth=0.5", "data=text",
        "data.train=train.txt", "data.validation=validation.txt", "model=toy",
        "data.documents=separate", "tokenizer.size=2000", "data.length=64", "loop.steps=400",
        "loop.batch=16", "optimizer.lr=3e-3", "schedule.warmup=20", "device=cpu",
        "loop.evaluate_every=100 steps", "run.dir=run",
    ).ok()  # fmt: skip

    scores = measures("run")["validation"]
    assert scores["detect_excess"] < -0.012
    assert scores["auc"] > 0.55


# --- long texts ----------------------------------------------------------------------------------


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
    losses = {}
    for name, given in {
        "again": (),
        "the same": ("evaluation.context=48", "batch=3"),
        "less": ("evaluation.context=16",),
        "windows": ("evaluation.context=48", "evaluation.by=windows"),
    }.items():
        transfer(*at, *given, f"output={name}.json").ok()
        scored = read_json(f"{name}.json")
        losses[name] = scored["measures"]["validation"]["loss"]
        context = scored["counts"]["validation"]["context"]
        assert context["by"] == ("windows" if name == "windows" else "memory")

    results = read_json("run/results.json")
    assert results["context"] == {"by": "memory", "tokens": 48, "stride": 32}
    assert losses["again"] == pytest.approx(results["measures"]["validation"]["loss"], rel=1e-5)
    assert losses["the same"] == pytest.approx(losses["again"], rel=1e-6)
    assert losses["less"] != pytest.approx(losses["again"], rel=1e-6)


@pytest.mark.parametrize("recurrence", [48, 0])
def test_it_goes_on_beyond_the_length_of_its_blocks(recurrence, transfer, words, read_json):
    transfer(*words, f"model.recurrence={recurrence}", "run.dir=run").ok()
    transfer("generate", "run", "Lima", "max_tokens=90", "device=cpu", "output=out.jsonl").ok()

    row = read_json("out.jsonl")
    assert row["tokens"] == 90
    assert row["ended"] == "max_tokens"


def test_what_remembers_needs_its_cache(transfer, run):
    refused = transfer("generate", run, "Lima", "cache=false", "device=cpu")
    assert refused.code == 2
    assert "this model sees the 48 tokens before each" in refused.err


def test_texts_are_not_drawn_by_weight_beside_a_memory(transfer, words, corpus):
    refused = transfer(*words, f"data.train=[{corpus}]", "data.weights=[1]", "run.dir=run")

    assert refused.code == 2
    assert "data.weights: a draw of blocks from several texts does not" in refused.err


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
        one, shared = (load_file(f"{name}/model/weights.safetensors") for name in ("one", other))
        assert_close(shared, one, rtol=0, atol=1e-5)
        losses = [read_json(f"{name}/results.json")["measures"] for name in ("one", other)]
        assert losses[1]["validation"] == pytest.approx(losses[0]["validation"], rel=1e-5)


# --- sparse attention ----------------------------------------------------------------------------

REMEMBERING = (
    "pretrain", "objective=clm", "data=sample_text", "model=toy", "model.window=8",
    "model.width=16", "model.heads=2", "model.feedforward=24", "tokenizer.size=600", *LOOP,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["strided", "fixed"])
def test_it_trains_as_it_stands_and_its_model_goes_on(attention, transfer):
    transfer(*REMEMBERING, f"model.attention={attention}", "loop.steps=2", "run.dir=run").ok()

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
    flops = {}
    for attention in ("full", "strided"):
        ended = transfer("plan", *REMEMBERING, f"model.attention={attention}", "plan.steps=0").ok()
        [line] = [line for line in ended.out.splitlines() if line.startswith("flops: ")]
        flops[attention] = float(re.search(r"a step takes ([\d.]+) MFLOP", line)[1])

    # 8 texts of 64, 2 blocks, 4 operations for 16 numbers of all heads, in three passes: of half
    # the heads 8 x 8 x 16 pairs are left of 64 x 64, of half 8 x 8 x 8.
    saved = 8 * 2 * 4 * 16 * 3 * (64 * 64 - (1024 + 512) / 2) / 1e6
    assert flops["full"] - flops["strided"] == pytest.approx(saved, abs=0.2)


# --- real text -----------------------------------------------------------------------------------


REAL = os.environ.get("TRANSFER_DATA")  # read before the tests get folders of their own

COUNTS = {"train": 2_088_628, "validation": 217_646, "test": 245_569}

SMALL = ("model=tiny", "tokenizer=wordpiece", "tokenizer.size=4096", "tokenizer.lowercase=true")


def needs(*parts):
    there = REAL is not None and Path(REAL).expanduser().joinpath(*parts).exists()
    where = "/".join(parts)
    return pytest.mark.skipif(not there, reason=f"needs {where} in the folder TRANSFER_DATA names")


@needs("wikitext-2")
def test_wikitext_2_has_the_published_number_of_words(transfer):
    ended = transfer("prepare", "data=wikitext2", *SMALL[1:], f"data_dir={REAL}").ok()

    for split, count in COUNTS.items():
        assert any(
            line.startswith(split) and f"{count:,} words" in line for line in ended.out.splitlines()
        )


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "share"), [(100, 0.8), (800, 0.35)])
@needs("wikitext-2")
def test_a_language_model_learns_and_its_perplexity_is_right(
    transfer, read_json, tmp_path, steps, share
):
    run = tmp_path / "run"
    words = ("data=wikitext2", *SMALL, "data.length=64", "loop.batch=32", f"loop.steps={steps}")
    rates = ("optimizer.lr=2e-3", "schedule.warmup=100", f"data_dir={REAL}")
    transfer("pretrain", *words, *rates, f"run.dir={run}").ok()
    asked = (f"run={run}", "split=validation", f"data_dir={REAL}")
    transfer("evaluate", *asked, "output=model.json")
    transfer("evaluate", *asked, "baseline=unigram", "output=unigram.json")

    model = read_json(tmp_path / "model.json")["measures"]["validation"]
    unigram = read_json(tmp_path / "unigram.json")["measures"]["validation"]

    print(f"{steps} steps: {model}, unigram {unigram}")
    assert 20 < model["token_perplexity"] < share * unigram["token_perplexity"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@needs("trec", "train_5500.label")
@needs("wikitext-2")
def test_a_classifier_learns_trec_from_scratch(transfer, read_json, tmp_path, monkeypatch, seed):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    transfer("prepare", "data=wikitext2", *SMALL[1:], f"data_dir={REAL}")
    (tokenizer,) = (tmp_path / "cache" / "tokenizers").glob("*/tokenizer.json")
    run = tmp_path / "run"
    model = ("init=scratch", "model=tiny", "model.direction=causal", "objective.pooling=cls_last")
    words = (*model, "tokenizer=file", f"tokenizer.path={tokenizer}")
    rates = ("loop.epochs=3", "loop.batch=16", "optimizer.lr=1e-3", f"seed={seed}")
    transfer("finetune", *words, *rates, f"data_dir={REAL}", f"run.dir={run}").ok()

    results = read_json(run / "results.json")

    table = results["tables"]["test"]["confusion"]
    print(f"seed {seed}: {results['measures']['test']}, confusion {table}")
    assert [sum(row) for row in table] == [9, 138, 94, 65, 81, 113]
    assert results["measures"]["test"]["accuracy"] >= 0.78
