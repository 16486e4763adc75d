"""`transfer finetune`: what it starts from, what trains, what it leaves behind."""

import csv
import errno
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import tickets
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.model.weights import read_description

LABELS = ["animal", "city", "disease", "mineral", "person", "river"]
TASK_MEASURES = {"loss", "accuracy", "error_rate", "macro_f1"}


@pytest.fixture
def finetune(transfer, loop, tmp_path):
    """Return how to fine-tune on the embedded questions; gives the ended command and the run."""

    def call(*words):
        ended = transfer("finetune", "data=sample_questions", *loop, *words, "run.dir=run").ok()
        return ended, tmp_path / "run"

    return call


def build_backbone(run):
    tensors = open_pretrained(str(run)).tensors()
    return {name: tensor for name, tensor in tensors.items() if name.startswith("backbone.")}


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


# --- the run directory ---------------------------------------------------------------------------


def test_the_results_are_what_reports_read(finetuned, read_json):
    results = read_json(finetuned / "results.json")

    assert results["command"] == "finetune"
    assert results["presets"]["adaptation"] == "full"
    assert results["presets"]["data"] == "sample_questions"
    assert "model" not in results["presets"]
    assert set(results["measures"]) == {"validation", "test"}
    for measures in results["measures"].values():
        assert set(measures) >= TASK_MEASURES
        assert measures["error_rate"] == pytest.approx(100 * (1 - measures["accuracy"]))
    assert results["labels"] == LABELS
    table = results["tables"]["test"]["confusion"]
    assert sum(map(sum, table)) == 288
    assert results["parameters"]["total"] == results["parameters"]["trainable"]
    assert results["seen"]["steps"] == 6


def test_the_curves_show_the_head_and_samples(finetuned):
    curves = EventAccumulator(str(finetuned / "tensorboard")).Reload()

    assert {
        "train/loss",
        "train/rate/head.class",
        "train/rate/embeddings",
        *(f"validation/{name}" for name in TASK_MEASURES),
        *(f"weights_kept/test/{name}" for name in TASK_MEASURES),
    } <= set(curves.Tags()["scalars"])
    groups = {tag.partition("/")[0] for tag in curves.Tags()["scalars"]}
    assert sorted(groups) == ["train", "validation", "weights_kept"], "what has curves comes first"
    assert "validation/samples/text_summary" in curves.Tags()["tensors"]


def test_the_tokenizer_and_the_shape_are_the_pretrained_models(pretrained, finetuned):
    tokenizers = [
        (run / "model" / "tokenizer.json").read_bytes() for run in (pretrained, finetuned)
    ]
    descriptions = [read_description(run / "model") for run in (pretrained, finetuned)]

    assert tokenizers[0] == tokenizers[1]
    assert descriptions[0].shape == descriptions[1].shape
    assert list(descriptions[1].labels) == LABELS


# --- what it starts from -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "",
        "checkpoints/best",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("model", "checkpoints/step-00000004")),
    ],
)
def test_it_starts_from_a_run_its_model_or_a_checkpoint(finetune, pretrained, place):
    ended, run = finetune(f"init_from={pretrained / place}", "adaptation=frozen", "loop.steps=1")

    source = pretrained / (place or "model")
    assert same(build_backbone(source), build_backbone(run / "model"))
    assert f"tensors from {source}" in ended.err
    assert "new: heads.class.linear.bias, heads.class.linear.weight" in ended.err


def test_from_scratch_it_is_the_same_model_with_fresh_weights(finetune, pretrained):
    ended, run = finetune(
        f"init_from={pretrained}", "init=scratch", "adaptation=frozen", "loop.steps=1"
    )

    assert "loaded" not in ended.err
    assert read_description(run / "model").shape == read_description(pretrained / "model").shape
    before, after = build_backbone(pretrained / "model"), build_backbone(run / "model")
    name = "backbone.token_embedding.weight"
    assert before[name].shape == after[name].shape
    assert not before[name].equal(after[name])


# --- own data ------------------------------------------------------------------------------------


def test_an_own_table_is_divided_and_learnt(
    transfer, pretrained, questions, loop, tmp_path, read_json
):
    words = ("data=table", f"data.train={questions}", "data.validation_share=0.2")

    transfer(
        "finetune", *words, f"init_from={pretrained}", *loop, "loop.steps=20",
        "optimizer.lr=0.01", "loop.monitor=accuracy", "run.dir=run",
    ).ok()  # fmt: skip

    results = read_json(tmp_path / "run" / "results.json")
    assert results["labels"] == ["person", "place"]
    assert set(results["measures"]) == {"validation"}
    assert results["measures"]["validation"]["accuracy"] == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EPIPE])
def test_a_run_is_finished_though_nobody_can_be_told(
    transfer, pretrained, tmp_path, read_json, monkeypatch, error
):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(sys, "stdout", Full())

    ended = transfer(
        "finetune", "data=sample_questions", f"init_from={pretrained}", "device=cpu",
        "loop.steps=1", "run.dir=run",
    )  # fmt: skip

    assert ended.code == (0 if error == errno.EPIPE else 2)
    assert read_json(tmp_path / "run" / "status.json")["status"] == "finished"


# --- tokens that a run adds ----------------------------------------------------------------------

ADDED = "tokenizer.add=[<speaker1>,<speaker2>]"


@pytest.fixture(scope="module")
def words(pretrained, questions, loop):
    return ("finetune", "data=table", f"data.train={questions}", *loop, f"init_from={pretrained}",
            "loop.steps=2", ADDED)  # fmt: skip


@pytest.mark.slow
def test_new_tokens_have_rows_like_the_others_and_no_text_is_read_as_one(
    transfer, words, pretrained, tmp_path
):
    ended = transfer(*words, "adaptation=frozen", "adaptation.store=all", "run.dir=run").ok()

    assert "new: backbone.token_embedding.weight" in ended.out + ended.err
    places = (pretrained / "model", tmp_path / "run" / "model")
    base, grown = (load_tokenizer(place / "tokenizer.json") for place in places)
    assert grown.size == base.size + 2
    assert grown.pieces([base.size, base.size + 1]) == ["<speaker1>", "<speaker2>"]
    assert grown.token("<speaker2>") == base.size + 1
    text = "a <speaker1> , b"
    assert grown.encode(text) == base.encode(text)
    before, after = (
        load_file(place / "weights.safetensors")["backbone.token_embedding.weight"]
        for place in places
    )
    assert after.shape == (base.size + 2, before.shape[1])
    assert (after[: base.size] == before).all()
    assert (after[base.size :] - before.mean(0)).std() == pytest.approx(0.02, rel=0.4)


def test_a_run_with_new_tokens_goes_on_answers_and_is_started_from(transfer, words, tmp_path):
    (tmp_path / "new.txt").write_text("Where is Lima ?\n")

    transfer(*words, "run.dir=run", "adaptation=lora", "adaptation.store=trained").ok()
    goes_on = transfer("finetune", "resume=run", "loop.steps=3")
    answered = transfer("predict", "run", "new.txt", "device=cpu")
    next_one = [word for word in words if not word.startswith(("init_from", "tokenizer"))]
    started = transfer(*next_one, "init_from=run", "run.dir=next")

    assert [ended.code for ended in (goes_on, answered, started)] == [0, 0, 0], started.err
    assert json.loads(answered.out)["label"]


# --- a task's texts before its labels (ULMFiT, stage 2) ------------------------------------------

TEXTS = "data=sample_questions_text"


@pytest.fixture(scope="module")
def adapted(pretrained, loop, tmp_path_factory):
    """Return a run directory of `pretrain` on the task's texts, from `pretrained`."""
    from transfer_cli.cli import main

    run = tmp_path_factory.mktemp("lm") / "adapted"
    words = (
        TEXTS,
        "data.length=32",
        f"init_from={pretrained}",
        *loop,
        "loop.steps=4",
        "schedule.warmup=1",
    )
    assert main(["pretrain", *map(str, words), f"run.dir={run}"]) == 0
    return run


def test_the_language_model_reads_all_texts_with_its_own_tokenizer(adapted, pretrained, read_json):
    results = read_json(adapted / "results.json")

    assert results["presets"]["data"] == "sample_questions_text"
    assert {"token_perplexity", "word_perplexity"} <= set(results["measures"]["validation"])
    assert results["labels"] == []
    same = [(run / "model" / "tokenizer.json").read_bytes() for run in (adapted, pretrained)]
    assert same[0] == same[1]


def test_an_own_table_gives_its_texts(transfer, pretrained, questions, loop):
    words = (
        "pretrain",
        "data=table_text",
        f"init_from={pretrained}",
        *loop,
        "loop.steps=2",
        "schedule.warmup=1",
    )

    transfer(*words, f"data.task.train={questions}", "data.length=32", "run.dir=run").ok()
    missing = transfer(*words, "run.dir=other")

    assert missing.code == 2
    assert "data.task.train: needs a value" in missing.err


def test_the_number_of_labels_cannot_shrink_the_texts(transfer, pretrained, loop):
    ended = transfer("pretrain", TEXTS, "data.labelled=12", f"init_from={pretrained}", *loop)

    assert ended.code == 2
    assert "labelled" in ended.err


def test_prepare_counts_the_texts(transfer):
    ended = transfer("prepare", TEXTS, "tokenizer.size=600").ok()

    assert "train      144 lines" in ended.out


def test_the_config_of_a_run_repeats_it(transfer, finetuned, tmp_path):
    transfer("finetune", finetuned / "config.yaml", "run.dir=again").ok()
    transfer("finetune", "--config", finetuned / "config.yaml", "seed=7", "run.dir=other").ok()

    once, again, other = map(build_backbone, (finetuned, tmp_path / "again", tmp_path / "other"))
    assert same(once, again)
    assert not same(once, other)


@pytest.mark.slow
def test_the_commands_of_the_page_on_tables_read_several_files_and_columns(
    transfer, pretrained, loop, tmp_path
):
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    section = page.split("**Several files")[1].split("**Bad rows**")[0]
    commands = re.findall(r"^\$ transfer (.+)$", section, re.M)
    commands += re.findall(r"`transfer (evaluate LM .+?)`", page)
    (tmp_path / "tickets").mkdir()
    for number, name in enumerate(("tickets/may.csv", "tickets/june.csv", "april.csv", "may.csv")):
        rows = [[text[:9], text[9:], label] for text, label in tickets.rows(number)[:90]]
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([["subject", "body", "label"], *rows])
    (tmp_path / "june.csv").write_bytes((tmp_path / "tickets" / "may.csv").read_bytes())
    (tmp_path / "held.txt").write_text("a b c\n" * 9)
    (tmp_path / "LM").symlink_to(pretrained)

    ended = [
        transfer(*shlex.split(command), *(loop if "finetune" in command else ["device=cpu"])).ok()
        for command in commands
    ]

    assert len(ended) == 4
    assert "input: scored 90 of 90 examples of june.csv" in ended[2].out
    assert "of held.txt" in ended[3].out


def test_several_files_and_columns_train_a_run_that_reads_others_alike(
    transfer, pretrained, loop, tmp_path, read_json
):
    for name, first in (("a.csv", 0), ("b.csv", 20)):
        rows = [
            f"{n},{('bill', 'parcel')[n % 2]},about {n},{('Bill', 'Post', 'bill', 'Post')[n % 4]}"
            for n in range(first, first + 20)
        ]
        (tmp_path / "parts").mkdir(exist_ok=True)
        table = ["id,subject,body,label", *rows, "1,,,"]
        (tmp_path / "parts" / name).write_text("\n".join(table) + "\n")
    typed = ("data=table", "data.train=parts/*.csv", "data.text=[subject,body]", "data.errors=skip",
             "data.merge_labels=true", "data.join=' - '", f"init_from={pretrained}", *loop,
             "loop.steps=2")  # fmt: skip

    planned = transfer("plan", "finetune", *typed).ok()
    ended = transfer("finetune", *typed, "run.dir=run").ok()
    (tmp_path / "new.csv").write_text("label,body,subject\nBILL,about,bill\nPost,x,y\n")
    scored = transfer("evaluate", "run", "new.csv", "device=cpu", "output=out.json").ok()
    answers = transfer("predict", "run", "new.csv", "device=cpu").ok()
    again = transfer("evaluate", "run", "split=all", "device=cpu").ok()

    for command in (planned, ended):
        assert command.err.count("parts/a.csv: 1 of 21 rows left out: empty label, line 22") == 1
    assert read_json("run/model/model.json")["labels"] == ["Bill", "Post"]
    assert "input: scored 2 of 2 examples of new.csv" in scored.out
    assert [json.loads(line)["text"] for line in answers.out.splitlines()] == [
        "bill - about", "y - x"
    ]  # fmt: skip
    assert "train: scored 36 of 40 examples of parts/a.csv and 1 more" in again.out

    (tmp_path / "parts" / "c.csv").write_text("id,subject,body,label\n50,a,b,Post\n")
    transfer("evaluate", "run", "device=cpu").refusal("data: ", "since the run began")
