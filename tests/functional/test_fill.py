"""`transfer fill`: gaps of a text, by a masked language model that was trained here."""

import json
from dataclasses import replace

import pytest
import torch

from tests import published, tiny
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained


@pytest.fixture
def fill(transfer, language_model):
    """Return how to fill gaps; gives what was printed."""

    def call(*words):
        ended = transfer("fill", f"run={language_model('mlm')}", "device=cpu", *words)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    return call


@pytest.mark.slow
def test_a_gap_gets_candidates_with_their_probabilities_and_the_best_in_place(fill):
    head, *rows, empty, best = fill("The capital of [MASK] is large .").splitlines()

    assert head.split() == ["word", "probability"]
    assert len(rows) == 5
    shares = [float(row.split()[-1]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert empty == ""
    word = rows[0].split()[0].removeprefix("##")
    assert best == f"The capital of {word} is large ."


def test_each_gap_has_its_own_lines(fill):
    head, *rows, _, best = fill("The [MASK] of <mask> .", "top=2").splitlines()

    assert head.split() == ["gap", "word", "probability"]
    assert [row.split()[0] for row in rows[::2]] == ["1", "2"]
    words = [row.split()[1].removeprefix("##") for row in rows[::2]]
    assert best == f"The {words[0]} of {words[1]} ."


def test_all_of_it_goes_to_a_file_or_to_standard_output(fill, tmp_path):
    words = ("text=a=b, [MASK] ${y}", "top=3")

    shown = json.loads(fill(*words, "output=-"))
    table = fill(*words, "output=found.jsonl")

    assert json.loads((tmp_path / "found.jsonl").read_text()) == shown
    assert shown["text"] == "a=b, [MASK] ${y}"
    (candidates,) = shown["gaps"]
    assert [set(each) for each in candidates] == [{"text", "token", "probability"}] * 3
    word = candidates[0]["text"].removeprefix("##")
    assert shown["filled"] == f"a=b, {word} ${{y}}"
    assert shown["filled"] in table


def test_a_gap_stands_in_lines_where_the_model_was_trained_on_those_last(language_model):
    trained = open_trained(str(language_model("mlm")), tiny.FP32)
    of_a_task = replace(trained.start.description, labels=("city", "river"))

    assert trained.start.around == "lines"
    adapted = replace(trained, start=replace(trained.start, description=of_a_task))
    assert adapted.start.around == "sentence"


def test_a_published_model_fills_gaps_as_its_own_implementation_does(transfer, tmp_path):
    model = published.publish(tmp_path / "bert", "bert", "MaskedLM")
    tokenizer = open_pretrained(str(tmp_path / "bert")).tokenizer
    before, after = tokenizer.encode("The capital of"), tokenizer.encode("is Paris.")
    row = [tokenizer.cls, *before, tokenizer.mask, *after, tokenizer.sep]
    with torch.no_grad():
        shares_V = model(torch.tensor([row])).logits[0, 1 + len(before)].softmax(-1)

    ended = transfer(
        "fill", f"run={tmp_path / 'bert'}", "The capital of [MASK] is Paris.", "top=3",
        "output=-", "device=cpu",
    )  # fmt: skip

    (candidates,) = json.loads(ended.out)["gaps"]
    shares_V[sorted(tokenizer.special)] = 0
    best = shares_V.topk(3)
    assert [each["token"] for each in candidates] == tokenizer.pieces(best.indices.tolist())
    found = [each["probability"] for each in candidates]
    assert found == pytest.approx(best.values.tolist(), rel=1e-4)


def test_a_classifier_fills_nothing(transfer, finetuned):
    ended = transfer("fill", f"run={finetuned}", "[MASK]", "device=cpu")

    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "is no language model (Classification); fill needs" in ended.err
