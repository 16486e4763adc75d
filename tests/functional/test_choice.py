"""Questions with choices, from the file to the prediction."""

import json

import pytest
import torch

from tests.published import TEXT, publish, reference
from tests.task_kinds import PLACES, choice

pytestmark = pytest.mark.functional


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("choice")


def test_each_example_has_its_item(run):
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    assert {item["label"] for item in items} <= {f"very {word}" for word in PLACES}
    assert all(f"/ {item['label']}" in item["text"] for item in items)
    assert {item["score"] for item in items} <= {0.0, 1.0}


def test_new_questions_are_answered_and_runs_answer_with_their_mean(transfer, run, tmp_path):
    asked = choice(3)
    del asked["label"]
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    one = transfer("predict", str(run), "new.jsonl", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.jsonl", "keep=true", "device=cpu")

    assert one.code == two.code == 0, one.err + two.err
    answer, mean = json.loads(one.out), json.loads(two.out)
    assert answer["text"] == asked["context"]
    assert answer["answer"] == asked["choices"][answer["label"]]
    assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert len(answer["probabilities"]) == len(asked["choices"])
    assert mean["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
    assert (mean["question"], mean["choices"]) == (asked["question"], asked["choices"])


def their_shares(folder, asked):
    """Return the probability of each choice from a model that transformers loads."""
    lib = reference()
    tokenizer = lib.AutoTokenizer.from_pretrained(folder)
    model = lib.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    endings = [f"{asked['question']} {choice}" for choice in asked["choices"]]
    batch = tokenizer([asked["context"]] * len(endings), endings, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: each[None] for name, each in batch.items()}).logits
    return logits.softmax(1)[0].tolist()


@pytest.mark.parametrize("family", ["bert", "electra", "distilbert", "roberta"])
def test_a_published_model_answers_as_there_and_is_written_as_it_was(transfer, tmp_path, family):
    theirs = publish(tmp_path / "published", family, "MultipleChoice")
    asked = {"context": TEXT[1], "question": "Who", "choices": TEXT[3:6]}
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    ended = transfer("predict", "published", "new.jsonl", "device=cpu")
    written = transfer("export", "published", "to")

    assert ended.code == written.code == 0, ended.err + written.err
    found = json.loads(ended.out)["probabilities"]
    assert found == pytest.approx(their_shares("published", asked), abs=2e-5)
    # A context that is too long is cut there as here, and no choice is.
    cut = json.loads((tmp_path / "to" / "tokenizer.json").read_text())["truncation"]
    assert cut is None or cut["strategy"] == "OnlyFirst"
    again = reference().AutoModelForMultipleChoice.from_pretrained("to").state_dict()
    expected = theirs.state_dict()
    for weights in (again, expected) if family == "roberta" else ():
        # No text has the first two positions, which are not read.
        name = "roberta.embeddings.position_embeddings.weight"
        weights[name] = weights[name][2:]
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], each) for name, each in expected.items())
