"""`transfer score`: sentences and prompts, by runs that were trained here."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from tests import published
from transfer_cli.runs.items import read_items

PAIRS = [
    ("Where is the river ?", "Where the is river ?"),
    ("How many are there ?", "How there are many ?"),
    ("Who built it ?", "Who built it ?"),
]


@pytest.fixture
def score(transfer, read_json):
    """Return how to score with a run; gives its results and items, and what was printed."""

    def call(run, *words):
        ended = transfer("score", f"run={run}", "device=cpu", "output=out", *words).ok()
        results = read_json(Path("out/results.json"))
        (split,) = results["measures"]
        return (
            results["measures"][split],
            list(read_items(Path("out/items.jsonl"), split)),
            ended.out,
        )

    return call


def pairs_file(reverse=False):
    rows = [
        {"sentence_good": pair[reverse], "sentence_bad": pair[not reverse], "UID": f"group {n % 2}"}
        for n, pair in enumerate(PAIRS)
    ]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ("data=minimal_pairs", "data.files=pairs.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clm", "mlm"])
def test_pairs_the_other_way_round_have_the_other_half(kind, score, pretrained, masked, transfer):
    run = pretrained if kind == "clm" else masked
    measures, items, out = score(run, *pairs_file())

    assert [item.score for item in items][2] == 0.5
    assert measures["accuracy"] == pytest.approx(sum(item.score for item in items) / 3)
    groups = [measures[f"accuracy/group {n}"] for n in (0, 1)]
    assert measures["macro_accuracy"] == pytest.approx(sum(groups) / 2)
    assert re.search(r"group 0: [\d.]+ % of 2 \(", out)
    Path("out").rename("first")
    other, _, _ = score(run, *pairs_file(reverse=True), "batch=1")
    assert other["accuracy"] == pytest.approx(1 - measures["accuracy"])
    transfer("report", "first", "out").ok()


@pytest.fixture
def masked(language_model):
    return language_model("mlm")


def test_labels_are_asked_for_by_prompts_and_compared_with_a_fine_tuned_run(
    score, pretrained, finetuned, transfer
):
    words = ("data=sample_questions", "prompt.item={text} {label}", "prompt.calibrate=true")
    measures, items, out = score(pretrained, *words, "prompt.norm=token")

    assert len(items) == len(list(read_items(finetuned / "items.jsonl", "test")))
    right = sum(item.predicted == item.label for item in items)
    assert measures["accuracy"] == measures["accuracy_calibrated"] == right / len(items)
    assert {"accuracy_none", "accuracy_token"} < set(measures)
    assert "always saying" in out
    shown = transfer("report", "out", str(finetuned)).ok()
    assert "score" in shown.out


@pytest.mark.slow
def test_shots_and_orders_are_runs_of_their_own(score, pretrained, transfer, read_json):
    transfer(
        "score", str(pretrained), "data=sample_questions", "prompt.item={text} {label}",
        "prompt.shots=[0,1]", "prompt.orders=2", "split=validation", "output=out", "device=cpu",
    ).ok()  # fmt: skip

    runs = sorted(path.name for path in Path("out").iterdir())
    assert runs == ["shots-0-order-0", "shots-1-order-0", "shots-1-order-1"]
    seeds = [read_json(Path("out") / run / "results.json")["seed"] for run in runs]
    assert seeds == [0, 0, 1]
    shown = transfer("report", "out").ok()
    assert "prompt.shots" in shown.out


def test_choices_are_scored_as_what_goes_on(score, pretrained):
    measures, items, _ = score(
        pretrained,
        "data=sample_choices",
        "prompt.item={text} {label}",
        "prompt.norm=char",
        "split=validation",
    )

    assert measures["accuracy"] == pytest.approx(sum(item.score for item in items) / len(items))
    assert measures["chance"] < 0.5


def test_a_masked_model_fills_the_gap(score, masked):
    measures, items, _ = score(
        masked, "data=sample_questions", "prompt.item={text} It is a {label} .",
        "prompt.shots=1", "prompt.calibrate=true", "split=validation",
    )  # fmt: skip

    assert len(items) == 96
    assert 0 <= measures["accuracy"] <= 1


def cloze_file(*rows):
    Path("cloze.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ("data=cloze", "data.files=cloze.jsonl")


@pytest.mark.parametrize("batch", [1, 8])
def test_a_causal_model_says_all_tokens_of_a_word(score, tmp_path, batch):
    theirs = published.publish(tmp_path / "gpt2", "gpt2", "LMHeadModel")
    tokenizer = published.reference().AutoTokenizer.from_pretrained(tmp_path / "gpt2")
    before = "Who wrote the play about the"
    rows = [{"text": f"{before} [MASK] .", "answer": "prince"}, {"text": f"{before} prince"}]

    measures, items, out = score(tmp_path / "gpt2", *cloze_file(*rows), f"batch={batch}")

    start, word = (tokenizer(text)["input_ids"] for text in (before, " prince"))
    assert len(word) > 1
    with torch.no_grad():
        logits = theirs(torch.tensor([[*start, *word]])).logits[0, len(start) - 1 : -1]
    nats = -float(logits.log_softmax(-1)[range(len(word)), word].sum())
    said = logits.index_fill(1, torch.tensor([0]), -torch.inf).argmax(1).tolist()
    assert [item.loss for item in items] == pytest.approx([nats, nats], abs=1e-4)
    assert [item.predicted for item in items] == [tokenizer.decode(said).strip()] * 2
    assert [item.score for item in items] == [float(said == word)] * 2
    assert measures["answer_perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert re.search(r"2 words: [\d.]+ % \(", out)


def test_a_causal_model_chooses_among_words(score, pretrained):
    rows = [{"text": "Where is the river"}, {"text": "Where is the qzxv"}]
    Path("among.txt").write_text("river\nqzxv\n")

    measures, items, out = score(pretrained, *cloze_file(*rows), "data.among=among.txt")

    assert [(item.label, item.predicted) for item in items] == [("river", "river")]
    assert measures["accuracy"] == 1.0  # the other word is not one token
    assert "1 skipped" in out


def test_a_masked_model_says_words_of_one_token_and_skips_others(score, masked):
    rows = [
        {"text": "Where is the [MASK] ?", "answer": "river"},
        {"text": "Where is the [MASK] ?", "answer": "qzxv"},
    ]
    Path("among.txt").write_text("river\n")

    measures, items, out = score(masked, *cloze_file(*rows), "data.among=among.txt")

    assert [item.label for item in items] == ["river"]
    assert measures["accuracy"] == 1.0  # the only word that may be said
    assert "1 skipped" in out


def test_a_published_model_scores_pairs(score, tmp_path):
    published.publish(tmp_path / "gpt2", "gpt2", "LMHeadModel")

    _, items, _ = score(tmp_path / "gpt2", *pairs_file())

    assert len(items) == len(PAIRS)
