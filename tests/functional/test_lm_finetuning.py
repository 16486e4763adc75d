"""Pretraining that goes on with a task's texts before its labels are learnt (ULMFiT, stage 2)."""

import pytest

pytestmark = pytest.mark.functional

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
    found = read_json(adapted / "results.json")

    assert found["presets"]["data"] == "sample_questions_text"
    assert {"token_perplexity", "word_perplexity"} <= set(found["measures"]["validation"])
    assert found["labels"] == []
    same = [(run / "model" / "tokenizer.json").read_bytes() for run in (adapted, pretrained)]
    assert same[0] == same[1]


def test_the_adapted_model_learns_the_labels(transfer, adapted, loop, read_json):
    ended = transfer(
        "finetune", "data=sample_questions", f"init_from={adapted}", *loop, "loop.steps=3",
        "schedule.warmup=1", "data.labelled=12", "run.dir=run",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert len(read_json("run/results.json")["labels"]) == 6


def test_an_own_table_gives_its_texts(transfer, pretrained, questions, loop):
    words = (
        "pretrain",
        "data=table_text",
        f"init_from={pretrained}",
        *loop,
        "loop.steps=2",
        "schedule.warmup=1",
    )

    ended = transfer(*words, f"data.task.train={questions}", "data.length=32", "run.dir=run")
    missing = transfer(*words, "run.dir=other")

    assert ended.code == 0, ended.err
    assert missing.code == 2
    assert "data.task.train: needs a value" in missing.err


def test_the_number_of_labels_cannot_shrink_the_texts(transfer, pretrained, loop):
    ended = transfer("pretrain", TEXTS, "data.labelled=12", f"init_from={pretrained}", *loop)

    assert ended.code == 2
    assert "labelled" in ended.err


def test_prepare_counts_the_texts(transfer):
    ended = transfer("prepare", TEXTS, "tokenizer.size=600")

    assert ended.code == 0, ended.err
    assert "train      144 lines" in ended.out
