"""Pretraining on pairs of texts: NSP and SOP beside a masked language model."""

import itertools
import json
import random
import warnings
from pathlib import Path

import pytest
import torch

from tests.functional.conftest import LOOP
from tests.published import reference
from tests.records import read_metrics
from transfer_cli.assembly.init_from import open_pretrained

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
