"""A task of one's own, from `docs/example` alone: trained, monitored, swept, reported, asked."""

import json
from pathlib import Path

import pytest

from tests.records import read_metrics
from transfer_cli.model.weights import read_description

OWN = ("--plugin", "mylab", "--config-dir", "conf")
DATA = (
    "data=tagged_words", "objective=tag_words", "data.train=names/train.jsonl",
    "data.validation=names/validation.jsonl", "data.test=names/test.jsonl",
)  # fmt: skip
SMALL = ("device=cpu", "loop.batch=16", "schedule.warmup=1", "optimizer.lr=3e-3")
LONG = {"words": ["Where", "does", "the", "Rhine", "end", "?"] * 20}


@pytest.fixture
def tagged(transfer, mylab, deep):
    """Train a tagger in the folder of the example; return its run directory."""
    ended = transfer(
        "finetune", *OWN, *DATA, *SMALL, f"init_from={deep}", "run.dir=tagger", "loop.epochs=20",
        "loop.evaluate_every=5 epochs", "loop.monitor=span_f1", "data.length=10",
    ).ok()  # fmt: skip
    assert "span_f1" in ended.out
    return Path("tagger")


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_tagger_is_trained_monitored_reported_and_asked(transfer, tagged, read_json):
    results = read_json(tagged / "results.json")

    # It learns; its own measure decides which weights are best, and of equal ones the loss.
    records = read_metrics(tagged / "metrics.jsonl")
    watched = [row for row in records if row["kind"] == "validation"]
    scores = [row["span_f1"] for row in watched]
    assert len(scores) == 4
    best = max(watched, key=lambda row: (row["span_f1"], -row["loss"]))
    assert results["best_step"] == best["step"]
    assert results["measures"]["validation"]["span_f1"] == pytest.approx(max(scores))
    assert results["measures"]["test"]["span_f1"] > 0.3
    assert results["task"] == {"name": "tag_words", "expected": "tags"}
    description = read_description(tagged / "model")
    assert description.task == {"_target_": "mylab.tagging.Tagging"}
    assert description.labels == ("O", "B-CITY", "B-RIVER", "I-CITY", "I-RIVER")

    # items.jsonl has one line for each sentence, though long ones are several rows.
    assert results["seen"]["examples"] > 20 * len(lines("names/train.jsonl"))
    items = lines(tagged / "items.jsonl")
    examples = [line for split in ("validation", "test") for line in lines(f"names/{split}.jsonl")]
    assert [item["label"].split() for item in items] == [example["tags"] for example in examples]
    assert [item["text"] for item in items] == [" ".join(example["words"]) for example in examples]
    for item in items:
        assert len(item["predicted"].split()) == len(item["label"].split()), item

    # evaluate measures the same.
    transfer("evaluate", *OWN, "run=tagger", "split=test", "device=cpu", "output=a.json").ok()
    again = read_json("a.json")["measures"]["test"]
    assert again == pytest.approx(results["measures"]["test"], rel=1e-5)

    # predict answers sentences and lists of words; a long one is several rows and one answer.
    Path("in.jsonl").write_text(
        json.dumps({"words": ["Where", "is", "Bonn", "?"]}) + "\n" + json.dumps(LONG) + "\n"
    )
    transfer(
        "predict", *OWN, "run=tagger", "input=in.jsonl", "text=words", "output=out.jsonl",
        "device=cpu",
    ).ok()  # fmt: skip
    short, long = lines("out.jsonl")
    assert list(short) == ["text", "words", "tags"]
    assert [len(answer["tags"]) for answer in (short, long)] == [4, 120]
    assert set(long["tags"]) <= set(description.labels)

    # A folder that others load cannot be written; the backbone can.
    for form in ("hf", "onnx"):
        ended = transfer("export", *OWN, "run=tagger", "to=folder", f"format={form}")
        assert ended.code == 2
        assert "it was trained for tag_words, which no published head is for" in ended.err
        assert not Path("folder").exists()
    ended = transfer(
        "predict", *OWN, "run=[tagger,tagger]", "input=in.jsonl", "text=words", "device=cpu"
    )
    assert "answers of several runs on tag_words cannot be combined" in ended.err


@pytest.mark.slow
def test_a_task_is_swept_and_its_runs_are_compared_by_its_measure(transfer, mylab, deep):
    transfer(
        "finetune", *OWN, *DATA, *SMALL, f"init_from={deep}", "-m", "optimizer.lr=1e-4,3e-3",
        "run.dir=sweep", "sweep.isolate=false", "loop.steps=20", "loop.monitor=span_f1",
    ).ok()  # fmt: skip

    ended = transfer("report", "sweep", "--html", "page.html").ok()

    assert "span_f1" in ended.out
    page = Path("page.html").read_text()
    assert "span" in page
    assert "tags" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("data=sample_questions", "objective=tag_words"),
            "objective: TagWords needs examples of the task tag_words, and data has those of "
            "classification; choose objective=classification",
        ),
        (
            (*DATA, "objective=classification"),
            "objective: Classification needs examples of the task classification, and data has "
            "those of tag_words; choose objective=tag_words",
        ),
        ((*DATA, "loop.monitor=span_f2"), "loop.monitor: there is no measure 'span_f2'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(transfer, mylab, deep, words, message):
    ended = transfer("finetune", *OWN, *words, *SMALL, f"init_from={deep}", "run.dir=run")

    ended.refusal(message)
    assert not Path("run").exists()
